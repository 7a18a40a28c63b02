"""The trainer's hand on a worker's region: which batches are lent, and when the last of one died."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    from fastfeed.slots.region import Region


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """Tells when an array of a lease died."""

    __slots__ = ("lease",)
    lease: Lease


class Lease:
    """The extents of one batch: open while arrays are made, lent while one lives, then over."""

    __slots__ = ("_lender", "_living", "_sealed", "_watches", "extents")

    def __init__(self, lender: Lender, extents: Sequence[tuple[int, int]]) -> None:
        self._lender = lender
        self.extents = extents
        self._watches: list[_Watch] = []
        self._living = 0
        self._sealed = False

    def array(self, shape: tuple[int, ...], dtype: DTypeLike, start: int) -> NDArray[Any]:
        """Return an array over the batch's memory; it keeps the batch lent while it lives."""
        if self._sealed:
            raise RuntimeError("a sealed lease lends nothing more")
        array = self._lender.region.array(shape, dtype, start)
        watch = _Watch(array, self._lender.died.append)
        watch.lease = self
        self._watches.append(watch)  # a watch that is itself dropped would never tell
        self._living += 1
        return array

    def seal(self) -> None:
        """End the making of arrays; from now on the batch is over when none of them lives."""
        self._sealed = True
        self._lender.settle(self)

    def forget_one(self) -> bool:
        """Count the death of an array and say whether the batch is over."""
        self._living -= 1
        return self.over

    @property
    def over(self) -> bool:
        """Whether the memory may be used again."""
        return self._sealed and self._living == 0


class Lender:
    """Knows what is lent of one region. Used by the consumer's thread alone.

    Tensors die in any thread, even inside the garbage collector, so a death only appends to a
    queue (atomic, takes no lock); the queue is emptied by `returned`.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.died: deque[_Watch] = deque()
        self._lent: set[Lease] = set()
        self._free: list[Sequence[tuple[int, int]]] = []

    def open(self, extents: Sequence[tuple[int, int]]) -> Lease:
        """Return a lease over a batch's extents."""
        lease = Lease(self, extents)
        self._lent.add(lease)
        return lease

    def settle(self, lease: Lease) -> None:
        """Take the extents of a lease that is over."""
        if lease.over and lease in self._lent:
            self._lent.remove(lease)
            self._free.append(lease.extents)

    @property
    def lent(self) -> int:
        """How many batches are lent now."""
        self._bury()
        return len(self._lent)

    def returned(self) -> list[Sequence[tuple[int, int]]]:
        """Return the extents of each batch that ended since the last call."""
        self._bury()
        free, self._free = self._free, []
        return free

    def _bury(self) -> None:
        while self.died:
            watch = self.died.popleft()
            if watch.lease.forget_one():
                self.settle(watch.lease)
