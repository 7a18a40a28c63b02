"""A line on the terminal while the loop waits long for a batch: what for, and for how long."""

from __future__ import annotations

import sys
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# Seconds until the line appears, and until it changes.
_AFTER_S, _EVERY_S = 5.0, 1.0
# Goes back to the line's beginning and empties it.
_CLEAR = "\r\x1b[K"


class LongWaits:
    """Receives for a loop, and tells a person when that takes long."""

    def __init__(
        self,
        stream: TextIO,
        *,
        after_s: float = _AFTER_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream = stream
        self._after_s = after_s
        self._clock = clock

    def receive(
        self,
        receive: Callable[[float | None], _T | None],
        timeout: float | None,
        *,
        since: float,
        what: Callable[[], str],
    ) -> _T | None:
        """Return what `receive(timeout)` does; `what` says what is waited for, since when."""
        called, told = self._clock(), False
        try:
            while True:
                now = self._clock()
                left = None if timeout is None else max(0.0, called + timeout - now)
                turn = _EVERY_S if told else max(0.0, since + self._after_s - now)
                found = receive(turn if left is None else min(turn, left))
                waited = self._clock()
                if found is not None or (left is not None and waited - now >= left):
                    return found
                if waited - now < turn / 2:
                    return None  # it did not wait: there is nothing more to come
                told = True
                line = f"fastfeed: waiting {waited - since:.0f} s for {what()}"
                # One that is wrapped could not be emptied.
                self._write(f"{_CLEAR}{line[: get_terminal_size().columns - 1]}")
        finally:
            if told:
                self._write(_CLEAR)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone; that is no reason to end a training
            return


def on_terminal() -> LongWaits | None:
    """Return who tells of long waits; None where nobody watches the standard error."""
    stream = sys.stderr
    if stream is None or stream.closed or not stream.isatty():
        return None
    return LongWaits(stream)
