"""Locks end with their holder, are never inherited, and are not waited for without bound."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from fastfeed.errors import StorageError
from fastfeed.staging.locks import holder, lock_now, lock_within


@pytest.fixture
def path(tmp_path):
    """A file to lock."""
    (tmp_path / "x").touch()
    return str(tmp_path / "x")


def test_one_at_a_time_or_shared(path, leak_gauge):
    """One holder alone, or several that share; closing twice is fine."""
    with lock_now(path) as lock:
        assert lock_now(path) is None
        assert lock_now(path, shared=True) is None
    lock.close()
    with lock_now(path, shared=True), lock_now(path, shared=True):
        assert lock_now(path) is None
    assert lock_now(path) is not None


def test_c17_a_killed_holder_holds_nothing(path, processes):
    """The lock of a process that got SIGKILL is free at once, and its content means nothing."""
    start, ends = processes
    receiver, sender = os.pipe()

    def hold():
        lock = lock_now(path)
        os.write(sender, b"x")
        signal.pause()
        lock.close()

    child = start(hold)
    assert os.read(receiver, 1) == b"x"
    assert lock_now(path) is None
    os.kill(child, signal.SIGKILL)
    assert ends(child) == [-signal.SIGKILL]
    lock_now(path).close()
    os.close(receiver)
    os.close(sender)


def test_c17_waiting_is_bounded_and_names_the_holder(path):
    """Whoever waits for a stopped process gives up, and says for whom and what it waited."""
    with lock_now(path), pytest.raises(StorageError) as caught:
        lock_within(path, seconds=0.05)
    assert repr(path) in str(caught.value)
    assert f"process {os.getpid()} for" in str(caught.value)


def test_waiting_ends_with_the_lock(path, leak_gauge):
    """The wait is the kernel's: it ends when the holder lets go."""
    lock = lock_now(path)
    threading.Timer(0.05, lock.close).start()
    with lock_within(path, seconds=30):
        assert lock_now(path) is None


def test_a_fork_takes_no_lock_with_it(path, processes):
    """A child that outlives its parent's lock does not keep it."""
    start, ends = processes
    receiver, sender = os.pipe()
    ready, done = os.pipe()
    lock = lock_now(path)

    def live_on():
        os.close(sender)
        os.write(done, b"x")
        os.read(receiver, 1)

    child = start(live_on)
    assert os.read(ready, 1) == b"x"
    lock.close()
    lock_now(path).close()
    os.close(sender)
    assert ends(child) == [0]
    for descriptor in (receiver, ready, done):
        os.close(descriptor)


def test_the_holder_is_found_in_the_kernels_list():
    """The line of the file's own lock counts; other kinds and other files do not."""
    text = (
        "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 fe:00:78 0 EOF\n"
        "3: FLOCK  ADVISORY  WRITE 13 fe:00:77 0 EOF\n3: -> FLOCK ADVISORY WRITE 14 fe:00:77 0 EOF"
    )
    assert holder(text, inode=77) == 13
    assert holder("", inode=77) is None
