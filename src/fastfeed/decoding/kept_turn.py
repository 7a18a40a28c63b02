"""Whose turn it is to change a file of kept arrays: one at a time, and nobody waits."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES: Final = 64
# Type, whence, start, length and process of a `struct flock`. A few bytes from the beginning stand
# for the whole file.
_FLOCK: Final = struct.Struct("hhqqi4x")
_LOCK: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 64, 0)
_UNLOCK: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 64, 0)


@contextmanager
def alone_in(descriptor: int) -> Iterator[bool]:
    """Keep others from changing a file, for microseconds; False if that cannot be had soon.

    Nobody waits for a process that was stopped: a sample is rather not kept. The lock is that of a
    file that is opened for it alone, and ends with it: so it keeps out other threads, and forks,
    and does not fall when the process closes another descriptor of the file, as its own would.
    OSError if the file cannot be opened or the system has no such locks.
    """
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        alone = _locked(own)
        try:
            yield alone
        finally:
            fcntl.fcntl(own, fcntl.F_OFD_SETLK, _UNLOCK)  # a fork may have got a copy of it
    finally:
        os.close(own)


def _locked(descriptor: int) -> bool:
    for _ in range(_TRIES):
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK)
        except (BlockingIOError, PermissionError):  # either says that another has it
            time.sleep(0)  # lets others run
        else:
            return True
    return False
