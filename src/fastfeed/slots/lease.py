"""The trainer's hand on a worker's region: what is lent, and when the last of a batch died."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any

from fastfeed.slots import forks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    from fastfeed.slots.region import Region


class State(Enum):
    """Where a lease stands; it only moves downwards in this list."""

    OPEN = "open"
    """Arrays over the batch's memory are being made."""
    LENT = "lent"
    """No more are made; at least one lives."""
    OVER = "over"
    """None lives any more: the memory may be used again."""


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """Tells when an array of a lease died."""

    __slots__ = ("lease",)
    lease: Lease


class Lease:
    """The extents of one batch, lent as long as an array over them lives."""

    __slots__ = ("_lender", "_living", "_watches", "extents", "moment", "state")

    def __init__(self, lender: Lender, extents: Sequence[tuple[int, int]]) -> None:
        self._lender = lender
        self.extents = extents
        self.moment = forks.moment()
        self.state = State.OPEN
        self._watches: list[_Watch] = []
        self._living = 0

    def array(self, shape: tuple[int, ...], dtype: DTypeLike, start: int) -> NDArray[Any]:
        """Return an array over the batch's memory; it keeps the batch lent while it lives."""
        self._must_be(State.OPEN)
        array = self._lender.region.array(shape, dtype, start)
        self._living += 1  # before anybody can tell of its death
        watch = _Watch(array, self._lender.died.append)
        watch.lease = self
        self._watches.append(watch)  # a watch that is itself dropped would never tell
        return array

    def seal(self) -> None:
        """End the making of arrays; from now on the batch is over when none of them lives."""
        self._must_be(State.OPEN)
        self.state = State.LENT
        self._lender.settle(self)

    def lose_one(self) -> None:
        """Count the death of an array."""
        if self._living == 0:
            raise RuntimeError("more arrays of a lease died than were made")
        self._living -= 1

    def end(self) -> bool:
        """Say whether the batch is over, and if so let go of its watches."""
        if self.state is State.LENT and self._living == 0:
            self.state = State.OVER
            self.drop_watches()
        return self.state is State.OVER

    def drop_watches(self) -> None:
        """Stop watching."""
        # A watch and its lease hold each other; otherwise only the garbage collector would free
        # them, and trainings often switch it off.
        self._watches.clear()

    def _must_be(self, state: State) -> None:
        if self.state is not state:
            raise RuntimeError(f"the lease is {self.state.value}, not {state.value}")


class Lender:
    """Knows what is lent of one region; threads may open leases and take extents back at a time.

    Tensors die in any thread, even inside the garbage collector, so a death only appends to a
    queue (atomic, takes no lock); the queue is emptied by `returned`. In a forked copy of the
    trainer tensors die as well: that fills the copy's queue, which nobody reads.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.closed = False
        # Reentrant: what dies while it is held may end a loader, and that closes its lenders.
        self._lock = threading.RLock()
        self.died: deque[_Watch] = deque()
        self._lent: set[Lease] = set()
        self._free: list[Sequence[tuple[int, int]]] = []
        self._held: list[Lease] = []
        """Over here, but a fork may still read them."""
        self.witnesses: deque[forks.Witness] = deque()
        forks.watch(self)

    def lends(self) -> bool:
        """Say whether any batch is lent, or held for a fork; any thread may ask."""
        return bool(self._lent or self._held)

    def open(self, extents: Sequence[tuple[int, int]]) -> Lease:
        """Return a lease over a batch's extents."""
        lease = Lease(self, extents)
        with self._lock:
            self._lent.add(lease)
        return lease

    def settle(self, lease: Lease) -> None:
        """Take the extents of a lease back if it is over."""
        with self._lock:
            if lease.end() and lease in self._lent:
                self._lent.remove(lease)
                if lease.extents and self._is_shared(lease):
                    self._held.append(lease)
                elif lease.extents:
                    self._free.append(lease.extents)

    @property
    def lent(self) -> int:
        """How many batches are lent now."""
        with self._lock:
            self._bury()
            return len(self._lent)

    def returned(self) -> list[Sequence[tuple[int, int]]]:
        """Return the extents of each batch that ended since the last call."""
        with self._lock:
            self._bury()
            for witness in list(self.witnesses):  # another thread may be adding one
                if witness.gone():
                    self.witnesses.remove(witness)
            held, self._held = self._held, []
            for lease in held:
                if self._is_shared(lease):
                    self._held.append(lease)
                else:
                    self._free.append(lease.extents)
            free, self._free = self._free, []
            return free

    def _is_shared(self, lease: Lease) -> bool:
        """Say whether a fork that still lives was made while the lease was lent."""
        return any(one.moment > lease.moment and not one.gone() for one in list(self.witnesses))

    def close(self) -> None:
        """Forget what is lent, for the worker is gone; living arrays keep their memory mapped."""
        with self._lock:
            self.closed = True
            for lease in self._lent:
                lease.drop_watches()
            self._lent.clear()
            self._held.clear()
            self.witnesses.clear()
            self.died.clear()

    def _bury(self) -> None:
        while self.died:
            lease = getattr(self.died.popleft(), "lease", None)
            if lease is not None:  # an interrupt may come before a watch has its lease
                lease.lose_one()
                self.settle(lease)
