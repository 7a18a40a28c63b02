"""Real servers on loopback: one that fails on purpose, buckets of S3, nginx where there is one."""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
import xxhash

from fastfeed.shardfile.index import group, save_index
from fastfeed.shardfile.manifest import Manifest, ShardEntry, save_manifest
from fastfeed.shardfile.tar import walk
from fastfeed.storage.compressed import open_shard
from fastfeed.storage.patience import Patience
from fault_server import FaultServer


@pytest.fixture(scope="session")
def server_class():
    """The class of servers that fail on purpose."""
    return FaultServer


@pytest.fixture
def server(server_class):
    """A server that fails on purpose."""
    with server_class() as running:
        yield running


class Hours:
    """A clock that only sleeping moves, so that hours of backoff take no time."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def hours():
    """The time that retries of `patience` live in."""
    return Hours()


@pytest.fixture
def patience(hours):
    """Retries as by default, in a time of their own."""
    return Patience(clock=hours.clock, sleep=hours.sleep, jitter=lambda: 1.0)


class Bucket:
    """A bucket of its own for each test, filled and looked at past fastfeed."""

    def __init__(self, endpoint, name):
        import boto3

        self.name = name
        self.options = {
            "key": "testing",
            "secret": "a-secret-for-tests",
            "endpoint_url": endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="a-secret-for-tests",  # noqa: S106
        )
        self._client.create_bucket(Bucket=name)

    def put(self, key, content):
        self._client.put_object(Bucket=self.name, Key=key, Body=content)
        return f"s3://{self.name}/{key}"

    def close(self):
        self._client.close()


@pytest.fixture
def bucket(s3_server, request):
    """A bucket of its own."""
    made = Bucket(s3_server, f"b{xxhash.xxh3_64_hexdigest(request.node.nodeid.encode())}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def nginx(await_port):
    """The folder that nginx serves, and its URL; skipped where there is no nginx."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    with tempfile.TemporaryDirectory(prefix="fastfeed-nginx-") as folder:
        root = Path(folder)
        # Its workers may run as somebody else.
        root.chmod(0o755)
        (root / "www").mkdir(mode=0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (root / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;\n"
            "events {}\n"
            f"http {{ access_log off; gzip on; gzip_types *; client_body_temp_path {root}/b;\n"
            f"proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u;\n"
            f"scgi_temp_path {root}/s; server {{ listen 127.0.0.1:{port}; root {root}/www; }} }}\n"
        )
        process = subprocess.Popen(
            [program, "-p", folder, "-c", str(root / "nginx.conf")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await_port(port, process)
            yield root / "www", f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def shard_bytes(number, samples=5):
    """Return the bytes of a shard whose fields say what they are."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for row in range(samples):
            for field in ("cls", "txt"):
                content = f"{number},{row},{field}".encode()
                info = tarfile.TarInfo(f"k{number}/{row:04d}.{field}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def index_bytes(content, *, checksums=True):
    """Return the bytes of the index of a shard."""
    digest = xxhash.xxh3_64_intdigest
    return save_index(
        group(
            walk(lambda offset, size: content[offset : offset + size], len(content), shard="x"),
            shard="x",
            shard_bytes=len(content),
            checksum_of=(lambda o, n: digest(content[o : o + n])) if checksums else None,
        )
    )


@pytest.fixture
def data_set():
    """The files of a data set of two shards, by name: shards, indexes and the manifest."""
    files = {}
    entries = []
    for number in range(2):
        content = shard_bytes(number)
        files[f"s-{number:03d}.tar"] = content
        files[f"s-{number:03d}.ffx"] = index_bytes(content)
        entries.append(ShardEntry(f"s-{number:03d}.tar", len(content), 5))
    files.update(save_manifest(Manifest(fields={"cls": 10, "txt": 10}, shards=tuple(entries))))
    return files


@pytest.fixture
def shard_of():
    """Make the bytes of a shard, and of its index."""
    return shard_bytes, index_bytes


@pytest.fixture
def opened(tmp_path):
    """Write a file and open it as a tar; what is inflated goes to a folder of the test."""
    shards = []

    def open_file(data, name="a.tar.zst"):
        path = tmp_path / name
        path.write_bytes(data)
        shards.append(open_shard(path, folder=tmp_path / "cache"))
        return shards[-1]

    yield open_file
    for shard in shards:
        shard.close()
