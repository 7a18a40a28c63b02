"""Data sets whose shards lie elsewhere: the same batches as of local ones, near after one epoch."""

from __future__ import annotations

import fsspec
import pytest
import torch

import fastfeed as ff
from fastfeed.errors import OptionError

FIELDS = {"image": ff.Image("jpg", ff.RandomResizedCrop(32)), "label": ff.Int("cls")}


@pytest.fixture
def bucket(photo_shards):
    """The photo shards in fsspec's memory; returns their pattern."""
    memory = fsspec.filesystem("memory")
    for path in sorted(photo_shards.glob("*.tar")):
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    yield "memory://bucket/photos-{000000..000002}.tar"
    memory.rm("/bucket", recursive=True)


def batches(source, **arguments):
    """Return what an epoch of a data set holds."""
    workers = arguments.pop("num_workers", 0)
    epochs = arguments.pop("epochs", 1)
    dataset = ff.ShardDataset(source, FIELDS, **arguments)
    loader = ff.DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers)
    for _ in range(epochs):
        found = [(b["image"].sum().item(), b["label"].tolist()) for b in loader]
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_remote_shards_are_the_same(bucket, photo_shards, workers):
    """Where shards lie cannot be seen in the batches."""
    local = str(photo_shards / "photos-{000000..000002}.tar")
    assert batches(bucket, num_workers=workers) == batches(local)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_folder_does_not_change_them(bucket, photo_shards, tmp_path, workers):
    """Two epochs by way of a cache folder are those of local shards; the shards lie there then."""
    local = str(photo_shards / "photos-{000000..000002}.tar")
    cache = ff.Cache(tmp_path / "cache", size="100MB")
    ours = batches(bucket, cache=cache, num_workers=workers, epochs=2)
    assert ours == batches(local, epochs=2)
    assert len(list((tmp_path / "cache").glob("*.shard"))) == 3


def _labels(samples):
    return torch.tensor([sample["label"] for sample in samples])


@pytest.mark.parametrize("kind", [ff.DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_serves_samples_in_any_order(bucket, tmp_path, kind, workers):
    """Samples that any loader asks for one by one bring their shards near as well."""
    cache = ff.Cache(tmp_path / "cache", size="100MB")
    dataset = ff.ShardDataset(bucket, {"label": ff.Int("cls")}, cache=cache)
    loader = kind(
        dataset,
        batch_size=5,
        shuffle=True,
        num_workers=workers,
        collate_fn=_labels,
        **({"persistent_workers": True} if workers else {}),
    )
    shelf = tmp_path / "cache"
    for _ in range(200):
        labels = torch.cat(list(loader))
        if len(list(shelf.glob("*.shard"))) == 3:
            break
    assert len(list(shelf.glob("*.shard"))) == 3
    assert len(labels) == len(dataset)


def test_a_person_who_waits_is_told_of_staging(bucket, tmp_path, monkeypatch):
    """The line of a long wait says which shards are on their way to the cache folder."""
    told = []

    class Listener:
        def receive(self, receive, timeout, *, since, what):
            told.append(what())
            return receive(timeout)

    monkeypatch.setattr("fastfeed.iteration.on_terminal", Listener)
    monkeypatch.setattr(
        "fastfeed.staging.staged.Staged.under_way", lambda _: ", staging 2 shards (3.1 GB)"
    )
    batches(bucket, cache=ff.Cache(tmp_path / "cache", size="100MB"), num_workers=1)
    batches(bucket, num_workers=1)
    assert "the first batch of worker 0, staging 2 shards (3.1 GB), 0 more ready" in told
    assert "the first batch of worker 0, 0 more ready" in told


def test_a_cache_in_the_data_is_refused(photo_shards):
    """The folder of local shards is no place for copies that are evicted."""
    source = str(photo_shards / "photos-{000000..000002}.tar")
    with pytest.raises(OptionError):
        ff.ShardDataset(source, FIELDS, cache=ff.Cache(photo_shards))


def test_what_is_no_cache_is_said(photo_shards):
    """A path is not enough: its size belongs to it."""
    with pytest.raises(OptionError, match="Cache"):
        ff.ShardDataset(str(photo_shards), FIELDS, cache="/nvme")
