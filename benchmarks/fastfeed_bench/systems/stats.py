"""stats: one loader with and without its statistics, in turns of a few dozen batches.

In the turns without, the loader counts into a collector that does nothing, and the clocks of the
trainer and the workers stand still: what they show is for the statistics. All else is the same down
to the pages of memory, which two loaders do not share; and a turn of milliseconds is compared with
the two beside it, so that what else the machine does falls out.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import fastfeed
from fastfeed import iteration, worker
from fastfeed.stats import Stats
from fastfeed_bench.consume import digest_epoch, read_tree
from fastfeed_bench.processes import children
from fastfeed_bench.systems.shapes import SHAPES, samples_of
from fastfeed_bench.systems.transport import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

TURN = 64
"""Batches of a turn; every other one is counted, the first and the last are not."""
# The first ones of a turn are not timed: they were under way before.
_UNDER_WAY = 8
_REPEATS, _DELIVERIES = 5, 8192
_STOPPED = SimpleNamespace(perf_counter=float)  # called without arguments it is 0.0


class Silent(Stats):
    """Counts nothing."""

    def delivered(self, delivery: tuple[Any, ...]) -> None:
        """Take no note of a batch."""


@dataclass(frozen=True, slots=True)
class Turned(Pool):
    """Stops the worker's clock in every other turn."""

    batch: int

    def __getitems__(self, indices: list[int]) -> list[Any]:
        counts = indices[0] // (self.batch * TURN) % 2
        vars(worker)["time"] = time if counts else _STOPPED
        return [self[index] for index in indices]


class Turn(NamedTuple):
    """What a turn took, in seconds."""

    wall: float
    cpu: float
    """Of the trainer and its workers."""


@dataclass(frozen=True, slots=True)
class StatsSession:
    """Each run is one epoch; its figure is what counting adds to a batch, in percent."""

    note: str
    loader: Any

    def run(self) -> Mapping[str, float]:
        """Take the medians over the counted turns, each beside either of its neighbours.

        Not beside the mean of both: times are skew, so that a mean lies above a median of one.
        """
        turns = list(self._turns())
        later_us = min(_counted_later() for _ in range(_REPEATS)) * 1e6
        figures: dict[str, float] = {}
        for name in Turn._fields:
            took = [getattr(turn, name) for turn in turns]
            ratios = [
                one / other
                for bare in (took[:-2:2], took[2::2])
                for one, other in zip(took[1::2], bare, strict=True)
            ]
            batch_us = statistics.median(took[::2]) / (TURN - _UNDER_WAY) * 1e6
            added_us = (statistics.median(ratios) - 1) * batch_us + later_us
            figures |= {
                f"{name}_percent": 100 * added_us / batch_us,
                f"{name}_us_added": added_us,
                f"{name}_us_a_batch": batch_us,
            }
        return {"value": figures.pop("wall_percent"), **figures}

    def _turns(self) -> Iterator[Turn]:
        """Consume an epoch, and yield what each turn of it took."""
        iter(self.loader)  # it is the same one, with the same workers, in all epochs
        pids = [os.getpid(), *children()]
        began = Turn(0.0, 0.0)
        self._begin_turn(0)
        for number, batch in enumerate(self.loader):
            read_tree(batch)
            turn, place = divmod(number, TURN)
            if place == _UNDER_WAY - 1:
                began = _clocks(pids)
            elif place == TURN - 1:
                ended = _clocks(pids)
                yield Turn(ended.wall - began.wall, ended.cpu - began.cpu)
                self._begin_turn(turn + 1)

    def _begin_turn(self, turn: int) -> None:
        counts = turn % 2
        self.loader._iterator._stats = self.loader.collector if counts else Silent()  # noqa: SLF001
        vars(iteration)["time"] = time if counts else _STOPPED

    def evidence(self) -> Evidence:
        """Describe an epoch, and say of how many turns the batches were counted."""
        before = self.loader.stats().batches
        turns = sum(1 for _ in self._turns())
        counted = self.loader.stats().batches - before
        return {**digest_epoch(self.loader), "turns": turns, "counted": counted / TURN}

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""


def _counted_later() -> float:
    """Return the CPU time of a delivery that no median shows: all are counted once in a while."""
    stats, took = Stats(), []
    for number in range(_DELIVERIES):
        now = time.thread_time()
        stats.delivered((now, now, number, 1, 1, False, 0, 0.0, (now, 0.0, 0.0, 0.0), None, None))
        took.append(time.thread_time() - now)
    return statistics.mean(took) - statistics.median(took)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, all its threads together, to the nanosecond."""
    # The number that clock_getcpuclockid(3) makes, which Python has no name for.
    return time.clock_gettime(~pid << 3 | 2)


def _clocks(pids: list[int]) -> Turn:
    return Turn(time.perf_counter(), sum(map(cpu_seconds, pids)))


def session(settings: Settings) -> StatsSession:
    """Return the session over samples of the settings' shape."""
    shape = SHAPES[settings["shape"]]
    batches = TURN * (2 * settings["pairs"] + 1)
    loader: Any = fastfeed.DataLoader(
        Turned(samples_of(shape), batches * settings["batch"], settings["batch"]),
        batch_size=settings["batch"],
        num_workers=settings["workers"],
        collate_fn=shape.collate,
        prefetch_factor=2,
        persistent_workers=True,
    )
    note = f"fastfeed {fastfeed.__version__}; {settings['pairs']} turns of {TURN} batches counted"
    return StatsSession(note=note, loader=loader)
