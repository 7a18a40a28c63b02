"""Loaders prepared by Accelerate stay ours: class, arguments, batches, skipping, checkpoints."""

from __future__ import annotations

import gc
import itertools

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate import data_loader as theirs
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data.datapipes.iter import IterableWrapper

import fastfeed as ff
from fastfeed.integrations import accelerate as integration

OWN = {"worker_threads": 2, "restart_workers": 3, "snapshot_every_n_steps": 4}


class Counter(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        yield from range(self.count)


def numbers(count):
    return TensorDataset(torch.arange(count))


def batches(loader):
    return [batch[0].tolist() for batch in loader]


@pytest.fixture
def accelerator():
    return Accelerator(cpu=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_prepared_and_skipped_loaders_are_ours(accelerator, leak_gauge, workers):
    """The same batches as torch's loader prepared, from a loader of ours with our arguments."""

    def run(kind, **own):
        torch.manual_seed(3)
        loader = accelerator.prepare(
            kind(numbers(20), batch_size=3, shuffle=True, num_workers=workers, **own)
        )
        first = accelerate.skip_first_batches(loader, 2)
        second = accelerator.skip_first_batches(first, 1)
        return [loader, first, second], [batches(one) for one in (loader, first, second)]

    expected = run(torch.utils.data.DataLoader)
    assert all(type(one.base_dataloader) is not ff.DataLoader for one in expected[0])
    loaders, found = run(ff.DataLoader, **OWN)
    assert found == expected[1]
    assert [len(one) for one in found] == [7, 5, 4]
    for one in loaders:
        assert type(one.base_dataloader) is ff.DataLoader
        assert isinstance(one, ff.DataLoader)
        assert {name: getattr(one, name) for name in OWN} == OWN
        assert one.num_workers == workers


def test_iterable_data(accelerator):
    """An iterable data set is known by itself; skipped batches are those of the first workers."""
    loader = accelerator.prepare(ff.DataLoader(Counter(10), batch_size=4, **OWN))
    skipped = accelerate.skip_first_batches(loader, 1)
    for one in (loader, skipped):
        assert type(one.base_dataloader) is ff.DataLoader
        assert one.snapshot_every_n_steps == 4
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.tolist() for batch in skipped] == [[4, 5, 6, 7], [8, 9]]


def test_odd_ways_to_make_batches(accelerator):
    """Batch samplers of the user's, and data that is not batched at all."""
    data = numbers(6)
    order = BatchSampler(RandomSampler(data), 2, drop_last=False)
    for loader, count in (
        (ff.DataLoader(data, batch_sampler=order), 3),
        (ff.DataLoader(data, batch_sampler=[[0, 1, 2], [5]]), 2),
        (ff.DataLoader(data, batch_size=None), 6),
    ):
        prepared = accelerator.prepare(loader)
        assert type(prepared.base_dataloader) is ff.DataLoader
        assert len(list(prepared)) == count


def test_what_is_not_ours_stays_torchs(accelerator):
    """Other loaders are built as ever, data pipes too; the name still tells what a loader is."""
    accelerator.prepare(ff.DataLoader(numbers(4)))
    for loader in (
        torch.utils.data.DataLoader(numbers(4)),
        torch.utils.data.DataLoader(Counter(4)),
        ff.DataLoader(IterableWrapper(range(4))),
    ):
        prepared = accelerator.prepare(loader)
        assert type(prepared.base_dataloader) is torch.utils.data.DataLoader
        assert len(list(prepared)) == 4
        assert isinstance(prepared, theirs.DataLoader)

    class Derived(theirs.DataLoader):
        pass

    assert type(Derived(numbers(4))) is Derived
    assert not isinstance(torch.utils.data.DataLoader(numbers(4)), Derived)


def test_nothing_is_kept_alive(accelerator):
    """What is known of a loader goes with it."""
    gc.collect()
    before = len(integration._origins)
    prepared = accelerator.prepare(ff.DataLoader(numbers(4), shuffle=True))
    assert len(integration._origins) > before
    accelerator.free_memory()
    del prepared
    gc.collect()
    assert len(integration._origins) == before


def test_unknown_version_is_said(monkeypatch, accelerator):
    """A version without the names we replace is an error, not silently torch's loader."""
    monkeypatch.setattr(theirs, "DataLoader", torch.utils.data.DataLoader)
    monkeypatch.delattr(theirs, "DataLoaderDispatcher")
    with pytest.raises(ff.FastfeedError, match="this version of Accelerate is not known"):
        accelerator.prepare(ff.DataLoader(numbers(4)))


@pytest.mark.parametrize("stateful", [False, True], ids=["registered", "stateful"])
@pytest.mark.parametrize("workers", [0, 2])
def test_c61_checkpoints_in_an_epoch(tmp_path, leak_gauge, stateful, workers):
    """`save_state` in the middle, twice over, and the epoch goes on where the loop was."""

    def prepare(seed):
        torch.manual_seed(seed)
        accelerator = Accelerator(
            cpu=True,
            dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful),
        )
        loader = ff.DataLoader(numbers(20), batch_size=3, shuffle=True, num_workers=workers)
        prepared = accelerator.prepare(loader)
        assert type(prepared.base_dataloader) is ff.DataLoader
        if not stateful:
            accelerator.register_for_checkpointing(prepared)
        return accelerator, prepared

    accelerator, prepared = prepare(1)
    golden = batches(prepared) + batches(prepared)
    joined = []
    for cut, seed in ((2, 1), (3, 2), (4, 3)):  # of 7, then of the 5 and 2 that are left
        accelerator, prepared = prepare(seed)
        if joined:
            accelerator.load_state(str(tmp_path / "state"))
        joined += batches(itertools.islice(prepared, cut))
        accelerator.save_state(str(tmp_path / "state"))
        if cut == 3:
            assert joined == golden[:5]
            break
    accelerator, prepared = prepare(4)
    accelerator.load_state(str(tmp_path / "state"))
    joined += batches(prepared)
    assert joined == golden[:7]
    assert batches(prepared) == golden[7:]


@pytest.fixture(scope="module")
def ranks(two_ranks, number_shards):
    """What two ranks saw of many loaders."""
    return two_ranks("accelerate_ranks.py", number_shards)


def test_two_ranks_see_what_torchs_loader_gives(ranks):
    """Splitting, padding, skipping and dispatching are Accelerate's own: the same batches."""
    for rank in ranks:
        pairs = [name for name in rank if name.endswith(" torch")]
        assert len(pairs) == 6
        for name in pairs:
            ours = rank[name.replace(" torch", " ours")]
            assert ours["kinds"] == ["fastfeed.loader"]
            assert ours["epochs"] == rank[name]["epochs"]


SPLIT = "map 24 0 ours, map 24 2 ours, shards 0, shards 2, shards dispatched, streaming"


@pytest.mark.parametrize("name", [*SPLIT.split(", "), "iterable True ours", "iterable False ours"])
def test_c57_c59_nothing_is_sharded_twice(ranks, name):
    """Every sample is seen by one rank, as many by each, in every epoch."""
    first, second = (rank[name] for rank in ranks)
    assert first["kinds"] == second["kinds"] == ["fastfeed.loader"]
    epochs = 1 if name.startswith(("iterable", "streaming")) else 2
    for a, b in list(zip(first["epochs"], second["epochs"], strict=True))[:epochs]:
        assert [len(batch) for batch in a] == [len(batch) for batch in b] == [3] * 4
        assert sorted(itertools.chain(*a, *b)) == list(range(24))
    if name.startswith("shards "):
        assert first["epochs"][0] != first["epochs"][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_skipping_keeps_the_epoch_of_shards(ranks, workers):
    """After `set_epoch`, a loader that skips has that epoch's order."""
    for rank in ranks:
        first, _, skipped = rank[f"shards {workers}"]["epochs"]
        assert skipped == first[2:]


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("kind", ["map", "shards", "dispatch"])
def test_c61_two_ranks_go_on_from_one_state(ranks, kind, batches):
    """Accelerate saves the first rank's state; each goes on with its own part, nothing is lost."""
    for number, rank in enumerate(ranks):
        found = rank[f"resumed {kind} {batches}"]
        assert found["kind"] == "fastfeed.loader"
        if kind == "dispatch" and number == 1:  # of 21 the last is there twice, to fill up
            found["rest"][-1].pop()
            found["resumed"][-1].pop()
        assert found["resumed"] == found["rest"]
