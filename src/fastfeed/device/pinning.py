"""Pinned slots: the used part of each worker's region is registered once, in the background."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from bisect import bisect_right
from typing import TYPE_CHECKING

from fastfeed.device.at_work import at_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.device.device import Device
    from fastfeed.slots.region import Region

log = logging.getLogger("fastfeed")

_STEP = 8 << 20
"""Pieces of a region are registered in multiples of this; a copy cannot reach over two of them."""

_living: weakref.WeakSet[Pinner] = weakref.WeakSet()
# Held while the living ones are looked at, and one of them takes a part of the budget of all.
# Reentrant: what is collected meanwhile may end a loader.
_sharing = threading.RLock()
# And whoever holds it then waits for that loader's threads, which may want it too: they give up.
_PATIENCE_S = 0.5


class Pinner:
    """Registers memory of regions up to a budget, in a thread of its own: it takes 0.6 s a GiB.

    Until a piece is registered, and beyond the budget, copies from it are slower and hold up the
    thread that copies, but are as right.
    """

    def __init__(self, device: Device, *, budget: int, batches: int = 1, regions: int = 1) -> None:
        """`batches` of the first one's size a region will hold; `regions` share the budget."""
        self._device = device
        self._batches = batches
        self._shares = max(1, regions)
        self._budget = budget
        self.asked = 0
        """Bytes that are registered, or are going to be."""
        self._asked: dict[int, int] = {}  # region's base -> bytes asked for
        self._regions: dict[int, Region] = {}  # kept, for their memory is registered
        # Base -> ends of the pieces asked for, known before one is registered: a copy that is
        # given to the device in that moment must not reach over its end either.
        self._borders: dict[int, list[int]] = {}
        self._pinned: list[int] = []  # where registered pieces begin
        self._jobs: queue.SimpleQueue[tuple[int, int, int] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        """The one that registers, once there is something to do."""
        self.nbytes = 0
        """Bytes that are registered."""
        self.refused: str | None = None
        """Why no more is registered, if so."""
        self._closed = False
        with _sharing:  # last: others look at it from now on
            _living.add(self)

    def use(self, region: Region, stop: int) -> None:
        """Have the first `stop` bytes of a region registered; lanes may ask at the same time."""
        if self._closed or self.refused is not None or stop <= self._asked.get(region.base, 0):
            return
        if not _sharing.acquire(timeout=_PATIENCE_S):
            return  # the next batch asks again
        try:
            fits = self._ask(region, stop)
        finally:
            _sharing.release()
        if not fits:
            self._refuse(f"the budget of {self._budget / 2**20:,.0f} MiB is used up")

    def _ask(self, region: Region, stop: int) -> bool:
        """Take a part of the budget and have it registered; false if it is used up."""
        asked = self._asked.get(region.base, 0)
        if stop <= asked:  # by another lane, meanwhile
            return True
        # One budget for all loaders of the process: training and validation share it.
        left = self._budget - sum(one.asked for one in _living)
        stop = self._wished(region, asked, stop, left)
        if stop - asked > left:
            return False
        self.asked += stop - asked
        self._asked[region.base] = stop
        self._regions[region.base] = region
        self._borders.setdefault(region.base, []).append(region.base + stop)
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="fastfeed-pin", daemon=True)
            self.thread.start()
        self._jobs.put((region.base, asked, stop))
        return True

    def _wished(self, region: Region, asked: int, stop: int, left: int) -> int:
        """Return how far a region is best registered now, `stop` at the least."""
        # All that it will need, in one piece if that can be, and a quarter more that others do not
        # need: batches differ in size, and the places of smaller ones leave gaps.
        needed = stop if asked else stop * self._batches
        fair = self._budget // self._shares // _STEP * _STEP
        wished = max(needed, min(needed + needed // 4, fair))
        stop = max(stop, min(wished, asked + left // _STEP * _STEP))
        return min(-(-stop // _STEP) * _STEP, region.capacity)

    @property
    def is_behind(self) -> bool:
        """Whether something is to be registered still; the driver does little else meanwhile."""
        return self.refused is None and self.nbytes < self.asked

    def pieces(self, address: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yield the parts [start, stop) of memory at `address` that may be copied at once."""
        borders = self._borders_of(address)
        start = 0
        while start < nbytes:
            i = bisect_right(borders, address + start)
            stop = min(nbytes, borders[i] - address) if i < len(borders) else nbytes
            yield start, stop
            start = stop

    def _borders_of(self, address: int) -> list[int]:
        for base, region in list(self._regions.items()):
            if base <= address < base + region.capacity:
                return self._borders.get(base, [])
        return []

    def _run(self) -> None:
        with at_work():
            self._device.enter_thread()
            while (job := self._jobs.get()) is not None:
                base, start, stop = job
                why = None if self.refused else self._device.pin(base + start, stop - start)
                if self.refused is None and why is None:
                    self._pinned.append(base + start)
                    self.nbytes += stop - start
                elif why is not None:
                    self._refuse(why)

    def _refuse(self, why: str) -> None:
        self.refused = why
        log.warning(
            "pinned memory: %s; %.0f MiB are pinned, other batches are copied to the GPU from "
            "ordinary memory, which is slower. Raise pinned_budget= or `ulimit -l`, or use fewer "
            "workers",
            why,
            self.nbytes / 2**20,
        )

    def close(self) -> None:
        """Undo all registrations; no copy may be under way."""
        if self.thread is not None:
            self._jobs.put(None)
            self.thread.join()
        self._closed = True
        for address in self._pinned:
            self._device.unpin(address)
        self._pinned.clear()
        self._borders.clear()
        self._regions.clear()
        self._asked.clear()
        self.asked = 0
