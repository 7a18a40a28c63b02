"""Data sets written to buckets and read from there: whole, or resumable, in bounded room."""

from __future__ import annotations

import functools
import http.server
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from fastfeed.errors import OptionError, StorageError
from fastfeed.storage.connection import Connection
from fastfeed.storage.faults import Fault
from fastfeed.storage.patience import Patience
from fastfeed.storage.urls import join
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.folder import STATE_NAME
from fastfeed_shard.main import main
from fastfeed_shard.scratch import scratch_folder

SMALL = ("--shard-size", "100KiB", "--quiet")


@pytest.fixture(scope="module")
def s3_server():
    """The endpoint of moto's S3, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = (
        "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            assert process.poll() is None, "the server ended"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)  # another process tells nobody when it is ready
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


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
def memory():
    """The URL of an empty place in this process's memory."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def place(request):
    """A remote place of the kind that a test is run with."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def source(make_tree):
    """Forty files in two classes: several shards."""
    draw = random.Random(0)
    return make_tree({f"{'ab'[n % 2]}/{n:03d}.bin": draw.randbytes(9000) for n in range(40)})


def objects(url):
    """Name -> bytes of all objects below a URL."""
    bucket = Bucket(url)
    return {name: bucket.read(name) for name in bucket.names()}


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
@pytest.mark.parametrize("more", [(), ("--compress", "zstd"), ("--energon",)])
def test_build_to_a_bucket(source, tmp_path, place, built, contents_of, more):
    """All objects are what a build to a folder gives, and nothing else is left there or here."""
    built("build", source, tmp_path / "right", *SMALL, *more)
    dest = f"{place}/set/"
    built("build", source, dest, *SMALL, *more, "--jobs", "2")
    assert objects(dest) == contents_of(tmp_path / "right")
    assert main(["verify", dest, "--quiet", "--jobs", "2"]) == 0


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder of its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_disk_and_order(source, tmp_path, memory, built, temporary, monkeypatch):
    """At most two shards a job are on this machine; index after shard, manifest last, no rest."""
    sent, held = [], []
    put = Bucket.put

    def noted(self, path, name):
        sent.append(name)
        held.append(len(list(temporary.rglob("*.tar"))))
        put(self, path, name)

    monkeypatch.setattr(Bucket, "put", noted)
    built("build", source, memory, *SMALL, "--jobs", "2")
    assert max(held) <= 4
    assert sent[-1] == "dataset.json"
    for name in sent:
        if name.endswith(".ffx"):
            assert sent.index(name.replace(".ffx", ".tar")) < sent.index(name)
    assert list(temporary.iterdir()) == []
    assert not any(name.startswith(".") for name in objects(memory))


@pytest.mark.parametrize("command", ["build", "convert", "foreign"])
def test_resumed_after_a_failed_upload(  # noqa: PLR0917 - fixtures
    source, tmp_path, memory, run, built, contents_of, monkeypatch, command
):
    """What arrived is not sent again; a shard of another size is; other options are refused."""
    built("build", source, tmp_path / "plain", *SMALL)
    right = contents_of(tmp_path / "plain")
    arguments = [
        "build" if command == "build" else "convert",
        source,
        memory,
        *SMALL,
        "--jobs",
        "1",
    ]
    if command == "convert":
        arguments[1] = tmp_path / "plain"
    if command == "foreign":
        arguments[1] = _as_parquet(tmp_path)
        built(*arguments[:2], tmp_path / "right", *SMALL)
        right = contents_of(tmp_path / "right")
    put, sent = Bucket.put, []

    def failing(self, path, name):
        sent.append(name)
        if len(sent) == 10:
            raise StorageError("the line is cut")
        put(self, path, name)

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "put", failing)
        code, _, err = run(*arguments)
    assert code == 1
    assert "the line is cut" in err
    there = objects(memory)
    assert STATE_NAME in there
    assert "dataset.json" not in there
    code, _, err = run(*arguments)
    assert code == 2
    assert "--resume" in err
    code, _, err = run(*arguments, "--resume", "--name", "other")
    assert code == 2
    assert "other sources or options" in err
    first = next(name for name in there if name == "train-000000.tar")
    Bucket(memory).write(first, b"cut")
    again = []
    monkeypatch.setattr(
        Bucket, "put", lambda self, path, name: (again.append(name), put(self, path, name))
    )
    built(*arguments, "--resume")
    assert objects(memory) == right
    assert "train-000000.tar" in again
    assert "train-000001.tar" not in again


def _as_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = random.Random(0)
    pq.write_table(
        pa.table({"image": [draw.randbytes(9000) for _ in range(40)]}), tmp_path / "in.parquet"
    )
    return tmp_path / "in.parquet"


# At its n-th request to the bucket a process kills itself.
SCRIPT = """
import os, signal, sys
at, seen = int(sys.argv[1]), 0
from fastfeed.storage.connection import Connection
call = Connection.call
def counted(self, name, *arguments, **options):
    global seen
    seen += name in {"put_file", "pipe_file", "rm_file"}
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(self, name, *arguments, **options)
Connection.call = counted
from fastfeed_shard.main import main
from fastfeed_shard.scratch import scratch_folder
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("at", [2, 9, 23])
def test_c05_killed_while_it_sends(source, tmp_path, s3, built, contents_of, at):
    """After SIGKILL no manifest is there, and --resume gives what one run gives."""
    built("build", source, tmp_path / "right", *SMALL)
    arguments = ["build", str(source), s3, *SMALL, "--jobs", "1"]
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(at), *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    right = contents_of(tmp_path / "right")
    for name, content in objects(s3).items():
        if not name.startswith("."):
            assert content == right[name]
    assert "dataset.json" not in objects(s3)
    built(*arguments, "--resume")
    assert objects(s3) == right


def test_what_lies_there_is_never_overwritten(source, memory, run, built):
    """Objects of others, or a complete data set, are refused; so is what can't be written to."""
    Bucket(memory).write("notes.txt", b"mine")
    code, _, err = run("build", source, memory, *SMALL)
    assert code == 2
    assert "nothing is overwritten" in err
    assert objects(memory) == {"notes.txt": b"mine"}
    built("build", source, f"{memory}/new", *SMALL)
    code, _, err = run("build", source, f"{memory}/new", *SMALL)
    assert code == 2
    assert "complete data set" in err
    code, out, _ = run("build", source, f"{memory}/new", *SMALL, "--resume")
    assert (code, "complete already" in out) == (0, True)
    code, _, err = run("build", source, f"{memory}/new", "--resume")
    assert code == 2
    assert "other shards" in err
    code, _, err = run("build", source, "https://user:password@host.invalid/x?sig=abc", *SMALL)
    assert code == 2
    assert "cannot be written" in err
    assert "password" not in err
    assert "abc" not in err


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
def test_remote_sources(source, tmp_path, place, built, contents_of, samples_of):
    """Shards of a bucket are converted, merged, resharded, listed, shown and extracted."""
    small = ("--shard-size", "200KiB", "--quiet")
    built("build", source, f"{place}/in", *small)
    built("build", source, tmp_path / "right", *small)
    dest = tmp_path / "out"
    built("convert", f"{place}/in", dest, "--quiet", "--jobs", "2")
    assert contents_of(dest) == contents_of(tmp_path / "right")
    built("convert", f"{place}/in", f"{place}/z", "--compress", "zstd", "--quiet", "--jobs", "2")
    built("reshard", f"{place}/z", tmp_path / "two", "--shards", "2", "--shuffle", "1", "--quiet")
    assert samples_of(tmp_path / "two") == samples_of(dest)
    built(
        *("merge", f"{place}/in", f"{place}/z/dataset.json", f"{place}/m"),
        *("--prefix", "x/,y/", "--quiet", "--jobs", "1"),
    )
    listed = built("ls", f"{place}/m").splitlines()
    assert len(listed) == 80
    assert "y/b/039" in built("ls", f"{place}/m")
    built("extract", f"{place}/in", tmp_path / "files", "--quiet")
    assert (tmp_path / "files/a/000.bin").read_bytes() == (source / "a/000.bin").read_bytes()


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, whole or a range of one."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(403)  # as S3 hides what is missing
            return
        content = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(content))
        part = content[start:stop]
        self.send_response(206 if asked else 200)
        if asked:
            end = start + len(part) - 1
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """The URL of a web server for the files in `tmp_path`."""
    handler = functools.partial(Ranges, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_server(source, tmp_path, web, run, built):
    """A folder of a web server is known by its manifest, and read by ranges."""
    built("build", source, tmp_path / "in", *SMALL)
    manifest, pattern = f"{web}/in/dataset.json", f"{web}/in/train-{{000000..000001}}.tar"
    for number, src in enumerate((f"{web}/in", manifest, pattern)):
        built("convert", src, tmp_path / str(number), "--quiet")
        listed = built("ls", tmp_path / str(number)).splitlines()
        assert len(listed) == (len(built("ls", pattern).splitlines()) if number == 2 else 40)
    assert main(["verify", f"{web}/in", "--quiet"]) == 0
    code, _, err = run("convert", f"{web}/nothing", tmp_path / "no")
    assert code == 2
    assert "holds nothing" in err


def test_foreign_formats_in_a_bucket(tmp_path, memory, built, samples_of):
    """Parquet in a bucket is read by ranges, its folder told by a listing."""
    Bucket(memory).write("data/part-0.parquet", _as_parquet(tmp_path).read_bytes())
    built("convert", memory, tmp_path / "out", "--quiet")
    assert len(samples_of(tmp_path / "out")) == 40


def test_verify_finds_what_is_wrong(source, memory, run, built):
    """A changed byte, a missing index and a shard too many are found, by their URLs."""
    built("build", source, memory, *SMALL)
    right = objects(memory)
    bucket = Bucket(memory)
    shard = bytearray(right["train-000001.tar"])
    shard[2000] ^= 1
    bucket.write("train-000001.tar", bytes(shard))
    bucket.remove(["train-000002.ffx"])
    bucket.write("train-000099.tar", right["train-000000.tar"])
    code, _, err = run("verify", memory)
    assert code == 1
    assert join(memory, "train-000001.tar") in err
    assert "the index is missing" in err
    assert join(memory, "train-000002.tar") in err
    assert "'train-000099.tar'" in err
    bucket.remove(["train-000001.tar"])
    code, _, err = run("verify", memory)
    assert code == 1
    assert "no such object" in err


def test_stage(source, tmp_path, memory, run, built):
    """Shards come to the cache once, and a shelf that is too small keeps what it can."""
    built("build", source, memory, *SMALL)
    shards = [name for name in objects(memory) if name.endswith(".tar")]
    out = built("stage", memory, tmp_path / "cache", "--dry-run")
    assert f"{len(shards)} shards" in out
    assert not (tmp_path / "cache").exists()
    out = built("stage", memory, tmp_path / "cache", "--size", "1GB")
    assert f"{len(shards)} of {len(shards)} shards are in" in out
    out = built("stage", memory, tmp_path / "cache", "--size", "1GB")
    assert " 0 B brought" in out
    code, out, err = run("stage", memory, tmp_path / "small", "--size", "100KiB")
    assert code == 1
    assert f"of {len(shards)} shards are in" in out
    assert memory in err
    code, _, err = run("stage", source, tmp_path / "cache")
    assert code == 2


def test_a_bucket_that_is_not_there(source, s3, run):
    """The error has the URL and the server's word, and no credentials."""
    code, _, err = run("build", source, "s3://no-such-bucket-here/x", *SMALL)
    assert code == 1
    assert "s3://no-such-bucket-here/x" in err
    assert "NoSuchBucket" in err
    assert "a-secret-for-tests" not in err


def test_uploads_that_break(tmp_path, memory, monkeypatch):
    """A line that breaks is tried again; what arrives short each time is an error with its name."""
    slept = []
    patience = Patience(clock=lambda: 0.0, sleep=slept.append, attempts=3)
    bucket = Bucket(memory, patience=patience)
    (tmp_path / "a.tar").write_bytes(b"1234")
    call, failures = Connection.call, 2

    def broken(self, name, *arguments, **options):
        nonlocal failures
        if name == "put_file" and failures:
            failures -= 1
            raise Fault("broken", "reset")
        return call(self, name, *arguments, **options)

    monkeypatch.setattr(Connection, "call", broken)
    bucket.put(tmp_path / "a.tar", "a.tar")
    assert len(slept) == 2
    assert objects(memory) == {"a.tar": b"1234"}

    def short(self, name, *arguments, **options):
        found = call(self, name, *arguments, **options)
        return {**found, "size": 3} if name == "info" else found

    monkeypatch.setattr(Connection, "call", short)
    with pytest.raises(StorageError, match=r"a\.tar.*3 of 4 bytes.*tried 3 times"):
        bucket.put(tmp_path / "a.tar", "a.tar")


def test_what_a_killed_run_left_is_swept(temporary):
    """Folders without a living run are removed by the next; others of any kind are left alone."""
    script = (
        "import os, signal; from fastfeed_shard.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n"
        "    (folder / 'x').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "TMPDIR": str(temporary)},
            check=False,
        )
    assert len(list(temporary.iterdir())) == 1  # the second run swept the first
    (temporary / "fastfeed-shard-notours").mkdir()
    (temporary / "fastfeed-shard-link_001").symlink_to("/etc")
    with scratch_folder() as one:
        with scratch_folder() as other:
            assert one.exists()
            assert one != other
        (one / "x").touch()
        names = {path.name for path in temporary.iterdir()}
        assert names == {"fastfeed-shard-notours", "fastfeed-shard-link_001", one.parent.name}
    assert not one.exists()


def test_notes_that_lie(memory):
    """A note of a shard that is damaged, or of another shard, is no note."""
    from fastfeed_shard.destination import RemoteDestination

    bucket = Bucket(memory)
    bucket.write(STATE_NAME, json.dumps({"plan": "p"}).encode())
    bucket.write("a.tar", b"1234")
    entry = {"name": "a.tar", "bytes": 4, "samples": 1}
    for number, note in enumerate(
        (b"", b"{", b"[]", b"{}", b'{"entry": 7}', json.dumps({"entry": entry}).encode(),
         json.dumps({"entry": entry, "fields": {"x": 1}}).encode())
    ):  # fmt: skip
        bucket.write(f".fastfeed-build/{number}.json", note)
    destination = RemoteDestination(bucket, plan="p", resume=True)
    destination.begin(None)
    assert destination.kept("a.tar") is None
    right = json.dumps({"entry": entry, "fields": {"x": 1}}).encode()
    bucket.write(".fastfeed-build/a.tar.json", right)
    destination.begin(None)
    assert destination.kept("a.tar").entry.samples == 1
    other = RemoteDestination(bucket, plan="q", resume=True)
    with pytest.raises(OptionError, match="other sources"):
        other.begin(None)
