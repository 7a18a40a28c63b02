"""A change that a tuner made, with the figures that made it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """What was changed after how many batches, and why; `was` and `now` are shares or workers."""

    batch: int
    was: float
    now: float
    why: str
