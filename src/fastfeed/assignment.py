"""Which worker makes which batch: in turn, as torch has it, or whoever has least to do."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Assignment:
    """The batches of an epoch that were given to workers and not yet delivered."""

    def __init__(self, workers: int, *, prefetch: int, in_order: bool) -> None:
        self.active = [True] * workers
        """Whether each worker may have more batches; others have given all they had."""
        self._prefetch = prefetch
        self._in_order = in_order
        self._owners: dict[int, int] = {}
        self._tasks = [0] * workers
        self.begin_with(0)

    def begin_with(self, worker: int) -> None:
        """Have turns begin with a worker."""
        count = len(self.active)
        self._cycle = cycle((worker + turn) % count for turn in range(count))

    def __len__(self) -> int:
        return len(self._owners)

    def next_in_turn(self, in_use: int) -> int | None:
        """Return which of the first `in_use` workers torch would give a batch, None if to none."""
        most = self._prefetch * len(self.active) // max(1, sum(self.active))
        for _ in self.active:
            worker = next(self._cycle)
            works = self.active[worker] and worker < in_use
            if works and (self._in_order or self._tasks[worker] < most):
                return worker
        return None

    def least_busy(self, in_use: int, number: int, under_way: Callable[[int], int]) -> int:
        """Return the worker with the fewest jobs under way, of those that may hold more batches.

        In turn, all would be as slow as the one that shares its core with the trainer.
        """
        first = number % in_use
        turns = (*range(first, in_use), *range(first))
        fit = [worker for worker in turns if self._tasks[worker] <= self._prefetch]
        least: int = min(fit or turns, key=under_way)
        return least

    def give(self, number: int, worker: int) -> None:
        """Note that a worker makes a batch."""
        self._owners[number] = worker
        self._tasks[worker] += 1

    def owner(self, number: int) -> int | None:
        """Return which worker makes a batch, None if none does any more."""
        return self._owners.get(number)

    def delivered(self, number: int) -> None:
        """Note that a batch was delivered."""
        self._tasks[self._owners.pop(number)] -= 1

    def forget(self, number: int) -> None:
        """Note that a batch will not come: it was delivered already, or its worker has ended."""
        self._owners.pop(number, None)

    def ended(self, number: int, worker: int) -> None:
        """Note that a worker had no such batch, and will have no other."""
        self.active[worker] = False
        self.forget(number)
