"""C05: whatever ends a build, no half shard has a final name, and going on gives the same bytes."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys

import pytest

from fastfeed.errors import OptionError
from fastfeed_shard import scratch
from fastfeed_shard.folder import STATE_NAME, DatasetFolder

SMALL = ("--shard-size", "64KiB", "--quiet")


@pytest.fixture
def source(make_tree):
    """Forty files of 5 to 15 kB in two classes: eight shards."""
    random_bytes = random.Random(0).randbytes
    return make_tree(
        {f"{'ab'[n % 2]}/{n:03d}.bin": random_bytes(5000 + 250 * n) for n in range(40)}
    )


def finals(folder):
    """The names in a folder that are neither hidden nor temporary."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


@pytest.mark.parametrize("attempt", range(10))
def test_c05_killed_at_any_point(source, tmp_path, built, contents_of, run_killed, attempt):
    """After SIGKILL each shard that has its name is whole; --resume completes it byte for byte."""
    built("build", source, tmp_path / "right", *SMALL)
    right = contents_of(tmp_path / "right")
    out = tmp_path / "out"
    at = random.Random(attempt).randrange(1, 70)
    killed = run_killed(at, "build", source, out, "--jobs", "1", *SMALL)
    assert killed.returncode == -signal.SIGKILL
    there = finals(out) if out.exists() else []
    for name in there:
        assert (out / name).read_bytes() == right[name]
    built("build", source, out, "--resume", *SMALL)
    assert contents_of(out) == right


def test_c05_killed_with_its_workers(source, tmp_path, built, contents_of, run_killed):
    """The same with two jobs, of which one is killed: the build says so and can go on."""
    built("build", source, tmp_path / "right", *SMALL)
    out = tmp_path / "out"
    killed = run_killed(25, "build", source, out, "--jobs", "2", *SMALL)
    assert killed.returncode == 1
    assert "was killed by SIGKILL while it worked on train-00000" in killed.stderr
    assert "--resume" in killed.stderr
    assert not [name for name in os.listdir(out) if name.endswith(".tmp")]
    built("build", source, out, "--resume", *SMALL)
    assert contents_of(out) == contents_of(tmp_path / "right")


def test_c05_killed_before_its_workers(source, tmp_path, run, contents_of, run_killed):
    """A build whose workers outlive it for a moment doesn't disturb the next one."""
    assert run("build", source, tmp_path / "right", *SMALL)[0] == 0
    out = tmp_path / "out"
    killed = run_killed(30, "build", source, out, "--jobs", "2", *SMALL, victim="build")
    assert killed.returncode == -signal.SIGKILL
    code, _, err = run("build", source, out, "--resume", *SMALL)
    assert code == 0, err
    assert contents_of(out) == contents_of(tmp_path / "right")


@pytest.fixture
def half_built(source, tmp_path, run_killed):
    """A build that failed after its first shards, as if the disk had been full."""
    out = tmp_path / "out"
    killed = run_killed(40, "build", source, out, "--jobs", "1", *SMALL)
    assert killed.returncode == -signal.SIGKILL
    assert any(name.endswith(".tar") for name in finals(out))
    return out


def test_unfinished_build_is_not_overwritten(source, half_built, run):
    """Without --resume it is refused, and the message says what to do."""
    before = finals(half_built)
    code, _, err = run("build", source, half_built, *SMALL)
    assert code == 2
    assert "--resume" in err
    assert finals(half_built) == before


def test_resume_refuses_another_plan(source, half_built, run):
    """Other options or other files are not mixed into what is there."""
    code, _, err = run("build", source, half_built, "--resume", "--shard-size", "32KiB")
    assert code == 2
    assert "other files or options" in err
    (source / "a/000.bin").write_bytes(b"changed")
    assert run("build", source, half_built, "--resume", *SMALL)[0] == 2


def test_resume_proves_what_it_keeps(source, half_built, tmp_path, built, contents_of):
    """A shard damaged after it was finished is written again."""
    built("build", source, tmp_path / "right", *SMALL)
    shard = half_built / "train-000000.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    built("build", source, half_built, "--resume", *SMALL)
    assert contents_of(half_built) == contents_of(tmp_path / "right")


def test_two_builds_at_once(source, half_built, run):
    """The second is refused while the first one holds the folder."""
    with (half_built / STATE_NAME).open("r+") as state:
        plan = json.load(state)
        state.seek(0)
        state.write(json.dumps(plan | {"pid": os.getppid()}))
        state.truncate()  # the pid before may have been a longer number
        state.flush()
        fcntl.flock(state, fcntl.LOCK_EX)
        code, _, err = run("build", source, half_built, "--resume", *SMALL)
    assert code == 2
    assert f"another process ({os.getppid()})" in err


def test_a_lock_on_a_state_that_lost_its_name_is_none(tmp_path, monkeypatch):
    """Who opened the state while another writer removed it begins anew, and so holds the folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    first = DatasetFolder(folder, name="train", plan="a")
    first.__enter__()
    lock, ends = fcntl.flock, [first]

    def late(descriptor, operation):
        if ends:
            ends.pop().__exit__(None, None, None)
        return lock(descriptor, operation)

    monkeypatch.setattr("fastfeed_shard.folder.fcntl.flock", late)
    with DatasetFolder(folder, name="train", plan="b"):
        assert (folder / STATE_NAME).exists()
        with (
            pytest.raises(OptionError, match="another process"),
            DatasetFolder(folder, name="train", plan="c"),
        ):
            pass


def test_a_data_set_finished_meanwhile_stays_finished(tmp_path, monkeypatch):
    """Who came just before it was complete is refused, and leaves no state in it."""
    folder = tmp_path / "out"
    first = DatasetFolder(folder, name="train", plan="a")
    first.__enter__()
    opened, ends = os.open, [first]

    def late(path, *arguments, **options):
        if ends:
            (folder / "dataset.json").write_bytes(b"{}")
            ends[0].complete()
            ends.pop().__exit__(None, None, None)
        return opened(path, *arguments, **options)

    monkeypatch.setattr("fastfeed_shard.folder.os.open", late)
    with (
        pytest.raises(OptionError, match="complete"),
        DatasetFolder(folder, name="train", plan="b", resume=True),
    ):
        pass
    assert os.listdir(folder) == ["dataset.json"]


def test_orphans_that_hang_are_not_waited_for_without_end(source, half_built, run, monkeypatch):
    """Workers of a dead build that keep the lock are an error after a while."""
    monkeypatch.setattr("fastfeed_shard.folder._WAIT_S", 0.0)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with (half_built / STATE_NAME).open("r+") as state:
        plan = json.load(state)
        state.seek(0)
        state.write(json.dumps(plan | {"pid": dead.pid}))
        state.truncate()
        state.flush()
        fcntl.flock(state, fcntl.LOCK_EX)
        code, _, err = run("build", source, half_built, "--resume", *SMALL)
    assert code == 2
    assert "a run that has ended" in err


def test_scratch_folders_of_killed_runs_are_swept(tmp_path, monkeypatch):
    """With a lock that is free or without one; in use, or not empty and without a lock: kept."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("locked01", "before01", "nearly01", "another1", "in_use01"):
        (tmp_path / f"fastfeed-shard-{name}").mkdir()
    for name in ("locked01", "nearly01", "in_use01"):
        (tmp_path / f"fastfeed-shard-{name}" / "lock").touch()
    (tmp_path / "fastfeed-shard-another1" / "data").touch()
    (tmp_path / "fastfeed-shard-locked01" / "files").mkdir()
    with (tmp_path / "fastfeed-shard-in_use01" / "lock").open() as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        with scratch.scratch_folder() as folder:
            assert folder.is_dir()
            left = set(os.listdir(tmp_path)) - {folder.parent.name}
    assert left == {"fastfeed-shard-another1", "fastfeed-shard-in_use01"}


def test_a_scratch_folder_that_another_run_swept_is_made_anew(tmp_path, monkeypatch):
    """Between its making and its lock it looks like one that was left behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened, sweeps = os.open, [tmp_path]

    def late(path, *arguments, **options):
        if sweeps:
            scratch._sweep(sweeps.pop())
        return opened(path, *arguments, **options)

    monkeypatch.setattr("fastfeed_shard.scratch.os.open", late)
    with scratch.scratch_folder() as folder:
        assert folder.is_dir()
    assert not os.listdir(tmp_path)


def test_disk_full(source, tmp_path, run, monkeypatch):
    """The error names the file, and what was finished stays for --resume."""
    write, total = os.write, 0

    def full(file, data):
        nonlocal total
        total += len(data)
        if total > 150_000:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr("fastfeed_shard.packing.os.write", full)
    code, _, err = run("build", source, tmp_path / "out", "--jobs", 1, *SMALL)
    assert code == 1
    assert "No space left on device" in err
    names = finals(tmp_path / "out")
    assert "train-000000.tar" in names
    assert "dataset.json" not in names
    assert not [name for name in os.listdir(tmp_path / "out") if name.endswith(".tmp")]
    monkeypatch.undo()
    assert run("build", source, tmp_path / "out", "--resume", *SMALL)[0] == 0
