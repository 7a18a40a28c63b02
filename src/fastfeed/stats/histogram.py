"""Durations on a logarithmic scale: bounded memory however long the run, and percentiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Four buckets an octave from a microsecond up: a percentile is right within 19 %.
_PER_OCTAVE = 4
_FIRST_S = 1e-6
BUCKETS = 40 * _PER_OCTAVE
"""How many there are; the last one has no end, but begins after 12 days."""
# Durations are put into buckets so many at a time.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Spread:
    """How durations of one kind are spread, in seconds."""

    count: int = 0
    total_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    buckets: tuple[tuple[float, int], ...] = ()
    """Upper bound and count of each bucket that is not empty."""

    @classmethod
    def of(cls, counts: NDArray[np.int64], *, total_s: float, max_s: float) -> Spread:
        """Return what a row of bucket counts says."""
        if not counts.any():
            return cls()
        summed = np.cumsum(counts)
        filled = np.flatnonzero(counts)
        p50, p95, p99 = (percentile(summed, percent, max_s=max_s) for percent in (50, 95, 99))
        return cls(
            count=int(summed[-1]),
            total_s=total_s,
            p50_s=p50,
            p95_s=p95,
            p99_s=p99,
            max_s=max_s,
            buckets=tuple((upper(int(place)), int(counts[place])) for place in filled),
        )

    def since(self, before: Spread) -> Spread:
        """Return the durations that came after an earlier look.

        The longest of them is known only if it is the longest of all, else as its bucket's end.
        """
        counts = np.zeros(BUCKETS, np.int64)
        for sign, spread in ((1, self), (-1, before)):
            for bound, count in spread.buckets:
                counts[place_of(bound)] += sign * count
        filled = np.flatnonzero(counts > 0)
        if not len(filled):
            return Spread()
        return Spread.of(
            np.maximum(counts, 0),
            total_s=self.total_s - before.total_s,
            max_s=min(self.max_s, upper(int(filled[-1]))),
        )


def upper(bucket: int) -> float:
    """Return where a bucket ends, in seconds."""
    return float(_FIRST_S * 2 ** ((bucket + 1) / _PER_OCTAVE))


def place_of(bound: float) -> int:
    """Return the bucket that ends at `bound`."""
    return round(math.log2(bound / _FIRST_S) * _PER_OCTAVE) - 1


def buckets_of(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bucket of each duration."""
    octaves = np.log2(np.maximum(seconds, _FIRST_S) / _FIRST_S)
    return np.minimum((octaves * _PER_OCTAVE).astype(np.int64), BUCKETS - 1)


def percentile(summed: NDArray[np.int64], percent: float, *, max_s: float) -> float:
    """Return the duration that `percent` of all did not exceed, from summed bucket counts."""
    if not summed[-1]:
        return 0.0
    rank = max(1, math.ceil(int(summed[-1]) * percent / 100))
    return min(upper(int(np.searchsorted(summed, rank))), max_s)


@dataclass(frozen=True, slots=True)
class Rows:
    """Durations of many kinds, a row of buckets each; never changed, so that any may look."""

    counts: NDArray[np.int64]
    totals: NDArray[np.float64]
    longest: NDArray[np.float64]

    @classmethod
    def empty(cls, count: int) -> Rows:
        """Return so many rows of nothing."""
        return cls(np.zeros((count, BUCKETS), np.int64), np.zeros(count), np.zeros(count))

    def plus(self, rows: NDArray[np.int64], seconds: NDArray[np.float64], *, count: int) -> Rows:
        """Return `count` rows, with each of `seconds` counted in the row beside it."""
        counts = np.bincount(rows * BUCKETS + buckets_of(seconds), minlength=count * BUCKETS)
        counts = counts.reshape(count, BUCKETS)
        totals: NDArray[np.float64] = np.bincount(rows, seconds, count).astype(float)
        longest = np.zeros(count)
        np.maximum.at(longest, rows, seconds)
        old = len(self.totals)
        counts[:old] += self.counts
        totals[:old] += self.totals
        np.maximum(longest[:old], self.longest, out=longest[:old])
        return Rows(counts, totals, longest)

    def spread(self, row: int) -> Spread:
        """Return what a row says."""
        total_s, max_s = float(self.totals[row]), float(self.longest[row])
        return Spread.of(self.counts[row], total_s=total_s, max_s=max_s)


class Waits:
    """Durations of one kind, counted; one thread adds, any may look."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # What was counted, and what came since: replaced together, so that who looks meanwhile sees
        # each duration once.
        self._state: tuple[Rows, list[float]] = (Rows.empty(1), [])

    def add(self, seconds: float) -> None:
        """Count one duration."""
        _, fresh = self._state
        fresh.append(seconds)
        if len(fresh) >= _AT_ONCE:
            self._state = (self._rows, [])

    @property
    def _rows(self) -> Rows:
        rows, fresh = self._state
        seconds = np.array(fresh, np.float64)
        return rows.plus(np.zeros(len(seconds), np.int64), seconds, count=1)

    @property
    def spread(self) -> Spread:
        """The durations so far."""
        return self._rows.spread(0)

    @property
    def longest_s(self) -> float:
        """The longest so far."""
        return self.spread.max_s

    def percentile(self, percent: float) -> float:
        """Return the duration in seconds that `percent` of all did not exceed; 0.0 if none."""
        rows = self._rows
        return percentile(np.cumsum(rows.counts[0]), percent, max_s=float(rows.longest[0]))
