"""Waits and work, measured at the hand-offs: what workers, device and loop hold each other up for.

`Stats` counts while the loop runs, `Snapshot` is what it says at a moment, `describe` the same in
words. Counting costs the loop about a microsecond a batch: a delivery's numbers are put aside, and
counted many at a time.
"""

from __future__ import annotations

from fastfeed.stats.collect import Observer, Stats
from fastfeed.stats.decoded import DecodedFacts
from fastfeed.stats.depth import Depth
from fastfeed.stats.histogram import Spread, Waits
from fastfeed.stats.report import describe
from fastfeed.stats.values import (
    Delivery,
    DeviceFacts,
    Snapshot,
    StageFacts,
    StageTimes,
    Times,
    WorkerFacts,
)

__all__ = [
    "DecodedFacts",
    "Delivery",
    "Depth",
    "DeviceFacts",
    "Observer",
    "Snapshot",
    "Spread",
    "StageFacts",
    "StageTimes",
    "Stats",
    "Times",
    "Waits",
    "WorkerFacts",
    "describe",
]
