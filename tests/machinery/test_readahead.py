"""Shards of the window in use and of the next are asked for, each once an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from fastfeed.plan import Plan
from fastfeed.readahead import ReadAhead


class Shards:
    """Shards that note what they are asked for."""

    def __init__(self, count):
        self.shard_count = count
        self.starts = np.arange(count + 1, dtype=np.int64) * 10
        self.asked = []

    def advise(self, shard):
        self.asked.append(shard)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_shard_is_asked_for_once_before_its_window(workers):
    """All workers together ask for every shard once, a window ahead of the reads."""
    shards = Shards(12)

    def plan(epoch):
        return Plan(shards.starts, np.full(12, 100, dtype=np.int64), 300, 0, epoch)

    ahead = [ReadAhead(shards, plan, worker=w, workers=workers) for w in range(workers)]
    windows = plan(0).windows()
    for number, order in enumerate(plan(0).order()):
        for one in ahead:
            for _ in range(3):
                one.follow(order[:4], 0)
        due = np.concatenate(windows[: number + 2])
        assert sorted(shards.asked) == sorted(due.tolist())
    shards.asked.clear()
    for one in ahead:
        for _ in range(3):
            one.follow(next(plan(1).order()), 1)
    assert sorted(shards.asked) == sorted(np.concatenate(plan(1).windows()[:2]).tolist())
