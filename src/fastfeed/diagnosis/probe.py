"""A thread that wants to go on every few milliseconds, and counts how often it is held up.

A thread that wakes needs a core and the GIL. The kernel says how long it queued for the core; what
is left is the GIL, which a thread that computes in Python gives away some milliseconds later.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from fastfeed.diagnosis.counters import queued_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_EVERY_S: Final = 0.004
# More than timers are late by. A thread that computes in Python gives the GIL away after 5 ms, or
# sooner where it calls something that releases it.
_LONG_S: Final = 0.0007
# Wake-ups until `beside` is called again.
_BESIDE: Final = 5


class Probe:
    """Samples while it is entered; `late` is the part of the wake-ups that were held up."""

    def __init__(self) -> None:
        self.woken = self.held_up = 0
        self.collecting_s = self.longest_s = 0.0
        """Pauses of Python's garbage collector: all together, and the longest."""
        self._began_s = 0.0
        self.beside: Callable[[], None] | None = None
        """Called now and then by the same thread."""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def late(self) -> float:
        """Part of all wake-ups so far that came late."""
        return self.held_up / self.woken if self.woken else 0.0

    def __enter__(self) -> None:
        self._ending.clear()
        gc.callbacks.append(self._collects)
        self._thread = threading.Thread(target=self._sample, name="fastfeed-probe", daemon=True)
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        gc.callbacks.remove(self._collects)
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _collects(self, phase: str, info: dict[str, int]) -> None:  # noqa: ARG002 - Python's
        now = time.monotonic()
        if phase == "start":
            self._began_s = now
        elif self._began_s:  # else it had begun before us
            took, self._began_s = now - self._began_s, 0.0
            self.collecting_s += took
            self.longest_s = max(self.longest_s, took)

    def _sample(self) -> None:
        try:
            queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            queue = -1
        try:
            before = _queued_s(queue)
            while True:
                begin = time.monotonic()
                if self._ending.wait(_EVERY_S):
                    return
                late = time.monotonic() - begin - _EVERY_S
                queued = _queued_s(queue)
                self.woken += 1
                self.held_up += late - (queued - before) > _LONG_S
                before = queued
                if self.beside is not None and self.woken % _BESIDE == 0:
                    self.beside()
        finally:
            if queue >= 0:
                os.close(queue)


def _queued_s(descriptor: int) -> float:
    """Return for how long the thread has waited for a core so far; 0.0 if that is not told."""
    if descriptor < 0:
        return 0.0
    return queued_s(os.pread(descriptor, 96, 0))
