"""Locks that the kernel keeps: they end with the process that holds them, however it ends.

A lock is a file's descriptor with `flock` on it. No lock is a file that merely exists, so nothing
that a killed process leaves behind can be taken for a holder. A forked child closes the locks that
it inherits: it would keep them for a parent that has died.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from fastfeed.errors import StorageError
from fastfeed.storage.descriptor import Descriptor

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock(Descriptor):
    """A locked file, until `close` or until the last reference dies."""

    __slots__ = ()

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        _held.add(self)

    def is_removed(self) -> bool:
        """Say whether the file has lost its name: then others lock another file of that name."""
        return os.fstat(self.descriptor).st_nlink == 0


def lock_now(path: str, *, create: bool = False, shared: bool = False) -> Lock | None:
    """Lock a file, or return None if another has it; OSError if it cannot be opened.

    `shared` goes together with other shared locks, and keeps out those that are not.
    """
    lock = _opened(path, create=create)
    try:
        fcntl.flock(lock.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except BaseException:
        lock.close()
        raise
    return lock


def _opened(path: str, *, create: bool) -> Lock:
    # Between the two calls in this line a fork of another thread would copy the descriptor unseen;
    # then what the lock guards is taken for alive until that child ends, and streamed meanwhile.
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    return Lock(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))


def lock_within(path: str, *, seconds: float, create: bool = False, shared: bool = False) -> Lock:
    """Lock a file, waiting for whoever has it.

    Raises StorageError, which names the holder, if that takes longer than `seconds`: nobody waits
    for ever on a process that was stopped.
    """
    lock = lock_now(path, create=create, shared=shared)
    if lock is not None:
        return lock
    lock = _opened(path, create=create)
    descriptor, got = lock.descriptor, threading.Event()

    def wait() -> None:
        # Closed meanwhile, the file lives on until the call returns, and is unlocked then.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        got.set()

    try:
        # The kernel's own wait has no limit of time, and a signal is the trainer's to use.
        threading.Thread(target=wait, name="fastfeed-lock", daemon=True).start()
        if got.wait(seconds):
            return lock
        status = os.fstat(descriptor)
        who = holder(Path("/proc/locks").read_text(encoding="ascii"), inode=status.st_ino)
    except OSError:
        who = None
    except BaseException:
        lock.close()
        raise
    lock.close()
    by = "another process" if who is None else f"process {who}"
    raise StorageError(
        f"{path!r} is locked by {by} for {seconds:.0f} s",
        way_out="See what that process does; end it if it was stopped",
    )


def holder(locks: str, *, inode: int) -> int | None:
    """Return the process that holds a file's lock, from the text of /proc/locks."""
    for line in locks.splitlines():
        parts = line.split()
        if len(parts) >= 6 and parts[1] == "FLOCK" and parts[5].rpartition(":")[2] == str(inode):
            return int(parts[4])
    return None


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_let_go_in_child)
