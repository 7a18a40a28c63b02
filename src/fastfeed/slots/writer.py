"""The worker's hand on its region: memory for the batch it is making, in one or few extents."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.slots.extents import Extent, Extents, aligned, alignment_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import DTypeLike, NDArray

    from fastfeed.slots.region import Region


class SlotWriter:
    """Gives out the memory of one batch at a time: `begin`, `empty` as often as needed, `commit`.

    The first extent is as large as the batch before needed, so a steady stream takes one extent a
    batch. Where the region is full, `empty` gives private memory instead of waiting; `spilled`
    says how many bytes went that way.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._extents = Extents(region.capacity)
        self._taken: list[Extent] = []
        self._given: list[weakref.ref[NDArray[Any]]] = []
        self._out: dict[int, list[weakref.ref[NDArray[Any]]]] = {}
        self._waiting: list[Sequence[tuple[int, int]]] = []
        self._next = self._stop = 0
        self._used = 0
        self._expected = 0
        self.spilled = 0

    def begin(self) -> None:
        """Start a batch; what was lent to one that was not committed is taken back."""
        self.give_back([self.commit()])
        self._used = self.spilled = 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return uninitialised memory that goes out with the batch; see `Extents` for alignment."""
        kind = np.dtype(dtype)
        nbytes = kind.itemsize
        for length in shape:
            nbytes *= length
        if nbytes == 0:
            return np.empty(shape, kind)
        size = aligned(nbytes)
        gap = -self._next % alignment_of(size)
        if self._stop - self._next < gap + size:
            if not self._extend(size):
                self.spilled += nbytes
                return np.empty(shape, kind)
            gap = 0  # a new extent begins where the piece may
        start = self._next + gap
        self._next = start + size
        self._used += -self._used % alignment_of(size) + size  # as if all lay in one extent
        array = self._region.array(shape, kind, start)
        self._given.append(weakref.ref(array))
        return array

    def place_of(self, address: int, nbytes: int) -> int | None:
        """Return the offset of memory at `address` if it lies in this batch's extents."""
        offset = address - self._region.base
        for start, stop in self._taken:
            if start <= offset and offset + nbytes <= stop:
                return offset
        return None

    def commit(self) -> list[Extent]:
        """End the batch and return its extents; they are lent until `give_back`."""
        taken, self._taken = self._taken, []
        if self._next < self._stop:
            last = taken.pop()
            if self._next > last.start:
                taken.append(Extent(last.start, self._next))
            self._extents.give(Extent(self._next, last.stop))
        self._expected = self._used
        self._next = self._stop = 0
        if taken:
            self._out[taken[0].start] = self._given
        self._given = []
        return taken

    def give_back(self, batches: Iterable[Sequence[tuple[int, int]]]) -> None:
        """Take the extents of batches back that are gone on the trainer's side.

        A data set or collate function may have kept a tensor of such a batch in this process: its
        memory waits until that one is gone too.
        """
        waiting, self._waiting = [*self._waiting, *batches], []
        for extents in waiting:
            if not extents:
                continue
            if any(given() is not None for given in self._out.get(extents[0][0], ())):
                self._waiting.append(extents)
                continue
            self._out.pop(extents[0][0], None)
            for start, stop in extents:
                self._extents.give(Extent(start, stop))

    def _extend(self, size: int) -> bool:
        """Take a further extent of at least `size` bytes to give out from."""
        if self._next < self._stop:  # what is left of the last one is too small
            last = self._taken.pop()
            if self._next > last.start:
                self._taken.append(Extent(last.start, self._next))
            self._extents.give(Extent(self._next, last.stop))
        expected = max(size, self._expected - self._used)
        extent = self._extents.take(expected) or self._extents.take(size)
        if extent is None:
            self._next = self._stop = 0
            return False
        self._taken.append(extent)
        self._next, self._stop = extent
        return True
