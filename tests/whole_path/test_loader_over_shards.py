"""ff.DataLoader over shards: the fast path gives the same samples whatever the workers."""

from __future__ import annotations

import pytest
import torch

import fastfeed as ff

NUMBERS = {"number": ff.Int("cls"), "shard": ff.Text("txt")}
FIELDS = {
    "image": ff.Image("jpg", ff.RandomResizedCrop(48), ff.HorizontalFlip()),
    "label": ff.Int("cls"),
    "about": ff.Json("json"),
    "raw": ff.Bytes("jpg"),
}


def numbers(folder, **options):
    return ff.ShardDataset(str(folder / "numbers-{000000..000009}.tar"), NUMBERS, **options)


def epoch_of(loader):
    return [number for batch in loader for number in batch["number"].tolist()]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_sequential_order(number_shards, workers):
    """Without shuffle the samples come in shard order."""
    loader = ff.DataLoader(numbers(number_shards), batch_size=8, num_workers=workers)
    assert epoch_of(loader) == list(range(100))
    assert len(loader) == 13


@pytest.mark.parametrize("persistent", [False, True])
def test_c52_epochs_differ_and_do_not_depend_on_workers(number_shards, persistent):
    """Three epochs differ, each complete; the same with 0 and 2 workers, and again by epoch."""
    seen = []
    for workers in (0, 2):
        loader = ff.DataLoader(
            numbers(number_shards),
            batch_size=8,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
        )
        seen.append([epoch_of(loader) for _ in range(3)])
        assert all(sorted(epoch) == list(range(100)) for epoch in seen[-1])
        assert len({tuple(epoch) for epoch in seen[-1]}) == 3
        loader.sampler.set_epoch(0)
        assert epoch_of(loader) == seen[-1][0]
    assert seen[0] == seen[1]


def test_pictures_do_not_depend_on_workers_or_threads(photo_shards):
    """Pictures, labels, objects and bytes are the same with any workers and threads."""
    source = str(photo_shards / "photos-{000000..000002}.tar")
    runs = []
    for workers, threads in ((0, 1), (2, 1), (1, 2)):
        loader = ff.DataLoader(
            ff.ShardDataset(source, FIELDS, seed=5),
            batch_size=5,
            shuffle=True,
            num_workers=workers,
            worker_threads=threads,
        )
        runs.append([batch for _ in range(2) for batch in loader])
    for run in runs[1:]:
        for batch, first in zip(run, runs[0], strict=True):
            assert torch.equal(batch["image"], first["image"])
            assert torch.equal(batch["label"], first["label"])
            assert batch["about"] == first["about"]
            assert batch["raw"].to_list() == first["raw"].to_list()
    image = runs[0][0]["image"]
    assert image.shape == (5, 3, 48, 48)
    assert image.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shuffle", [False, True])
def test_two_views_do_not_depend_on_workers(photo_shards, shuffle):
    """Of two iterators side by side each has an epoch of its own, in order and in crops."""
    source = str(photo_shards / "photos-{000000..000002}.tar")
    runs = []
    for workers in (0, 2):
        dataset = ff.ShardDataset(source, FIELDS, seed=5)
        loader = ff.DataLoader(dataset, batch_size=6, shuffle=shuffle, num_workers=workers)
        runs.append(
            [(one["image"], other["image"]) for one, other in zip(loader, loader, strict=True)]
        )
    for (one, other), (first, second) in zip(*runs, strict=True):
        assert torch.equal(one, first)
        assert torch.equal(other, second)
        assert not torch.equal(one, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_raw_bytes_are_the_members_bytes(photo_shards, photos, workers):
    """A batch of raw fields alone is read straight into its memory and equals the files."""
    source = str(photo_shards / "photos-{000000..000002}.tar")
    data = ff.ShardDataset(source, {"photo": ff.Bytes("jpg"), "label": ff.Bytes("cls")})
    found = [
        item
        for batch in ff.DataLoader(data, batch_size=4, num_workers=workers)
        for item in batch["photo"].to_list()
    ]
    assert found == [photo.read_bytes() for photo in photos]


@pytest.mark.parametrize("workers", [0, 2])
def test_transform_results_are_collated(photo_shards, workers):
    """What a transform returns becomes the batch, collated as torch does."""

    def shrink(sample):
        return {"mean": sample["image"].float().mean(), "label": sample["label"]}

    source = str(photo_shards / "photos-{000000..000002}.tar")
    data = ff.ShardDataset(source, FIELDS, transform=shrink)
    batches = list(ff.DataLoader(data, batch_size=9, num_workers=workers))
    assert [batch["mean"].shape for batch in batches] == [(9,), (9,)]
    assert torch.cat([batch["label"] for batch in batches]).tolist() == [0] * 6 + [1] * 6 + [2] * 6


def test_c49_kept_batches_stay_as_they_were(number_shards):
    """Batches kept through several epochs are never overwritten."""
    loader = ff.DataLoader(numbers(number_shards), batch_size=4, num_workers=2)
    kept = [batch["number"] for _ in range(4) for batch in loader]
    assert torch.cat(kept).tolist() == list(range(100)) * 4


def test_auto_workers(number_shards):
    """AUTO chooses at least one worker and says so in the report."""
    loader = ff.DataLoader(numbers(number_shards), batch_size=10, num_workers=ff.AUTO)
    assert loader.num_workers >= 1
    assert epoch_of(loader) == list(range(100))
    report = loader.report()
    assert "100 samples in 10 batches" in report
    assert "p99" in report
    assert "decode" in report


def test_own_sampler_is_honoured(number_shards):
    """A sampler of the user's decides the order."""
    order = [5, 50, 7, 99]
    loader = ff.DataLoader(numbers(number_shards), batch_size=2, sampler=order, num_workers=1)
    assert epoch_of(loader) == order


def test_threads_make_the_same_pictures(photo_shards):
    """Pictures are the same to the bit, for their draws belong to the sample."""
    source = str(photo_shards / "photos-{000000..000002}.tar")
    fields = {"image": ff.Image("jpg", ff.RandomResizedCrop(32)), "label": ff.Int("cls")}

    def epoch(**options):
        loader = ff.DataLoader(ff.ShardDataset(source, fields), 4, shuffle=True, **options)
        return [batch["image"] for batch in loader]

    whole = epoch()
    made = epoch(num_workers=2, worker_kind="thread")
    assert all(torch.equal(a, b) for a, b in zip(whole, made, strict=True))


def test_workers_that_may_differ_have_their_turns(number_shards):
    """A transform may draw by what the init function made for its worker: batches go round."""
    made = {}

    def begin(worker):
        made["by"] = worker

    def note(sample):
        return {"worker": made["by"], **sample}

    loader = ff.DataLoader(
        numbers(number_shards, transform=note), 10, num_workers=2, worker_init_fn=begin
    )
    workers = [set(batch["worker"].tolist()) for batch in loader]
    assert workers == [{number % 2} for number in range(len(loader))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_cannot_be_opened_is_skipped_in_any_order(tmp_path, workers):
    """Reading ahead comes to it first, and leaves it to the policy of those who read it."""
    with ff.ShardWriter(tmp_path / "numbers", shard_size="8KiB") as writer:
        for number in range(40):
            writer.write({"__key__": f"{number:04d}", "cls": number})
    shards = sorted((tmp_path / "numbers").glob("*.tar"))
    cut = shards[1].read_bytes()
    shards[1].unlink()
    shards[1].write_bytes(cut[: len(cut) // 2])
    found = []
    for shuffle in (False, True):
        data = ff.ShardDataset(tmp_path / "numbers", {"number": ff.Int("cls")}, on_error="skip")
        loader = ff.DataLoader(data, 4, shuffle=shuffle, num_workers=workers)
        found.append((sorted(epoch_of(loader)), data.bad_count))
    assert found[0] == found[1]
    assert len(shards) > 2
    assert 0 < found[0][1] == 40 - len(found[0][0])
