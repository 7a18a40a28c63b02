"""The command as a function, and small trees of files to pack."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

import pytest

from fastfeed.shardfile.names import split_name
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.main import main

# At its n-th write, open, rename or removal a process kills itself, or the build that forked it.
KILLED = """
import os, signal, sys
victim, at = sys.argv[1], int(sys.argv[2])
build = os.getpid()
seen = 0
def counted(call):
    def wrapper(*arguments, **options):
        global seen
        seen += 1
        if seen == at:
            os.kill(build if victim == "build" else os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapper
os.write, os.replace, os.open = map(counted, (os.write, os.replace, os.open))
from pathlib import Path
Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
from fastfeed_shard.main import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture
def run_killed():
    """Run the command in a process that dies at its n-th write; returns how it ended."""

    def run(at, *arguments, victim="self"):
        command = [sys.executable, "-c", KILLED, victim, str(at), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def run(capsys):
    """Call the command; returns (exit code, stdout, stderr)."""

    def run_command(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def built(run):
    """Call the command, which must end well; returns its stdout."""

    def run_well(*arguments):
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return run_well


@pytest.fixture
def make_tree(tmp_path):
    """Write files from a mapping of relative name -> bytes, in its order; returns their folder."""

    def make(files, folder="source"):
        root = tmp_path / folder
        for name, data in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return root

    return make


@pytest.fixture
def animals(make_tree):
    """Two classes of five samples, each a `jpg` of known bytes and a `json`."""
    files = {}
    for kind in ("dog", "cat"):
        for number in range(5):
            files[f"{kind}/{number:03d}.jpg"] = f"{kind} {number} ".encode() * (300 * number + 1)
            files[f"{kind}/{number:03d}.json"] = b'{"number": %d}' % number
    return make_tree(files)


@pytest.fixture
def samples_of():
    """Read shards with Python's tarfile: key -> field -> bytes, over a folder or one shard."""

    def read(dest):
        samples = {}
        paths = sorted(dest.glob("*.tar")) if dest.is_dir() else [dest]
        for path in paths:
            with tarfile.open(path) as tar:
                for member in tar:
                    key, field = split_name(member.name)
                    samples.setdefault(key, {})[field] = tar.extractfile(member).read()
        return samples

    return read


@pytest.fixture
def contents_of():
    """Read a folder or a place in a bucket: relative name -> bytes of all files."""

    def read(folder):
        if "://" in str(folder):
            bucket = Bucket(folder)
            return {name: bucket.read(name) for name in bucket.names()}
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }

    return read


@pytest.fixture
def pack_tar(tmp_path):
    """Write a tar of (name, bytes) pairs or ready TarInfo objects with Python's tarfile."""

    def pack(name, *members, tar_format=tarfile.USTAR_FORMAT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=tar_format) as tar:
            for member in members:
                if isinstance(member, tarfile.TarInfo):
                    tar.addfile(member)
                    continue
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
        return path

    return pack


@pytest.fixture
def memory():
    """The URL of an empty place in this process's memory."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The URL of a new bucket, with credentials where S3's own tools look for them."""
    import boto3

    for name, value in (
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "a-secret-for-tests"),
        ("AWS_ENDPOINT_URL", s3_server),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    client.close()
    return f"s3://{name}"


@pytest.fixture
def source(make_tree):
    """Forty files in two classes: several shards."""
    draw = random.Random(0)
    return make_tree({f"{'ab'[n % 2]}/{n:03d}.bin": draw.randbytes(9000) for n in range(40)})


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder of its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def parquet(tmp_path):
    """A Parquet file of forty rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(0)
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"image": [draw.randbytes(9000) for _ in range(40)]}), path)
    return path
