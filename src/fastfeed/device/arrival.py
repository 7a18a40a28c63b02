"""A result whose batch goes to the device, from a worker's hand to the loop's."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastfeed.arrival import Arrival, Opened
    from fastfeed.device.pool import DevicePool
    from fastfeed.device.stage import Moved
    from fastfeed.slots.region import Region


class State(Enum):
    """Where a batch stands; it only moves downwards in this list."""

    ARRIVED = "arrived"
    """On the host."""
    STAGED = "staged"
    """On the device."""
    TAKEN = "taken"
    """Given to the loop, or given up; or nothing of it came to the device."""


class DeviceArrival:
    """A result whose batch goes to the device."""

    def __init__(self, inner: Arrival, pool: DevicePool) -> None:
        self.inner = inner
        """The result as the worker gave it."""
        self.result = inner.result
        """What the worker says of it, and what came to light on the device."""
        result = inner.result
        self.has_batch = result.number >= 0 and not (
            result.ended or inner.empty or inner.error() is not None
        )
        """Whether there is anything for the device."""
        self._pool = pool
        self.state = State.ARRIVED
        self.moved: Moved | None = None
        self.raised: BaseException | None = None
        self.skipped = False
        self.opened: Opened | None = None
        self.is_typical = True
        """Whether the stage's time says something: nothing was being pinned."""

    @property
    def empty(self) -> bool:
        """Whether all samples of the batch were skipped."""
        return self.inner.empty or self.skipped

    @property
    def region(self) -> Region | None:
        """The worker's memory."""
        return self.inner.region

    def error(self) -> BaseException | None:
        """Return what was raised for this batch, once it is on the device."""
        failed = self.inner.error()
        if failed is not None or not self.has_batch:
            return failed
        self._pool.await_staged(self)
        # Its traceback leads to us and to the slot: together they would wait for the collector.
        raised, self.raised = self.raised, None
        return raised

    def open(self, *, prefetch: int) -> Opened:  # noqa: ARG002 - it has left the host
        """Return the batch, for the current stream."""
        return self._pool.take(self)

    def give_up(self) -> None:
        """Let go of the batch."""
        self._pool.give_up(self)
