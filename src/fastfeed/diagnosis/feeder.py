"""Batches one after the other from any loader, with the wait for each and whose turn it was."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fastfeed.dataset import ShardDataset
from fastfeed.errors import OptionError
from fastfeed.options import AutoWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastfeed.diagnosis.counters import Counters
    from fastfeed.diagnosis.evidence import Kind

_OURS: Final = "fastfeed-worker-"


class Taken(NamedTuple):
    """One batch, and what it took to get it."""

    batch: Any
    wait_s: float
    pause_s: float
    """Spent on the beginning of an epoch, in place of a wait."""
    turn: int
    """The worker that made it, counted from the first; 0 without workers."""
    wait_cpu_s: float
    """What the waiting thread computed meanwhile."""


@dataclass(slots=True)
class Feeder:
    """Endless batches of a loader: epoch after epoch, the beginnings apart."""

    loader: Any
    clock: Callable[[], float]
    cpu_clock: Callable[[], float]
    """Time that this thread has computed, or queued for a core to."""
    pids: tuple[int, ...] = ()
    """The worker processes, in turn, as far as they can be told."""
    thread: int = field(default_factory=threading.get_native_id)
    """The one that asks for batches."""
    _asks: bool = False
    _iterator: Iterator[Any] | None = None
    _taken: int = 0
    _in_all: int = 0

    @property
    def count(self) -> int:
        """How many workers there are."""
        return int(getattr(self.loader, "num_workers", 0) or 0)

    @property
    def tuned(self) -> bool:
        """Whether the loader finds their number itself."""
        return isinstance(getattr(self.loader, "num_workers", 0), AutoWorkers)

    @property
    def kind(self) -> Kind:
        """What the workers are."""
        if not self.count:
            return "none"
        return "thread" if getattr(self.loader, "worker_kind", "") == "thread" else "process"

    @property
    def shards(self) -> bool:
        """Whether the samples are those of shards."""
        return isinstance(getattr(self.loader, "dataset", None), ShardDataset)

    @property
    def stock(self) -> int:
        """How many batches may lie ready."""
        return self.count * int(getattr(self.loader, "prefetch_factor", None) or 2)

    @property
    def in_turn(self) -> bool:
        """Whether every worker has its turn: the loader keeps order and number.

        Batches of shards go to whoever has least to do.
        """
        return bool(getattr(self.loader, "in_order", True)) and not self.tuned and not self.shards

    def next(self) -> Taken:
        """Return the next batch; OptionError if the loader has none, or no more."""
        begin, cpu_begin = self.clock(), self.cpu_clock()
        self._asks = True
        batch, fresh = self._take()
        self._asks = False
        took, cpu = self.clock() - begin, self.cpu_clock() - cpu_begin
        turn = self._taken % max(1, self.count)
        self._taken += 1
        self._in_all += 1
        if not turn:
            self.pids = _worker_pids(self._iterator, self.pids)
        if fresh:
            return Taken(batch, 0.0, took, turn, 0.0)
        return Taken(batch, took, 0.0, turn, cpu)

    def tasks(self) -> list[str]:
        """Return the threads that make batches now, as paths below /proc."""
        if self.kind == "process":
            return [f"{pid}/task/{pid}" for pid in self.pids]
        if self.kind == "thread":
            theirs = [one for one in threading.enumerate() if one.name.startswith(_OURS)]
            return [f"self/task/{one.native_id}" for one in theirs]
        return [f"self/task/{self.thread}"] if self._asks else []

    def close(self) -> None:
        """Let go of the iterator, and with it of the workers."""
        self._iterator = None

    def _take(self) -> tuple[Any, bool]:
        """Return a batch, and whether an epoch began with it."""
        if self._iterator is not None:
            try:
                return next(self._iterator), False
            except StopIteration:
                pass
        # Where epochs are of one batch, their beginnings are all there is.
        apart = self._iterator is None or self._taken > 1
        self._iterator, self._taken = iter(self.loader), 0
        try:
            return next(self._iterator), apart
        except StopIteration:
            if not self._in_all:
                raise OptionError(
                    "the loader yields no batch", way_out="Give one that has data"
                ) from None
            raise OptionError(
                f"the loader has no more after {self._in_all} batches",
                way_out="Give one that can be iterated again and again, such as a DataLoader",
            ) from None

    def counters(self) -> Counters:
        """Return what the loader itself counts, if it does: its workers' time, and its steps'."""
        snapshot = getattr(self.loader, "snapshot", None)
        if not callable(snapshot):
            return {}
        facts = snapshot()
        found: Counters = {}
        for one in getattr(facts, "workers", ()):
            found[f"worker {one.worker} busy"] = one.busy.total_s
            found[f"worker {one.worker} batches"] = one.batches
        for name, seconds in getattr(facts, "steps_s", {}).items():
            found[f"step {name}"] = seconds
        found["busy"] = getattr(facts, "busy_s", 0.0)
        return found


def _worker_pids(iterator: Any, before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the processes that work for an iterator, in the order of their turns."""
    theirs = getattr(iterator, "_workers", None)
    if isinstance(theirs, list):
        pids = tuple(pid for one in theirs if isinstance(pid := getattr(one, "pid", None), int))
        return pids or before
    named = [
        (int(one.name.removeprefix(_OURS)), one.pid or 0)
        for one in multiprocessing.active_children()
        if one.name.startswith(_OURS) and one.name.removeprefix(_OURS).isdigit()
    ]
    # Of several loaders' workers those that were started last are ours.
    newest = dict(sorted(named))
    return tuple(newest[number] for number in sorted(newest)) or before
