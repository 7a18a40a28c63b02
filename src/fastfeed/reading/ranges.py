"""Merge the byte ranges of a batch into few requests. Pure arithmetic, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Requests that cover some ranges, to be read one after the other into one buffer."""

    offsets: NDArray[np.int64]
    """Where each request begins in the file; ascending."""
    sizes: NDArray[np.int64]
    """Bytes of each request."""
    places: NDArray[np.int64]
    """Where each of the ranges that were merged begins in the buffer, in the order given."""


def merge(offsets: NDArray[np.int64], sizes: NDArray[np.int64], *, gap: int) -> Runs:
    """Merge ranges (int64, one-dimensional) that lie at most `gap` bytes apart.

    The ranges may come in any order, touch, overlap or repeat; bytes that overlap are read once.
    """
    if not len(offsets):
        nothing = np.zeros(0, np.int64)
        return Runs(nothing, nothing, nothing)
    gaps = offsets[1:] - offsets[:-1] - sizes[:-1]
    if bool(((gaps >= 0) & (gaps <= gap)).all()):  # neighbours in order: one request
        return Runs(offsets[:1], offsets[-1:] + sizes[-1:] - offsets[:1], offsets - offsets[0])
    order = np.argsort(offsets, kind="stable")
    begins = offsets[order]
    # The furthest byte that any range so far reaches: a long range may hide short ones after it.
    reach = np.maximum.accumulate(begins + sizes[order])
    fresh = np.empty(len(order), bool)
    fresh[0] = True
    np.greater(begins[1:], reach[:-1] + gap, out=fresh[1:])
    first = np.flatnonzero(fresh)
    run_offsets = begins[first]
    run_sizes = reach[np.append(first[1:], len(order)) - 1] - run_offsets
    shift = np.cumsum(run_sizes) - run_sizes - run_offsets
    places = np.empty_like(begins)
    places[order] = begins + shift[np.cumsum(fresh) - 1]
    return Runs(run_offsets, run_sizes, places)
