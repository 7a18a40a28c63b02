"""Threads that bring a pool's batches to the device: each receives, moves and waits, in turns."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastfeed.device.at_work import at_work
from fastfeed.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.device.arrival import DeviceArrival
    from fastfeed.device.device import Mark
    from fastfeed.device.stage import Stage

# Copies under way at a time: one more than one, so that the link never waits for the host.
_UNDER_WAY = 2


@dataclass(slots=True, eq=False)
class Walk:
    """What is in hand on one way to the device, and what was waited for since its last batch."""

    stage: Stage
    lane: int = 0
    under_way: deque[tuple[Mark, Any]] = field(default_factory=deque)
    """For each batch when it is complete, and the host memory that is read until then."""
    starved_s: float = 0.0
    full_s: float = 0.0
    copying_s: float = 0.0

    def waited(self, seconds: float, *, full: bool) -> None:
        """Count time without anything to move, or with no room for it."""
        if full:
            self.full_s += seconds
        else:
            self.starved_s += seconds

    def let_go(self, most: int) -> None:
        """Let go of the host memory of copies that are done; wait until `most` are under way."""
        while self.under_way and (len(self.under_way) > most or self.under_way[0][0].is_done()):
            mark, _held = self.under_way.popleft()  # only after the wait may the slot go back
            started = time.perf_counter()
            with suppress(DeviceError):  # what failed shows at the batch itself
                mark.wait()
            self.copying_s += time.perf_counter() - started


class Work(Protocol):
    """What the threads do: a pool's inside."""

    def next(self, walk: Walk) -> DeviceArrival | None:
        """Return the batch to move next; None if there is none now, or at the end.

        With copies under way it does not wait for one.
        """
        ...

    def move(self, arrival: DeviceArrival, walk: Walk) -> None:
        """Begin to move a batch."""
        ...

    def fail(self, error: BaseException) -> None:
        """Have the loop raise an error, after the results that are there."""
        ...


class Lanes:
    """One thread a stage."""

    def __init__(self, work: Work, stages: Sequence[Stage]) -> None:
        # Only the threads hold the pool, which holds us: it is to end with its last user.
        copies = max(1, _UNDER_WAY // max(1, len(stages)))  # under way, of each
        self._threads = [
            threading.Thread(
                target=_run, args=(work, Walk(stage, lane), copies), name="fastfeed-stage"
            )
            for lane, stage in enumerate(stages)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def are_alive(self) -> bool:
        """Say whether none of the threads has ended."""
        return all(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self._threads:
            thread.join()


def _run(work: Work, walk: Walk, copies: int) -> None:
    try:
        with at_work():
            walk.stage.device.enter_thread()
            while _step(work, walk, copies):
                pass
    except BaseException as error:  # noqa: BLE001 - it is raised in the loop
        work.fail(error)


def _step(work: Work, walk: Walk, copies: int) -> bool:
    """Begin the copies of a batch or wait for the oldest ones; false if nothing is left to do.

    Names here end with each call: one that lived on would keep its slot lent.
    """
    arrival = work.next(walk)
    if arrival is not None:
        work.move(arrival, walk)
        walk.let_go(copies - 1)
        return True
    if not walk.under_way:
        return False
    walk.let_go(len(walk.under_way) - 1)
    return True
