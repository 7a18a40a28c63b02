"""Asks for the shards of the window in use and of the next one, before they are read.

Samples of a window are read in random order, one by one; on a cold disk each would be a request of
its own. With this the shards stream into the page cache whole, in large sequential requests. Of
remote shards the cache folder is told instead (`staging/`), in which they arrive whole as well.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fastfeed.errors import FastfeedError
from fastfeed.storage.urls import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fastfeed.reading.shards import ShardSet
    from fastfeed.staging.staged import Staged

_AT_A_TIME = 4


class Order(Protocol):
    """An epoch's order as far as shards go: a `Plan`, or `InOrder`."""

    def windows(self) -> list[NDArray[np.int64]]:
        """Return the shard numbers of each window, in the order they are read."""
        ...


class InOrder:
    """The order of an epoch that is not shuffled: shard by shard."""

    def __init__(self, shard_count: int) -> None:
        self._count = shard_count

    def windows(self) -> list[NDArray[np.int64]]:
        """Return each shard as a window of its own."""
        return list(np.arange(self._count, dtype=np.int64).reshape(-1, 1))


class ReadAhead:
    """Follows the order of an epoch, in one of `workers` processes.

    Each asks for its part of the shards first, so that they share the work, and for the others'
    then: it cannot know who is at work, and what the page cache has costs next to nothing.
    With `staged` every worker also says where it is and what it will read, so that one of them
    brings those shards near, and nobody evicts what another needs.
    """

    def __init__(
        self,
        shards: ShardSet,
        plan: Callable[[int], Order],
        *,
        worker: int,
        workers: int,
        staged: Staged | None = None,
    ) -> None:
        self._shards = shards
        self._plan = plan
        self._worker, self._workers = worker, workers
        self._staged = staged
        self._epoch: int | None = None
        self._windows: list[NDArray[np.int64]] = []
        self._begins: NDArray[np.int64] = np.zeros(1, np.int64)
        self._window_of: NDArray[np.int64] = np.empty(0, np.int64)
        self._known = 0
        self._due: deque[int] = deque()
        self._window = 0
        self._followed = 0

    def follow(self, indices: NDArray[np.int64], epoch: int) -> None:
        """Take note of a batch that is about to be read."""
        if epoch != self._epoch:
            self._begin(epoch)
        numbers = np.searchsorted(self._shards.starts, indices, side="right") - 1
        windows = self._window_of[numbers]
        if self._staged is not None and len(windows):
            # A batch may begin in one window and end in the next; the first is not done then. What
            # fills up the last round is of the first window, which is not begun again for it.
            self._window = max(self._window, int(windows.min()))
            self._followed += 1
            if self._followed > 1:  # the first batch has the link for itself
                self._tell()
        # One window is in use and the next is wanted; what lies further back was asked for.
        wanted = min(int(windows.max(initial=-1)) + 2, len(self._windows))
        while self._known < wanted:
            window_in = self._windows[self._known]
            turns = (window_in - self._worker) % self._workers
            self._due.extend(window_in[np.argsort(turns, kind="stable")].tolist())
            self._known += 1
        # A few at a time: the first batch must not wait until thousands of shards are open.
        for _ in range(min(_AT_A_TIME, len(self._due))):
            self._advise(self._due.popleft())

    def arrived(self) -> None:
        """Take note that the batch was read."""
        if self._followed == 1:
            self._tell()

    def restart(self) -> None:
        """Begin an epoch with the next batch, though it may have the number of the one before."""
        self._epoch = None

    def close(self) -> None:
        """Ask for nothing any more."""
        if self._staged is not None:
            self._staged.close(user=self)

    def _tell(self) -> None:
        if self._staged is not None:
            here = self._window
            begin, end, soon = self._begins[[here, here + 1, min(here + 2, len(self._windows))]]
            window, zone = int(end - begin), int(soon - begin)
            self._staged.reached(int(begin), window=window, zone=zone, user=self)

    def _advise(self, shard: int) -> None:
        # Opening a remote shard takes round trips that the batch would wait for.
        ours = self._staged is None and shard % self._workers == self._worker
        if ours or not is_remote(self._shards.name(shard)):
            with suppress(FastfeedError):  # who reads it meets what is wrong, and has a policy
                self._shards.advise(shard)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._known, self._window = epoch, 0, 0
        self._due.clear()
        self._windows = self._plan(epoch).windows()
        self._begins = np.concatenate(([0], np.cumsum([len(w) for w in self._windows]))).astype(
            np.int64
        )
        self._window_of = np.empty(self._shards.shard_count, np.int64)
        for number, window in enumerate(self._windows):
            self._window_of[window] = number
        if self._staged is not None:
            order = self._windows + self._plan(epoch + 1).windows()
            names = [self._shards.name(i) for window in order for i in window.tolist()]
            self._staged.expect(names, user=self)
