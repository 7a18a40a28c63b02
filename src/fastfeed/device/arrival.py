"""A result whose batch goes to the device, from a worker's hand to the loop's."""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastfeed.arrival import Arrival, Opened
    from fastfeed.device.pool import DevicePool
    from fastfeed.device.stage import Moved
    from fastfeed.policy import FeedReport
    from fastfeed.slots.region import Region
    from fastfeed.stats import StageTimes
    from fastfeed.worker import Result


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
        self._inner = inner
        self._pool = pool
        self.state = State.ARRIVED
        self.staged = threading.Event()
        self.moved: Moved | None = None
        self.raised: BaseException | None = None
        self.skipped = False
        self.opened: Opened | None = None
        self.stage: StageTimes | None = None
        self.is_typical = True
        """Whether the stage's time says something: nothing was being pinned."""
        self.report: FeedReport | None = inner.result.report

    @property
    def inner(self) -> Arrival:
        """The result as the worker gave it."""
        return self._inner

    @property
    def result(self) -> Result:
        """What the worker says of it, and what came to light on the device."""
        return self._inner.result._replace(report=self.report, stage=self.stage)

    @property
    def empty(self) -> bool:
        """Whether all samples of the batch were skipped."""
        return self._inner.empty or self.skipped

    @property
    def region(self) -> Region | None:
        """The worker's memory."""
        return self._inner.region

    @property
    def has_batch(self) -> bool:
        """Whether there is anything for the device."""
        result = self._inner.result
        return result.number >= 0 and not (
            result.ended or self._inner.empty or self._inner.error() is not None
        )

    def error(self) -> BaseException | None:
        """Return what was raised for this batch, once it is on the device."""
        failed = self._inner.error()
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
