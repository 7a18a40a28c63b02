"""Many ranks, played one after the other: equal shares, and epochs resumed on another number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

import fastfeed as ff
from fastfeed.errors import OptionError
from fastfeed.plan import Plan
from fastfeed.sampler import ShardSampler


class Planned:
    """A data set over shards that gives the numbers of its samples, without files."""

    seed = 7

    def __init__(self, *counts):
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def __len__(self):
        return int(self.starts[-1])

    def __getitem__(self, index):
        return index

    def plan(self, epoch):
        sizes = np.full(len(self.starts) - 1, 10, dtype=np.int64)
        return Plan(self.starts, sizes, 35, self.seed, epoch)

    def fingerprint(self):
        """Return what tells it from others."""
        return str(self.starts.tolist())


def loaders(data, world, *, batch_size=4, workers=0, **options):
    """Return the loaders of all ranks."""
    return [
        ff.DataLoader(
            data,
            batch_size,
            sampler=ShardSampler(data, num_replicas=world, rank=rank, **options),
            num_workers=workers,
        )
        for rank in range(world)
    ]


def run(ranks, steps=None):
    """Let all ranks take so many batches, or all; return samples in order, and the states."""
    iterators = [iter(one) for one in ranks]
    found = []
    taken = 0
    while steps is None or taken < steps:
        batches = [next(one, None) for one in iterators]
        assert len({batch is None for batch in batches}) == 1, "a rank ended before the others"
        if batches[0] is None:
            break
        assert len({len(batch) for batch in batches}) == 1
        found += [int(n) for group in zip(*batches, strict=True) for n in group]
        taken += 1
    return found, [one.state_dict() for one in ranks]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_c57_all_ranks_take_as_many_batches(world, workers, drop_last):
    """Shards of 3 to 9 samples: equal batches, the union is all, only padding comes twice."""
    data = Planned(3, 4, 5, 6, 7, 8, 9)
    found, _ = run(loaders(data, world, workers=workers, drop_last=drop_last))
    counts = Counter(found)
    if drop_last:
        assert len(found) == 42 // world * world
        assert set(counts.values()) == {1}
    else:
        assert sorted(counts) == list(range(42))
        assert len(found) - 42 == -42 % world
        assert max(counts.values()) <= 2


def test_c57_a_bad_sample_does_not_change_the_count(number_shards):
    """One sample of one rank cannot be read: substituted, so that ranks stay in step."""
    paths = number_shards(5, 8, 11, text=lambda n: "bad" if n == 6 else str(n))
    data = ff.ShardDataset(paths, {"n": ff.Int("cls")}, on_error="substitute")
    for workers in (0, 2):
        sizes = [[len(batch["n"]) for batch in one] for one in loaders(data, 2, workers=workers)]
        assert sizes[0] == sizes[1] == [4, 4, 4]
    assert data.bad_count == 2  # one in each of the two runs


@pytest.mark.parametrize("workers", [0, 2])
def test_c59_ranks_share_nothing(number_shards, workers):
    """Different global seeds in the ranks: their parts are disjoint and complete all the same."""
    paths = number_shards(5, 8, 11)
    parts = []
    for rank in range(2):
        torch.manual_seed(100 + rank)
        np.random.seed(rank)
        data = ff.ShardDataset(paths, {"n": ff.Int("cls")})
        sampler = ShardSampler(data, num_replicas=2, rank=rank)
        loader = ff.DataLoader(data, 4, sampler=sampler, num_workers=workers)
        parts.append([torch.cat([batch["n"] for batch in loader]).tolist() for _ in range(2)])
    for epoch in range(2):
        assert sorted(parts[0][epoch] + parts[1][epoch]) == list(range(24))


def test_c59_a_process_group_made_later_counts(monkeypatch):
    """Ranks are asked for when an epoch begins, not when the loader is made."""
    data = Planned(10, 10)
    loader = ff.DataLoader(data, 4, sampler=ShardSampler(data))
    assert len(torch.cat(list(loader))) == 20
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    loader.set_epoch(0)
    second = torch.cat(list(loader)).tolist()
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    loader.set_epoch(0)
    assert sorted(second + torch.cat(list(loader)).tolist()) == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 3), (3, 4), (2, 2)])
def test_c62_another_number_of_ranks(before, after, workers):
    """The epoch goes on in the order that it had, each sample once, on any number of ranks."""
    data = Planned(10, 20, 30, 12)  # 72: every share that is left is even
    golden, _ = run(loaders(data, 1))
    steps = 3
    first, states = run(loaders(data, before, workers=workers), steps=steps)
    assert first == golden[: before * 4 * steps]
    ranks = loaders(data, after, workers=2 - workers)
    for rank, one in enumerate(ranks):
        one.load_state_dict(states[rank % before])
    rest, _ = run(ranks)
    assert (first + rest)[:72] == golden
    assert len(first + rest) - 72 < after
    again, _ = run(ranks)  # the next epoch is whole, and another one
    assert sorted(set(again)) == list(range(72))
    assert again != golden


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    steps=st.integers(0, 3),
    batch_size=st.integers(1, 5),
)
def test_c62_any_changes_of_ranks(counts, worlds, steps, batch_size):
    """Saved and resumed on other numbers of ranks again and again: the order goes on."""
    data = Planned(*counts)
    golden, _ = run(loaders(data, 1, batch_size=batch_size))
    found, states = [], None
    for number, world in enumerate(worlds):
        ranks = loaders(data, world, batch_size=batch_size)
        if states is not None:
            for one in ranks:
                one.load_state_dict(states[0])
        last = number + 1 == len(worlds)
        more, states = run(ranks, steps=None if last else steps)
        if len(found) + len(more) >= len(golden):  # this epoch has ended, perhaps with padding
            found += more
            break
        found += more
    assert found[: len(golden)] == golden
    assert len(found) - len(golden) < max(worlds)


def test_c62_a_distributed_sampler_cannot_change_its_ranks():
    """Torch's own sampler has no position over all ranks: refused with the numbers."""
    data = Planned(20)

    def make(world):
        return ff.DataLoader(data, 4, sampler=DistributedSampler(data, world, 0, seed=1))

    loader = make(2)
    next(iter(loader))
    with pytest.raises(OptionError, match="ranks 2, and now it is 4"):
        make(4).load_state_dict(loader.state_dict())


def test_c62_other_shards_are_refused(number_shards):
    """One shard renamed, added or left out: an error that says how to go on regardless."""
    paths = number_shards(6, 6, 6)

    def make(paths):
        data = ff.ShardDataset(paths, {"n": ff.Int("cls")})
        return ff.DataLoader(data, 4, shuffle=True)

    loader = make(paths[:2])
    next(iter(loader))
    state = loader.state_dict()
    renamed = Path(paths[1]).with_name("other.tar")
    renamed.write_bytes(Path(paths[1]).read_bytes())
    for others in (paths, paths[:1], [paths[0], str(renamed)], [paths[0], paths[2]]):
        with pytest.raises(OptionError, match=r"(samples|shards) .*strict=False"):
            make(others).load_state_dict(state)
    same = make(paths[:2])
    same.load_state_dict(state)
    assert len(list(same)) == 2
