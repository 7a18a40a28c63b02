"""The decoded frames of compressed shards that are kept, in bounded memory."""

from __future__ import annotations

import os
from itertools import count
from threading import Event
from typing import Any, Final

FRAME_CACHE: Final = 128 << 20
"""Bytes of decoded frames that are kept, by default."""


class FrameCache:
    """Decoded frames of some shards, those used last, of up to `limit` bytes together.

    There is no lock, since one held by another thread while a process forks would never be
    released: each step on the dictionaries is atomic. Two threads may keep a frame that the other
    did not count, so `limit` may be exceeded by as many frames as threads. A copy for another
    process is empty.
    """

    def __init__(self, limit: int = FRAME_CACHE) -> None:
        self._limit = limit
        self._room = 0
        """Bytes that may come before those that are kept have to be counted again."""
        self._frames: dict[int, memoryview] = {}
        self._used: dict[int, int] = {}
        self._coming: dict[tuple[int, int], Event] = {}
        """Frames that a thread of a process brings; a forked child waits for none of its parent."""
        self._clock = count()
        self._shards = count()
        self._last = -1
        """The frame in which a request ended last that did not find it here."""
        self._goes_on = True
        """Whether it was asked for again."""

    def base(self) -> int:
        """Return the number from which on a shard numbers its frames."""
        return next(self._shards) << 32

    def get(self, key: int) -> memoryview | None:
        """Return a frame, if it is kept."""
        if key == self._last:
            self._goes_on = True
        frame = self._frames.get(key)
        if frame is not None:
            self._used[key] = next(self._clock)
        return frame

    def claim(self, key: int) -> Event | None:
        """Make it ours to bring a frame until we `settle`; else return what its bringer sets."""
        ours = Event()
        coming = self._coming.setdefault((os.getpid(), key), ours)
        return None if coming is ours else coming

    def settle(self, key: int) -> None:
        """Let go of a frame, whether it was put or has failed, or its bringer was interrupted."""
        coming = self._coming.pop((os.getpid(), key), None)
        if coming is not None:
            coming.set()

    def goes_on(self, key: int) -> bool:
        """Say whether the rest of a frame will be asked for in which a request ends.

        As it was with the one before: of several processes that read in order each goes on
        elsewhere, one alone goes on there.
        """
        went_on, self._goes_on, self._last = self._goes_on, False, key
        return went_on

    def put(self, key: int, frame: memoryview) -> None:
        """Keep a frame, and let go of those that were not used for longest."""
        self._used[key] = next(self._clock)
        self._frames[key] = frame
        self._room -= len(frame)
        if self._room >= 0:
            return
        held = self._frames.copy()
        nbytes = sum(map(len, held.values()))
        if nbytes > self._limit:
            # One byte in eight more than need be, so that sorting them costs little for each.
            wanted = self._limit - self._limit // 8
            for old in sorted(held, key=lambda one: self._used.get(one, -1)):
                if nbytes <= wanted or old == key:
                    break
                self._frames.pop(old, None)
                self._used.pop(old, None)
                nbytes -= len(held[old])
        self._room = self._limit - nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrameCache, (self._limit,))
