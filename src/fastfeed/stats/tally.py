"""Many deliveries counted at once: a tally and some deliveries make the next tally."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.stats.depth import Depth
from fastfeed.stats.histogram import Rows, Spread
from fastfeed.stats.values import (
    StageFacts,
    StageTimes,
    Times,
    WorkerFacts,
    waits_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# Rows of durations; from _WORKERS on each worker has one, of making batches.
_WAIT, _FETCH, _SLOTS, _BLOCKED_IN, _BLOCKED_OUT, _WORKERS = range(6)
# A delivery as a row of numbers: what is said of every batch, its times, and those of its stage.
_FIRST = len(("asked", "got", "samples", "nbytes", "copied", "worker", "busy_s"))
_MOVED = _FIRST + len(Times._fields)
_WIDTH = _MOVED + len(StageTimes._fields)
ROW = 8 * _WIDTH
"""Bytes of a row; they are zeros before `write` or `write_moved` puts numbers there."""
write, write_moved = Struct(f"{_MOVED}d").pack_into, Struct(f"{_WIDTH}d").pack_into
# More batches ready than this are counted as this many.
_DEEPEST = 1023


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
    rows: Rows = field(default_factory=lambda: Rows.empty(_WORKERS))
    sums: Floats = field(default_factory=lambda: np.zeros((3, 0)))
    """Of each worker: blocked on input and on output, and bytes."""
    stage: StageFacts | None = None
    depths: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    """How often so many batches were ready."""
    open_asks: Floats = field(default_factory=lambda: np.empty(0))
    """When the loop asked for the batches that were counted last."""
    open_depths: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """How many of those that came since were ready at these moments; more may come."""

    def plus(self, rows: bytes | bytearray) -> Tally:
        """Return the tally with the deliveries of further rows, in their order."""
        if not rows:
            return self
        fresh = np.frombuffer(rows).reshape(-1, _WIDTH).T
        asked, got, samples, nbytes, copied, by_worker, busy = fresh[:_FIRST]
        began, blocked_in, blocked_out, slots, moved, moving = fresh[_FIRST : _MOVED + 2]
        worker = by_worker.astype(np.int64)
        count = max(self.sums.shape[1], int(worker.max()) + 1)
        here = worker >= 0
        durations = (
            (np.full(len(asked), _WAIT), got - asked),
            (np.full(len(asked), _FETCH), busy - slots),
            (np.full(int((slots > 0).sum()), _SLOTS), slots[slots > 0]),
            (np.full(int(here.sum()), _BLOCKED_IN), blocked_in[here]),
            (np.full(int(here.sum()), _BLOCKED_OUT), blocked_out[here]),
            (worker[here] + _WORKERS, busy[here]),
        )
        numbers, seconds = (np.concatenate(one) for one in zip(*durations, strict=True))
        added = [one[here] for one in (blocked_in, blocked_out, nbytes)]
        return replace(
            self._with_depths(asked, np.where(moved > 0, moved + moving, began + busy)),
            batches=self.batches + len(asked),
            samples=self.samples + int(samples.sum()),
            nbytes=self.nbytes + int(nbytes.sum()),
            copied=self.copied + int(copied.sum()),
            started=float(asked[0]) if self.started is None else self.started,
            last=float(got[-1]),
            busy_s=self.busy_s + float(busy.sum()),
            rows=self.rows.plus(numbers, seconds, count=_WORKERS + count),
            sums=self._sums_with(worker[here], added, count),
            stage=self._stage_with(fresh[_MOVED:, moved > 0]),
        )

    def _sums_with(self, worker: Ints, added: Sequence[NDArray[Any]], count: int) -> Floats:
        sums: Floats = np.stack([np.bincount(worker, one, count).astype(float) for one in added])
        sums[:, : self.sums.shape[1]] += self.sums
        return sums

    def _stage_with(self, moved: Floats) -> StageFacts | None:
        if not moved.size:
            return self.stage
        old = self.stage or StageFacts(0, 0.0, 0.0, 0.0, 0.0)
        _, busy, blocked_in, blocked_out, copying, _ = moved.sum(axis=1).tolist()
        return StageFacts(
            batches=old.batches + moved.shape[1],
            busy_s=old.busy_s + busy,
            blocked_in_s=old.blocked_in_s + blocked_in,
            blocked_out_s=old.blocked_out_s + blocked_out,
            copying_s=old.copying_s + copying,
        )

    def _with_depths(self, asked: Floats, ready: Floats) -> Tally:
        """Count for each moment of asking how many batches were ready that came at or after it.

        What was ready shows only when it is delivered, so the last moments stay open until the
        next deliveries. No queue is looked at while the loop runs: clocks are the same everywhere.
        """
        ordered = np.sort(ready)
        older = self.open_depths + np.searchsorted(ordered, self.open_asks, side="right")
        # Those delivered before a batch were ready before it was asked for.
        own = np.searchsorted(ordered, asked, side="right") - np.arange(len(asked))
        return replace(
            self,
            depths=_sum(self.depths, np.bincount(np.minimum(older, _DEEPEST))),
            open_asks=asked.copy(),  # it would hold all of the rows
            open_depths=np.maximum(own, 0),
        )

    @property
    def wait(self) -> Spread:
        """The loop's waits."""
        return self.rows.spread(_WAIT)

    @property
    def steps(self) -> dict[str, Spread]:
        """Steps of data sets of any kind: making a whole batch, and laying it out."""
        steps = {"fetch": self.rows.spread(_FETCH), "slots": self.rows.spread(_SLOTS)}
        return {name: spread for name, spread in steps.items() if spread.count}

    @property
    def depth(self) -> Depth:
        """How many batches were ready."""
        still_open = np.bincount(np.minimum(self.open_depths, _DEEPEST))
        return Depth.of(tuple(_sum(self.depths, still_open).tolist()))

    @property
    def workers(self) -> tuple[WorkerFacts, ...]:
        """Those that made batches."""
        facts = (
            WorkerFacts(number, int(nbytes), self.rows.spread(_WORKERS + number), taken, given)
            for number, (taken, given, nbytes) in enumerate(self.sums.T.tolist())
        )
        return tuple(one for one in facts if one.batches)

    def facts(self) -> dict[str, Any]:
        """Return the fields of a snapshot that deliveries decide."""
        names = ("batches", "samples", "nbytes", "copied", "busy_s", "depth", "workers", "stage")
        return {
            **{name: getattr(self, name) for name in names},
            "blocked_in": self.rows.spread(_BLOCKED_IN),
            "blocked_out": self.rows.spread(_BLOCKED_OUT),
            **waits_of(self.wait),
            "elapsed_s": 0.0 if self.started is None else self.last - self.started,
        }


def _sum(a: Ints, b: Ints) -> Ints:
    """Add counts of which one may end earlier."""
    total = np.zeros(max(len(a), len(b)), np.int64)
    total[: len(a)] += a
    total[: len(b)] += b
    return total
