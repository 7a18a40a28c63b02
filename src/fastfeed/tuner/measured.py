"""What numbers of workers came to, and how far noise lets them be told apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# Noise that is taken for granted until windows tell, and how many of them that is worth.
_USUAL, _WORTH = 0.015, 2


@dataclass(frozen=True, slots=True)
class Window:
    """What some batches in a row took: `workers` were in use while the loop took `batches`.

    Of `elapsed_s` the loop waited `waited_s`; the workers, all together, were busy for `busy_s`.
    A window should be no shorter than the batches under way, or their stock hides what workers do.
    """

    elapsed_s: float
    waited_s: float
    busy_s: float
    batches: int
    workers: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Batches a second with a number of workers, the part spent waiting, and how many were busy.

    `windows` were looked at; `spread` is the sum of the squares by which their rates differ from
    `rate`, as parts of it.
    """

    rate: float
    waited: float
    busy: float
    windows: int
    spread: float


def summed(windows: Sequence[Window]) -> Measured:
    """Return what windows of one number of workers came to together."""
    elapsed_s = sum(window.elapsed_s for window in windows)
    rate = sum(window.batches for window in windows) / elapsed_s
    return Measured(
        rate=rate,
        waited=sum(window.waited_s for window in windows) / elapsed_s,
        busy=sum(window.busy_s for window in windows) / elapsed_s,
        windows=len(windows),
        spread=sum((window.batches / window.elapsed_s / rate - 1) ** 2 for window in windows),
    )


def noise_of(measured: Collection[Measured]) -> float:
    """Return the standard deviation of a window's rate, as a part of it."""
    spread = sum(one.spread for one in measured) + _WORTH * _USUAL**2
    return sqrt(spread / (sum(one.windows - 1 for one in measured) + _WORTH))


def doubt(one: Measured, other: Measured, *, noise: float) -> float:
    """Return the standard deviation of the ratio of two rates."""
    return noise * sqrt(1 / one.windows + 1 / other.windows)
