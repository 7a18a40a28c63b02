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


class Waits:
    """Durations of one kind, counted; one thread adds, any may look."""

    __slots__ = ("_counts", "_fresh", "longest_s", "total_s")

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self._fresh: list[float] = []
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        fresh = self._fresh
        fresh.append(seconds)
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)
        if len(fresh) >= _AT_ONCE:
            # Both are replaced, and never changed, so that who looks meanwhile sees one or the
            # other; a duration may be missing for a moment, and is never counted twice.
            self._fresh = []
            self._counts = self._with(fresh)

    def percentile(self, percent: float) -> float:
        """Return the duration in seconds that `percent` of all did not exceed; 0.0 if none."""
        summed = np.cumsum(self._with(self._fresh[:]))
        return percentile(summed, percent, max_s=self.longest_s)

    @property
    def spread(self) -> Spread:
        """The durations so far."""
        counts = self._with(self._fresh[:])
        return Spread.of(counts, total_s=self.total_s, max_s=self.longest_s)

    def _with(self, fresh: list[float]) -> NDArray[np.int64]:
        if not fresh:
            return self._counts
        found = buckets_of(np.array(fresh, np.float64))
        return self._counts + np.bincount(found, minlength=BUCKETS)
