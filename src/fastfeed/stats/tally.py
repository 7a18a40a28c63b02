"""Many deliveries counted at once: a tally and some deliveries make the next tally."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.stats.histogram import BUCKETS, Spread, buckets_of
from fastfeed.stats.values import Depth, StageFacts, StageTimes, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fastfeed.stats.values import Delivery

# Columns of what is summed for each worker.
_BUSY, _IN, _OUT, _BYTES = range(4)
# More batches ready than this are counted as this many.
_DEEPEST = 1023


def _none() -> NDArray[np.int64]:
    return np.zeros(BUCKETS, np.int64)


@dataclass(frozen=True, slots=True)
class Row:
    """Durations of one kind."""

    counts: NDArray[np.int64] = field(default_factory=_none)
    total_s: float = 0.0
    max_s: float = 0.0

    def plus(self, seconds: NDArray[np.float64]) -> Row:
        """Return the row with further durations."""
        if not len(seconds):
            return self
        counts = self.counts + np.bincount(buckets_of(seconds), minlength=BUCKETS)
        longest = max(self.max_s, float(seconds.max()))
        return Row(counts, self.total_s + float(seconds.sum()), longest)

    @property
    def spread(self) -> Spread:
        """What the row says."""
        return Spread.of(self.counts, total_s=self.total_s, max_s=self.max_s)


@dataclass(frozen=True, slots=True)
class Tally:
    """What deliveries add up to; never changed, so that any thread may look at it."""

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    copied: int = 0
    started: float | None = None
    last: float = 0.0
    busy_s: float = 0.0
    wait: Row = field(default_factory=Row)
    fetch: Row = field(default_factory=Row)
    """Making a batch, where the data set does not split it into steps."""
    slots: Row = field(default_factory=Row)
    workers: tuple[tuple[Row, tuple[float, ...]], ...] = ()
    """Of each worker: making batches, and its sums."""
    stage: StageFacts | None = None
    depths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """How often so many batches were ready."""
    open_asks: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """When the loop asked for the last batches that were counted, and how many of those that it
    got since were ready then: more may come."""
    open_depths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def plus(self, fresh: Sequence[Delivery]) -> Tally:
        """Return the tally with further deliveries, in their order."""
        if not fresh:
            return self
        asked = np.array([one.asked for one in fresh])
        got = np.array([one.got for one in fresh])
        busy = np.array([one.busy_s for one in fresh])
        slots = np.array([one.times[3] for one in fresh])
        has_steps = np.array([bool(one.steps_s) for one in fresh])
        by_worker = np.array([one.worker for one in fresh])
        return replace(
            self._with_depths(asked, np.array([one.ready for one in fresh])),
            batches=self.batches + len(fresh),
            samples=self.samples + sum(one.samples for one in fresh),
            nbytes=self.nbytes + sum(one.nbytes for one in fresh),
            copied=self.copied + sum(one.copied for one in fresh),
            started=float(asked[0]) if self.started is None else self.started,
            last=float(got[-1]),
            busy_s=self.busy_s + float(busy.sum()),
            wait=self.wait.plus(got - asked),
            fetch=self.fetch.plus((busy - slots)[~has_steps]),
            slots=self.slots.plus(slots[slots > 0]),
            workers=self._workers_with(fresh, by_worker, busy),
            stage=self._stage_with([one.stage for one in fresh if one.stage is not None]),
        )

    def _workers_with(
        self, fresh: Sequence[Delivery], by_worker: NDArray[np.int64], busy: NDArray[np.float64]
    ) -> tuple[tuple[Row, tuple[float, ...]], ...]:
        count = max(len(self.workers), int(by_worker.max()) + 1)
        rows = [*self.workers, *[(Row(), (0.0,) * 4)] * (count - len(self.workers))]
        sums = np.array([(one.busy_s, one.times[1], one.times[2], one.nbytes) for one in fresh])
        for worker in set(by_worker.tolist()) - {-1}:
            here = by_worker == worker
            row, old = rows[worker]
            added = sums[here].sum(axis=0).tolist()
            rows[worker] = row.plus(busy[here]), tuple(map(sum, zip(old, added, strict=True)))
        return tuple(rows)

    def _stage_with(self, fresh: Sequence[StageTimes]) -> StageFacts | None:
        if not fresh:
            return self.stage
        old = self.stage or StageFacts(0, 0.0, 0.0, 0.0, 0.0)
        _, busy, blocked_in, blocked_out, copying = np.array(fresh).sum(axis=0).tolist()
        return StageFacts(
            batches=old.batches + len(fresh),
            busy_s=old.busy_s + busy,
            blocked_in_s=old.blocked_in_s + blocked_in,
            blocked_out_s=old.blocked_out_s + blocked_out,
            copying_s=old.copying_s + copying,
        )

    def _with_depths(self, asked: NDArray[np.float64], ready: NDArray[np.float64]) -> Tally:
        """Count for each moment of asking how many batches were ready that came at or after it.

        What was ready shows only when it is delivered, so the last moments stay open until the
        next deliveries. No lookup is needed while the loop runs: clocks are the same everywhere.
        """
        ordered = np.sort(ready)
        older = self.open_depths + np.searchsorted(ordered, self.open_asks, side="right")
        # Those delivered before a batch were ready before it was asked for.
        own = np.searchsorted(ordered, asked, side="right") - np.arange(len(asked))
        closed = np.clip(older, 0, _DEEPEST)
        return replace(
            self,
            depths=_sum(self.depths, np.bincount(closed)),
            open_asks=asked,
            open_depths=np.maximum(own, 0),
        )

    @property
    def depth(self) -> Depth:
        """How many batches were ready."""
        still_open = np.bincount(np.clip(self.open_depths, 0, _DEEPEST))
        return Depth.of(tuple(_sum(self.depths, still_open).tolist()))

    def facts(self) -> dict[str, Any]:
        """Return the fields of a snapshot that say the same under the same names."""
        names = ("batches", "samples", "nbytes", "copied", "busy_s", "depth", "stage")
        facts = {name: getattr(self, name) for name in names}
        elapsed_s = 0.0 if self.started is None else self.last - self.started
        return {
            **facts,
            "elapsed_s": elapsed_s,
            "waited_s": self.wait.total_s,
            "workers": tuple(
                WorkerFacts(worker, int(sums[_BYTES]), row.spread, sums[_IN], sums[_OUT])
                for worker, (row, sums) in enumerate(self.workers)
                if row.counts.any()
            ),
        }


def _sum(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add counts of which one may end earlier."""
    total = np.zeros(max(len(a), len(b)), np.int64)
    total[: len(a)] += a
    total[: len(b)] += b
    return total
