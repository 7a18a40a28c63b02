"""Epochs of every kind of data: their orders, draws, lengths, and workers that stay."""

from __future__ import annotations

import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)
from torch.utils.data import DataLoader as Torchs

import fastfeed as ff
from fastfeed.plan import Plan
from fastfeed.sampler import ShardSampler

# More workers than this machine has cores, perhaps.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FORKED = [(0, None, False), (2, "fork", False), (2, "fork", True)]


class Augmented(Dataset):
    """An index and draws of all three generators."""

    def __init__(self, count=40):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(())


class Shuffled(IterableDataset):
    """An order from the workers' common seed and a count of its own epochs."""

    def __init__(self):
        self.begun = 0

    def __iter__(self):
        info = get_worker_info()
        seed = info.seed - info.id if info else int(torch.randint(1 << 40, ()))
        self.begun += 1
        order = random.Random(seed + self.begun).sample(range(40), 40)
        for index in order[info.id :: info.num_workers] if info else order:
            yield index, random.random(), np.random.rand(), torch.rand(())


class OfEpoch(IterableDataset):
    """An order by epoch, which the loader is told."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = random.Random(self.epoch).sample(range(40), 40)
        info = get_worker_info()
        yield from order[info.id :: info.num_workers] if info else order


def options_of(workers, method, persistent):
    return {
        "num_workers": workers,
        "multiprocessing_context": method,
        "persistent_workers": persistent,
    }


def told(batches):
    """Return indices and draws of an epoch."""
    columns = [torch.cat(column).tolist() for column in zip(*batches, strict=True)]
    return columns[0], columns[1:]


def distributed(options):
    sampler = DistributedSampler(Augmented(), num_replicas=1, rank=0, seed=3)
    return ff.DataLoader(Augmented(), 4, sampler=sampler, **options)


def drawn(options):
    return ff.DataLoader(Augmented(), 4, shuffle=True, **options)


@pytest.mark.parametrize("options", FORKED)
@pytest.mark.parametrize("make", [distributed, drawn])
def test_c52_maps(make, options):
    """Orders and draws of three epochs differ, each complete, and repeat with the same seed."""
    runs = []
    for _ in range(2):
        torch.manual_seed(2)
        random.seed(3)
        np.random.seed(4)
        loader = make(options_of(*options))
        epochs = []
        for number in range(3):
            loader.set_epoch(number)
            epochs.append(told(list(loader)))
        runs.append(epochs)
        orders, draws = zip(*epochs, strict=True)
        assert all(sorted(order) == list(range(40)) for order in orders)
        assert orders[0] != orders[1] != orders[2] != orders[0]
        for generator in range(3):
            assert len({number for epoch in draws for number in epoch[generator]}) == 120
    assert runs[0] == runs[1]
    if make is distributed:
        loader.set_epoch(0)
        assert told(list(loader))[0] == epochs[0][0]


@pytest.mark.parametrize("options", FORKED)
def test_c52_iterable(options):
    """Orders and draws of a stream differ from epoch to epoch, in workers that stay too."""
    runs = []
    for _ in range(2):
        torch.manual_seed(2)
        random.seed(3)
        np.random.seed(4)
        loader = ff.DataLoader(Shuffled(), 4, **options_of(*options))
        orders, draws = zip(*[told(list(loader)) for _ in range(3)], strict=True)
        assert all(sorted(order) == list(range(40)) for order in orders)
        assert orders[0] != orders[1] != orders[2] != orders[0]
        for generator in range(3):
            assert len({number for epoch in draws for number in epoch[generator]}) == 120
        runs.append((orders, draws))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("options", FORKED)
def test_c52_iterable_is_told_the_epoch(options):
    """`set_epoch` of the loader reaches the data set of workers that start anew."""
    loader = ff.DataLoader(OfEpoch(), 4, **options_of(*options))
    orders = []
    for epoch in (0, 1, 2, 0):
        loader.set_epoch(epoch)
        orders.append(torch.cat(list(loader)).tolist())
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(40)) for order in orders)


@pytest.mark.parametrize("options", [*FORKED, (1, "spawn", True), (1, "forkserver", True)])
def test_c52_shards(number_shards, options):
    """The same orders whatever the workers; `set_epoch(0)` brings the first one back."""
    data = ff.ShardDataset(number_shards(13, 7, 20), {"n": ff.Int("cls")}, seed=3)
    loader = ff.DataLoader(data, 4, shuffle=True, **options_of(*options))
    orders = [torch.cat([b["n"] for b in loader]).tolist() for _ in range(3)]
    loader.set_epoch(0)
    orders.append(torch.cat([batch["n"] for batch in loader]).tolist())
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3
    plain = ff.DataLoader(data, 4, shuffle=True)
    assert orders[:3] == [torch.cat([b["n"] for b in plain]).tolist() for _ in range(3)]


class Told(Dataset):
    """A map-style data set that listens to `set_epoch`."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.epoch


@pytest.mark.parametrize(("workers", "method", "persistent"), FORKED)
def test_c52_a_map_is_told_the_epoch(workers, method, persistent):
    """`set_epoch` of the loader reaches the copies in workers that stay."""
    loader = ff.DataLoader(
        Told(),
        4,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    for epoch in (0, 1, 2, 0):
        loader.set_epoch(epoch)
        assert torch.cat(list(loader)).tolist() == [epoch] * 4
    assert torch.cat(list(loader)).tolist() == [0] * 4  # told no more, it stays as it was


@pytest.mark.parametrize(("workers", "method", "persistent"), FORKED)
def test_c53_no_draw_comes_twice(workers, method, persistent):
    """Three epochs: the three generators never repeat over workers and epochs."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    loader = ff.DataLoader(Augmented(90), 5, **options_of(workers, method, persistent))
    draws = [told(list(loader))[1] for _ in range(3)]
    for generator in range(3):
        assert len({number for epoch in draws for number in epoch[generator]}) == 270


def reseed(worker):
    """Seed as a user does who wants the same draws in each epoch."""
    random.seed(worker)
    np.random.seed(worker)
    torch.manual_seed(worker)


@pytest.mark.parametrize("kind", [ff.DataLoader, Torchs])
def test_c53_the_users_seeds_win(kind):
    """What `worker_init_fn` seeds stays, and `generator=` alone decides the workers' seeds."""
    torch.manual_seed(1)
    seeded = kind(Augmented(), 5, num_workers=2, worker_init_fn=reseed)
    assert told(list(seeded)) == told(list(seeded))
    runs = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        own = torch.Generator().manual_seed(5)
        loader = kind(Augmented(), 5, shuffle=True, num_workers=2, generator=own)
        runs.append([told(list(loader)) for _ in range(2)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


class Planned:
    """A data set of 100 shards of 100 samples, without files."""

    seed = 11

    def __init__(self, shards=100, samples=100):
        self.starts = np.arange(shards + 1, dtype=np.int64) * samples

    def __len__(self):
        return int(self.starts[-1])

    def plan(self, epoch):
        sizes = np.full(len(self.starts) - 1, 1 << 20, dtype=np.int64)
        return Plan(self.starts, sizes, 4 << 30, self.seed, epoch)


def test_c55_batches_mix_all_shards():
    """Of 100 shards, batches of 64 hold more than 20; positions say nothing about samples.

    Batches are made before any worker is asked, so the number of workers cannot matter.
    """
    batches = list(BatchSampler(ShardSampler(Planned()), 64, drop_last=False))
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(10_000))
    assert abs(np.corrcoef(order, range(10_000))[0, 1]) < 0.05
    assert np.mean([len({index // 100 for index in batch}) for batch in batches[:-1]]) > 20


def test_c45_orders_of_large_data_sets_take_no_lists():
    """The order of 20 million samples takes less than a megabyte a window, in the trainer alone."""
    import tracemalloc

    sampler = ShardSampler(Planned(shards=2_000, samples=10_000))
    tracemalloc.start()
    try:
        taken = iter(sampler)
        for _ in range(100_000):
            next(taken)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_c56_length_is_the_number_of_batches(workers, drop_last):
    """Maps of every size: `len` is exact, and torch's."""
    for size in (0, 1, 7, 64, 65):
        for batch_size in (3, 64):
            options = {"batch_size": batch_size, "drop_last": drop_last, "num_workers": workers}
            loader = ff.DataLoader(range(size), **options)
            assert len(loader) == len(list(loader)) == len(Torchs(range(size), **options))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("counts", [(1,), (3, 4), (30, 34), (30, 34, 1)])
def test_c56_shards_leave_one_remainder(number_shards, counts, workers):
    """Not each worker makes a short batch at the end, only the last one is short."""
    data = ff.ShardDataset(number_shards(*counts), {"n": ff.Int("cls")})
    for drop_last in (False, True):
        loader = ff.DataLoader(data, 8, drop_last=drop_last, num_workers=workers)
        sizes = [len(batch["n"]) for batch in loader]
        assert len(loader) == len(sizes)
        assert all(size == 8 for size in sizes[:-1])
        assert sum(sizes) == (sum(counts) // 8 * 8 if drop_last else sum(counts))


@pytest.mark.parametrize(("policy", "exact"), [("skip", False), ("substitute", True)])
def test_c56_length_with_bad_samples(number_shards, policy, exact):
    """Two samples of 20 cannot be read: with "skip" the length is an upper bound."""
    paths = number_shards(10, 10, text=lambda n: "bad" if n in {8, 9} else str(n))
    data = ff.ShardDataset(paths, {"n": ff.Int("cls")}, on_error=policy)
    loader = ff.DataLoader(data, 2, num_workers=2)
    sizes = [len(batch["n"]) for batch in loader]
    assert len(loader) == 10
    assert sizes == [2] * (10 if exact else 9)


def pids():
    return {child.pid for child in multiprocessing.active_children()}


def test_c40_workers_stay_between_epochs(leak_gauge):
    """Persistent workers are the same processes in every epoch, after early breaks too."""
    loader = ff.DataLoader(Augmented(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    seen = []
    for stop in (None, 2, None, 0):
        for number, _ in enumerate(loader):
            if number == 0:
                seen.append(pids())
            if number == stop:
                break
    assert len(seen[0]) == 2
    assert all(epoch == seen[0] for epoch in seen)


@pytest.mark.parametrize("break_at", [None, 3])
def test_c40_nothing_of_the_next_epoch_is_drawn_early(number_shards, break_at):
    """`set_epoch(5)` after epoch 0, even one that was left early: the order of epoch 5."""
    data = ff.ShardDataset(number_shards(20, 20), {"n": ff.Int("cls")})

    def make():
        return ff.DataLoader(data, 4, shuffle=True, num_workers=2, persistent_workers=True)

    loader, fresh = make(), make()
    for number, _ in enumerate(loader):
        if number == break_at:
            break
    loader.set_epoch(5)
    fresh.set_epoch(5)
    orders = [torch.cat([batch["n"] for batch in one]).tolist() for one in (loader, fresh)]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(40))
