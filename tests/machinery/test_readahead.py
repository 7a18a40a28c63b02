"""Shards of the window in use and of the next are asked for, each once an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from fastfeed.plan import Plan
from fastfeed.readahead import InOrder, ReadAhead
from fastfeed.sampler import ShardSampler

COUNT = 12


class Shards:
    """Shards of ten samples that note what they are asked for; three make a window."""

    seed = 0
    shard_count = COUNT
    starts = np.arange(COUNT + 1, dtype=np.int64) * 10

    def __init__(self, far=()):
        self.asked = []
        self._far = far

    def __len__(self):
        return int(self.starts[-1])

    def plan(self, epoch):
        return Plan(self.starts, np.full(COUNT, 100, dtype=np.int64), 300, self.seed, epoch)

    def name(self, shard):
        return f"{'s3://bucket/' if shard in self._far else ''}{shard}.tar"

    def advise(self, shard):
        self.asked.append(shard)


class Staged:
    """Notes what it is told."""

    def __init__(self):
        self.places = []

    def expect(self, urls, *, user):
        self.places.append("expect")

    def reached(self, place, *, window, zone, user):
        self.places.append(place)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_shard_is_asked_for_once_before_its_window(workers):
    """Each worker asks for every shard once, a window ahead of the reads; its own part first."""
    per_worker = [Shards() for _ in range(workers)]
    ahead = [ReadAhead(s, s.plan, worker=w, workers=workers) for w, s in enumerate(per_worker)]
    plan = per_worker[0].plan
    windows = plan(0).windows()
    for number, order in enumerate(plan(0).order()):
        before = [len(shards.asked) for shards in per_worker]
        for one in ahead:
            for _ in range(3):
                one.follow(order[:4], 0)
        due = np.concatenate(windows[: number + 2])
        for shards in per_worker:
            assert sorted(shards.asked) == sorted(due.tolist())
        for worker, shards in enumerate(per_worker):
            if number:
                turns = [(n - worker) % workers for n in shards.asked[before[worker] :]]
                assert turns == sorted(turns)
    for shards, one in zip(per_worker, ahead, strict=True):
        shards.asked.clear()
        for _ in range(3):
            one.follow(next(plan(1).order()), 1)
        assert sorted(shards.asked) == sorted(np.concatenate(plan(1).windows()[:2]).tolist())


def test_workers_that_get_no_jobs_leave_no_shard_out():
    """With AUTO two of eight may be at work: nobody asks for less because of that."""
    shards = Shards()
    ahead = [ReadAhead(shards, shards.plan, worker=w, workers=8) for w in range(2)]
    order = np.concatenate(list(shards.plan(0).order()))
    for turn in range(0, len(order), 5):
        ahead[turn // 5 % 2].follow(order[turn : turn + 5], 0)
    assert set(shards.asked) == set(range(COUNT))


def test_far_shards_are_opened_by_one_worker_only():
    """Where nothing is staged, opening far ones ahead is shared: it takes round trips."""
    asked = []
    for worker in range(3):
        shards = Shards(far=range(COUNT))
        ahead = ReadAhead(shards, shards.plan, worker=worker, workers=3)
        for order in shards.plan(0).order():
            for _ in range(3):
                ahead.follow(order[:4], 0)
        asked += shards.asked
    assert sorted(asked) == list(range(COUNT))


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_fills_up_the_last_round_does_not_go_back(shuffle):
    """The first samples of the order come again at its end; their shards are still done."""
    shards, staged = Shards(), Staged()
    order = shards.plan if shuffle else lambda _: InOrder(COUNT)
    ahead = ReadAhead(shards, order, worker=0, workers=1, staged=staged)
    indices = np.array(list(ShardSampler(shards, shuffle=shuffle, num_replicas=7, rank=6)))
    assert len(indices) * 7 > len(shards)
    for size in (1, 4):  # the last batch is of the first sample alone, or has it at its end
        staged.places.clear()
        ahead.restart()
        for first in range(0, len(indices), size):
            ahead.follow(indices[first : first + size], 0)
            ahead.arrived()
        assert staged.places.pop(0) == "expect"
        assert staged.places == sorted(staged.places)
        assert staged.places[-1] >= COUNT - 3


def test_a_first_batch_that_failed_does_not_arrive_with_a_later_one():
    """Its place is said no more once the second batch has said its own."""
    shards, staged = Shards(), Staged()
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=staged)
    windows = list(shards.plan(0).order())
    ahead.follow(windows[0], 0)
    assert staged.places == ["expect"]
    ahead.follow(windows[2], 0)
    ahead.arrived()
    assert staged.places == ["expect", 6]


def test_an_epoch_of_the_same_number_begins_anew():
    """As that of a validation is, whose epoch is set each time and whose workers persist."""
    shards, staged = Shards(), Staged()
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=staged)
    for _ in range(2):
        for indices in shards.plan(0).order():
            ahead.follow(indices, 0)
            ahead.arrived()
        ahead.restart()
    assert staged.places == ["expect", 0, 3, 6, 9] * 2
