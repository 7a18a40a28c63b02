"""Asks the kernel for the shards of the window in use and of the next one, before they are read.

Samples of a window are read in random order, one by one; on a cold disk each would be a request of
its own. With this the shards stream into the page cache whole, in large sequential requests.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fastfeed.plan import Plan
    from fastfeed.reading.shards import ShardSet

_AT_A_TIME = 4


class ReadAhead:
    """Follows the plan of a shuffled epoch; each of `workers` asks for its part of the shards."""

    def __init__(
        self, shards: ShardSet, plan: Callable[[int], Plan], *, worker: int, workers: int
    ) -> None:
        self._shards = shards
        self._plan = plan
        self._worker, self._workers = worker, workers
        self._epoch: int | None = None
        self._windows: list[NDArray[np.int64]] = []
        self._window_of: NDArray[np.int64] = np.empty(0, np.int64)
        self._known = 0
        self._due: deque[int] = deque()

    def follow(self, indices: NDArray[np.int64], epoch: int) -> None:
        """Take note of a batch that is about to be read."""
        if epoch != self._epoch:
            self._begin(epoch)
        numbers = np.searchsorted(self._shards.starts, indices, side="right") - 1
        # One window is in use and the next is wanted; what lies further back was asked for.
        wanted = min(int(self._window_of[numbers].max(initial=-1)) + 2, len(self._windows))
        while self._known < wanted:
            window = self._windows[self._known]
            self._due.extend(window[window % self._workers == self._worker].tolist())
            self._known += 1
        # A few at a time: the first batch must not wait until thousands of shards are open.
        for _ in range(min(_AT_A_TIME, len(self._due))):
            self._shards.advise(self._due.popleft())

    def _begin(self, epoch: int) -> None:
        self._epoch, self._known = epoch, 0
        self._due.clear()
        self._windows = self._plan(epoch).windows()
        self._window_of = np.empty(self._shards.shard_count, np.int64)
        for number, window in enumerate(self._windows):
            self._window_of[window] = number
