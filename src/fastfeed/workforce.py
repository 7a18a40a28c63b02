"""How many of a loader's workers are in use while it runs: the tuner's hand on the loop.

One that is not in use gets no jobs and costs no more than its process. So the number changes
between two batches, and the order of batches never. As many as there are cores are started at
once; more of them when the loop could use them, as far as they wait instead of computing.
"""

from __future__ import annotations

import time
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from fastfeed.topology import runnable_s
from fastfeed.tuner.measured import Window
from fastfeed.tuner.workers import WorkerTuner

if TYPE_CHECKING:
    from pathlib import Path

    from fastfeed.tuner.decision import Decision

# A window is at least this long, so that a few slow batches do not decide.
_WINDOW_S = 0.7
# And holds the batches under way so many times, so that their stock does not hide the workers.
_WINDOW_STOCKS = 2
# A step this much longer than the others, and no shorter than a second, is a pause of the loop: a
# checkpoint, or a validation.
_PAUSE, _PAUSE_S = 16, 1.0
# Workers that wait take no core, but a process each.
_WAITING = 16
# The loop takes part in reading what a hundred threads did, which is milliseconds, so that is done
# only where it waits for more than this part of a window.
_WAITS = 0.01
# What workers compute varies; those in use are too many only if they want so many times the cores.
_OVER = 2.0


class Hands(Protocol):
    """The workers that there are."""

    @property
    def most(self) -> int:
        """How many there may be."""
        ...

    def employ(self, workers: int) -> int:
        """Have so many at least; return how many are ready."""
        ...

    def tasks(self, workers: int) -> list[Path]:
        """Return the folders in /proc of the threads of the first so many."""
        ...


class Workforce:
    """Workers 0 to `in_use - 1` of one iterator get the jobs; with `fixed` that are all, always.

    `workers` is as many as may compute at a time. With `grows` there may be more of them. Another
    iterator gets a copy, which begins with what was found here and follows its own loop.
    """

    def __init__(self, workers: int, *, fixed: bool, grows: bool = False) -> None:
        workers = int(workers)  # one of AUTO says its name
        self.most = max(workers, _WAITING) if grows and not fixed else workers
        """How many there may be at the most."""
        self._tuner = None if fixed else WorkerTuner(workers, most=workers)
        self._workers = workers
        self._ready = workers
        self._batches = 0
        self._waited_s = self._busy_s = 0.0
        self._started: float | None = None
        self._delivered: float | None = None
        self._step_s = 0.0
        self._stale = 0
        self._looks = True
        self._ran_s: float | None = None
        self._computed: tuple[float, float] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has a tuner of its own."""
        return {**self.__dict__, "_tuner": copy(self._tuner)}

    @property
    def in_use(self) -> int:
        """How many workers get jobs now."""
        return self._workers if self._tuner is None else min(self._tuner.workers, self._ready)

    @property
    def first(self) -> int:
        """How many workers an iterator starts with."""
        return self._workers if self._tuner is None else max(self._workers, self._tuner.workers)

    @property
    def is_tuned(self) -> bool:
        """Whether the number may change."""
        return self._tuner is not None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every change so far."""
        return () if self._tuner is None else tuple(self._tuner.decisions)

    def begin(self, hands: Hands) -> None:
        """An epoch begins: what passed since the last batch says nothing of workers."""
        self._started = self._delivered = None
        if self._tuner is not None:
            self._ready = max(1, hands.employ(self._tuner.workers))

    def delivered(self, hands: Hands, *, wait_s: float, busy_s: float, stock: int) -> None:
        """Count a batch; `stock` is how many are under way when all workers in use have theirs."""
        if self._tuner is None:
            return
        now = time.perf_counter()
        if self._ready < self._tuner.workers:
            ready = hands.employ(self._tuner.workers)
            if ready > self._ready:
                self._ready, self._started = ready, None
        if self._paused(now - wait_s):
            # What was made meanwhile lies ready, and comes at once.
            self._started, self._stale = None, stock
        self._delivered = now
        if self._stale:
            self._stale -= 1
            return
        if self._started is None:
            self._open_window(hands, now)
            return
        self._batches += 1
        self._waited_s += wait_s
        self._busy_s += busy_s
        elapsed_s = now - self._started
        if elapsed_s < _WINDOW_S or self._batches < _WINDOW_STOCKS * stock:
            return
        if self._looks:
            self._tuner.most = min(self._limit(hands), hands.most)
        self._tuner.observe(
            Window(elapsed_s, self._waited_s, self._busy_s, self._batches, self.in_use)
        )
        # While the loop does not wait nobody asks for more workers than there are cores.
        self._looks = self._waited_s > _WAITS * elapsed_s or self.in_use > self._workers
        self._open_window(hands, now)

    def _paused(self, asked: float) -> bool:
        """Tell whether the step that ended when the batch was asked for was no step."""
        if self._delivered is None:
            return False
        own_s = asked - self._delivered
        usual_s = self._step_s or own_s
        self._step_s = usual_s + (own_s - usual_s) / _PAUSE
        return own_s > max(_PAUSE_S, _PAUSE * usual_s)

    def _open_window(self, hands: Hands, now: float) -> None:
        self._started, self._batches, self._waited_s, self._busy_s = now, 0, 0.0, 0.0
        looks = self._looks and self.most > self._workers
        self._ran_s = runnable_s(hands.tasks(self.in_use)) if looks else None

    def _limit(self, hands: Hands) -> int:
        """Return how many workers there may be, so that no more compute than there are cores for.

        What a worker computes is the time that it had a core or stood in line for one.
        """
        used = self._tuner.workers if self._tuner is not None else self._workers
        ran_s = None if self._ran_s is None else runnable_s(hands.tasks(self.in_use))
        if ran_s is None or self._ran_s is None or ran_s < self._ran_s:
            return self._workers
        # The windows before fade: one alone says little.
        computed_s, busy_s = self._computed or (0.0, 0.0)
        computed_s = computed_s / 2 + ran_s - self._ran_s
        busy_s = busy_s / 2 + self._busy_s
        self._computed = computed_s, busy_s
        cores = self._workers
        limit = int(min(cores * busy_s / max(computed_s, 1e-9), self.most))
        if limit < used and used * computed_s <= _OVER * cores * busy_s:
            limit = min(used, self.most)
        return max(limit, self._workers)
