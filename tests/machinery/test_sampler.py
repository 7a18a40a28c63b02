"""The sampler: ranks share one order, epochs advance by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DistributedSampler

from fastfeed.plan import Plan
from fastfeed.sampler import ShardSampler


class Planned:
    seed = 7

    def __init__(self, counts):
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def __len__(self):
        return int(self.starts[-1])

    def plan(self, epoch):
        sizes = np.full(len(self.starts) - 1, 10, dtype=np.int64)
        return Plan(self.starts, sizes, 35, self.seed, epoch)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_c57_ranks_get_equal_parts_of_one_order(world, drop_last, shuffle):
    """All ranks get as many samples; together they are the order of one rank, padded or cut."""
    planned = Planned([3, 4, 5, 6, 7, 8, 9])
    parts = [
        list(
            ShardSampler(
                planned, shuffle=shuffle, drop_last=drop_last, num_replicas=world, rank=rank
            )
        )
        for rank in range(world)
    ]
    whole = list(ShardSampler(planned, shuffle=shuffle, num_replicas=1, rank=0))
    assert sorted(whole) == list(range(42))
    assert len({len(part) for part in parts}) == 1
    joined = [index for group in zip(*parts, strict=True) for index in group]
    assert joined[: len(whole)] == whole[: len(joined)]
    assert len(joined) == (42 // world * world if drop_last else -(-42 // world) * world)
    assert joined[len(whole) :] == whole[: max(0, len(joined) - len(whole))]


def test_more_ranks_than_samples_repeat_the_first():
    """A data set smaller than the world is repeated until every rank has one sample."""
    planned = Planned([2])
    parts = [list(ShardSampler(planned, num_replicas=5, rank=rank)) for rank in range(5)]
    assert [len(part) for part in parts] == [1] * 5
    assert {part[0] for part in parts} == {0, 1}


def test_c52_epoch_advances_by_itself_and_can_be_set():
    """Each iteration has the next epoch's order; `set_epoch` chooses it."""
    sampler = ShardSampler(Planned([20, 20]))
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert sampler.epoch == 1


def test_asking_for_an_iterator_twice_advances_once():
    """Loaders make an iterator that they never use; the epoch is taken at the first sample."""
    sampler = ShardSampler(Planned([20]))
    iter(sampler)
    next(iter(sampler))
    assert sampler.epoch == 1


def test_trainers_recognise_the_sampler():
    """Trainers leave a DistributedSampler alone instead of splitting once more."""
    assert isinstance(ShardSampler(Planned([4])), DistributedSampler)
