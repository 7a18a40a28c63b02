"""What breaks while a data set goes to a bucket: uploads, the line, the build, its notes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from fastfeed.errors import OptionError, StorageError
from fastfeed.storage.connection import Connection
from fastfeed.storage.faults import Fault
from fastfeed.storage.patience import Patience
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.folder import STATE_NAME
from fastfeed_shard.scratch import scratch_folder

SMALL = ("--shard-size", "100KiB", "--quiet")


@pytest.mark.parametrize("command", ["build", "convert", "foreign"])
def test_resumed_after_a_failed_upload(  # noqa: PLR0917 - fixtures
    source, tmp_path, memory, run, built, contents_of, monkeypatch, command, parquet
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
        arguments[1] = parquet
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
    there = contents_of(memory)
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
    assert contents_of(memory) == right
    assert "train-000000.tar" in again
    assert "train-000001.tar" not in again


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
    for name, content in contents_of(s3).items():
        if not name.startswith("."):
            assert content == right[name]
    assert "dataset.json" not in contents_of(s3)
    built(*arguments, "--resume")
    assert contents_of(s3) == right


def test_uploads_that_break(tmp_path, memory, monkeypatch, contents_of):
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
    assert contents_of(memory) == {"a.tar": b"1234"}

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
