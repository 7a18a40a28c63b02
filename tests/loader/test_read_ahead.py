"""Shards are asked for in the order of the loader's own sampler, whoever made it."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import BatchSampler, RandomSampler

import fastfeed as ff
from fastfeed.readahead import ReadAhead


@pytest.fixture
def data(number_shards):
    """Five shards, two in a window, that note in `asked` which are asked for."""
    paths = number_shards(8, 8, 8, 8, 8)
    data = ff.ShardDataset(paths, {"n": ff.Int("cls")}, shuffle_window=1)
    data.asked = []
    data.shards.advise = data.asked.append
    return data


def plan_of(data, epoch):
    """Return the shards of an epoch in the order of its plan."""
    return np.concatenate(data.plan(epoch).windows()).tolist()


ORDERS = {
    "shuffle=True": lambda data: {"shuffle": True},
    "its own": lambda data: {"sampler": ff.ShardSampler(data, drop_last=True)},
    "in batches": lambda data: {
        "batch_sampler": BatchSampler(ff.ShardSampler(data), 4, drop_last=False),
        "batch_size": 1,
    },
    "of the same plan": lambda data: {
        "sampler": ff.ShardSampler(ff.ShardDataset([*data.shards._names], shuffle_window=1))
    },
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_shards_are_asked_for_in_the_order_of_the_sampler(data, order):
    """A sampler of one's own is followed as that of `shuffle=True`, in each epoch's order."""
    loader = ff.DataLoader(data, **({"batch_size": 4} | order(data)))
    ff.DataLoader(data, 4, shuffle=False)  # another loader over the same data changes nothing
    for epoch in range(2):
        data.asked.clear()
        list(loader)
        assert data.asked == plan_of(data, epoch)


OTHERS = {
    "shuffle=False": lambda data: {"shuffle": False},
    "in order": lambda data: {"sampler": ff.ShardSampler(data, shuffle=False)},
    "torch's": lambda data: {"sampler": RandomSampler(data)},
    "of another plan": lambda data: {
        "sampler": ff.ShardSampler(ff.ShardDataset([*data.shards._names], seed=1))
    },
}


@pytest.mark.parametrize("order", OTHERS.values(), ids=OTHERS)
def test_no_plan_is_followed_where_the_sampler_follows_none(data, order):
    """The plan of the data set says nothing of another order; a shuffled loader changes nothing."""
    loader = ff.DataLoader(data, 4, **order(data))
    ff.DataLoader(data, 4, shuffle=True)
    list(loader)
    assert data.asked == []


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_workers_that_persist_read_an_epoch_ahead_again(data, monkeypatch, tmp_path, kind):
    """An epoch whose number is set again is one more epoch, not the end of the one before."""
    log = tmp_path / "restarts"
    restart = ReadAhead.restart

    def noted(self):
        with log.open("a") as file:
            file.write(".")
        restart(self)

    monkeypatch.setattr(ReadAhead, "restart", noted)
    loader = ff.DataLoader(
        data, 4, shuffle=True, num_workers=1, persistent_workers=True, worker_kind=kind
    )
    for _ in range(2):
        loader.set_epoch(0)
        list(loader)
    assert log.read_text() == "."
