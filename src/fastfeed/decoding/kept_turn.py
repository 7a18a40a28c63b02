"""Whose turn it is to change a file of kept arrays: one at a time, and nobody waits."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES: Final = 64
_BYTES: Final = 64
"""Of the file, from its beginning, stand for all of it."""


class _OfProcess:
    """The lock of all threads of a process, which may have the same file open more than once."""

    def __init__(self) -> None:
        self.turn = threading.Lock()

    def renew(self) -> None:
        """Begin in a forked child: who had the lock stayed behind."""
        self.turn = threading.Lock()


_of_process = _OfProcess()
os.register_at_fork(after_in_child=_of_process.renew)


@contextmanager
def alone_in(descriptor: int) -> Iterator[bool]:
    """Keep others from changing a file, for microseconds; False if that cannot be had soon.

    Nobody waits for a process that was stopped: a sample is rather not kept. The lock is the
    process's, and ends with it; its threads have one beside it.
    """
    turn = _of_process.turn
    for _ in range(_TRIES):
        if turn.acquire(blocking=False):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _BYTES)
            except OSError:
                turn.release()
            else:
                break
        time.sleep(0)  # lets others run
    else:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, _BYTES)
        turn.release()
