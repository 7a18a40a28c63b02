"""How many of a loader's workers are in use while it runs: the tuner's hand on the loop.

All workers that may be needed are started at once; one that is not in use gets no jobs and costs no
more than its process. So the number changes between two batches, and the order of batches never.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastfeed.tuner.measured import Window
from fastfeed.tuner.workers import WorkerTuner

if TYPE_CHECKING:
    from fastfeed.tuner.decision import Decision

# A window is at least this long, so that a few slow batches do not decide.
_WINDOW_S = 0.7
# And holds the batches under way so many times, so that their stock does not hide the workers.
_WINDOW_STOCKS = 2


class Workforce:
    """Workers 0 to `in_use - 1` get the jobs; with `fixed` that are all, always."""

    def __init__(self, workers: int, *, fixed: bool) -> None:
        self._tuner = None if fixed else WorkerTuner(workers, most=workers)
        self._workers = workers
        self._batches = 0
        self._waited_s = self._busy_s = 0.0
        self._started: float | None = None

    @property
    def in_use(self) -> int:
        """How many workers get jobs now."""
        return self._workers if self._tuner is None else self._tuner.workers

    @property
    def is_tuned(self) -> bool:
        """Whether the number may change."""
        return self._tuner is not None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every change so far."""
        return () if self._tuner is None else tuple(self._tuner.decisions)

    def begin(self) -> None:
        """An epoch begins: what passed since the last batch says nothing of workers."""
        self._started = None

    def delivered(self, *, wait_s: float, busy_s: float, stock: int) -> None:
        """Count a batch; `stock` is how many are under way when all workers in use have theirs."""
        if self._tuner is None:
            return
        now = time.perf_counter()
        if self._started is None:
            self._started, self._batches, self._waited_s, self._busy_s = now, 0, 0.0, 0.0
            return
        self._batches += 1
        self._waited_s += wait_s
        self._busy_s += busy_s
        elapsed_s = now - self._started
        if elapsed_s < _WINDOW_S or self._batches < _WINDOW_STOCKS * stock:
            return
        self._tuner.observe(
            Window(elapsed_s, self._waited_s, self._busy_s, self._batches, self._tuner.workers)
        )
        self._started, self._batches, self._waited_s, self._busy_s = now, 0, 0.0, 0.0
