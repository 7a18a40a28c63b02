"""Free space of a region: first fit, lowest address first, so that warm pages are used again."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

ALIGNMENT = 64
"""Extents begin and end at cache lines, so that no two batches share one."""
PAGE, LARGE = 4096, 1 << 20
"""Pieces of at least `LARGE` bytes begin at a page: some machines read files many times slower into
memory that lies a few bytes behind the file's own place in a page."""


class Extent(NamedTuple):
    """A piece of a region, in bytes; `stop` is exclusive."""

    start: int
    stop: int


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def alignment_of(nbytes: int) -> int:
    """Return what the address of a piece of `nbytes` is to be a multiple of."""
    return PAGE if nbytes >= LARGE else ALIGNMENT


class Extents:
    """Which parts of `capacity` bytes are free; neighbours are always merged."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        self._starts = [0] if self.capacity else []
        self._stops = [self.capacity] if self.capacity else []

    @property
    def free(self) -> int:
        """Bytes that nobody has taken."""
        return sum(self._stops) - sum(self._starts)

    def take(self, nbytes: int) -> Extent | None:
        """Take the lowest free piece of at least `nbytes`, rounded up; None if there is none."""
        size = max(aligned(nbytes), ALIGNMENT)
        alignment = alignment_of(size)
        for i, (free, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            start = free + -free % alignment
            if start + size <= stop:
                left = [(a, b) for a, b in ((free, start), (start + size, stop)) if a < b]
                self._starts[i : i + 1] = [a for a, _ in left]
                self._stops[i : i + 1] = [b for _, b in left]
                return Extent(start, start + size)
        return None

    def give(self, extent: Extent) -> None:
        """Return a piece that was taken; ValueError if it is free already or was never part."""
        start, stop = extent
        if start == stop:
            return
        i = bisect_right(self._starts, start)
        before = self._stops[i - 1] if i else 0
        after = self._starts[i] if i < len(self._starts) else self.capacity
        if not (before <= start < stop <= after):
            raise ValueError(f"{extent} is not lent")
        joins_before = i > 0 and before == start
        joins_after = i < len(self._starts) and after == stop
        if joins_before and joins_after:
            self._stops[i - 1] = self._stops[i]
            del self._starts[i], self._stops[i]
        elif joins_before:
            self._stops[i - 1] = stop
        elif joins_after:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._stops.insert(i, stop)
