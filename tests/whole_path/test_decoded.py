"""ShardDataset(decoded=...): the same batches from any kind of workers, and the gain told."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import fastfeed as ff
from fastfeed.decoding.kept_place import FILE
from fastfeed.errors import OptionError

CROP = {"image": ff.Image("png", ff.RandomResizedCrop(32), ff.HorizontalFlip())}
# Picture and head, and a part of a table.
ONE = 60 * 80 * 3 + 64


@pytest.fixture
def pictures(tmp_path, tar_writer):
    """A shard of 96 small PNG pictures, no two the same."""
    random, members = np.random.default_rng(0), []
    for number in range(96):
        file = io.BytesIO()
        Pillow.fromarray(random.integers(0, 256, (60, 80, 3), np.uint8)).save(file, "PNG")
        members.append((f"{number:04d}.png", file.getvalue()))
    (tmp_path / "data").mkdir()
    tar_writer(tmp_path / "data" / "pictures-000000.tar", members)
    return tmp_path / "data"


def loader(folder, decoded, **options):
    shards = ff.ShardDataset(folder / "pictures-000000.tar", CROP, decoded=decoded)
    return ff.DataLoader(shards, 16, shuffle=True, **options)


def epochs(loader, count=2):
    return [[batch["image"].clone() for batch in loader] for _ in range(count)]


def assert_equal(some, others):
    for epoch, other in zip(some, others, strict=True):
        for batch, same in zip(epoch, other, strict=True):
            assert torch.equal(batch, same)


WAYS = {
    "alone": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "threads": {"num_workers": 2, "worker_kind": "thread"},
    "threads in workers": {"num_workers": 1, "worker_threads": 3},
}


@pytest.mark.parametrize("kind", ["memory", "folder"])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_batches_and_all_found(pictures, tmp_path, way, kind, leak_gauge):
    """In the second epoch every picture is found, whoever decoded it in the first."""
    plain = epochs(loader(pictures, None))
    cache = ff.DecodedCache("8MiB", folder=None if kind == "memory" else tmp_path / "kept")
    cached = loader(pictures, cache, **WAYS[way])
    first, *_ = epochs(cached, 1)
    before = cached.stats()
    second, *_ = epochs(cached, 1)
    assert_equal(plain, [first, second])
    assert before.decoded.misses == 96
    later = cached.stats().since(before)
    # One that met another's lock was not kept.
    assert later.decoded.hits >= 90
    assert later.decoded.hits + later.decoded.misses == 96
    assert later.decoded.kept_nbytes >= 90 * ONE
    assert later.decoded.budget_nbytes == 8 << 20
    assert cached.stats().as_dict()["decoded"]["saved_s"] == cached.stats().decoded.saved_s
    assert "decoded cache: " in cached.report()
    assert "8 MB in use" in cached.report()


def test_spawned_workers_share_the_memory(pictures):
    """The memory goes to a spawned worker as a descriptor: each epoch's new one finds all."""
    cached = loader(
        pictures, ff.DecodedCache("8MiB"), num_workers=1, multiprocessing_context="spawn"
    )
    assert_equal(epochs(loader(pictures, None)), epochs(cached))
    assert cached.stats().decoded.hits == 96


def test_half_of_it_is_found_by_half_a_cache(pictures):
    """Once full it keeps what it has: each epoch finds the share that fits."""
    cached = loader(pictures, ff.DecodedCache("1MiB"))
    kept = (1 << 20) // ONE
    assert kept < 96
    for _ in range(3):
        before = cached.stats()
        epochs(cached, 1)
    facts = cached.stats().since(before).decoded
    assert kept - 2 <= facts.hits <= kept
    assert facts.kept_nbytes <= 1 << 20


def test_off_by_default(pictures):
    """Without it nothing is counted and nothing said."""
    plain = loader(pictures, None)
    epochs(plain, 1)
    assert plain.stats().decoded is None
    assert "decoded cache" not in plain.report()
    assert plain.stats().as_dict()["decoded"] is None


def test_a_folder_outlives_the_job(pictures, tmp_path, leak_gauge):
    """Another job finds all of it, in its first epoch; so does another order and crop."""
    cache = ff.DecodedCache("8MiB", folder=tmp_path / "kept")
    epochs(loader(pictures, cache), 1)
    for crop in (32, 16):
        fields = {"other": ff.Image("png", ff.RandomResizedCrop(crop))}
        shards = ff.ShardDataset(pictures / "pictures-000000.tar", fields, decoded=cache, seed=7)
        again = ff.DataLoader(shards, 16)
        for _ in again:
            pass
        assert again.stats().decoded.hits == 96
    assert sorted(os.listdir(tmp_path / "kept")) == [FILE]


def test_full_of_other_data_it_is_begun_anew(pictures, tmp_path, tar_writer):
    """A full folder of which nothing is of this data set is emptied, and so is a cut one."""
    cache = ff.DecodedCache("1MiB", folder=tmp_path / "kept")
    one = loader(pictures, cache)
    epochs(one, 1)
    random = np.random.default_rng(1)
    members = []
    for number in range(40):
        file = io.BytesIO()
        Pillow.fromarray(random.integers(0, 256, (60, 80, 3), np.uint8)).save(file, "PNG")
        members.append((f"{number:04d}.png", file.getvalue()))
    tar_writer(tmp_path / "data" / "others.tar", members)

    def others():
        return ff.DataLoader(ff.ShardDataset(pictures / "others.tar", CROP, decoded=cache), 16)

    del one
    second = others()
    epochs(second)
    assert second.stats().decoded.hits == 40
    del second
    os.truncate(tmp_path / "kept" / FILE, 100)  # as if it had been begun by somebody killed
    third = others()
    epochs(third)
    assert third.stats().decoded.hits == 40
    del third
    again = loader(pictures, cache)  # not full, so nothing is lost
    epochs(again, 1)
    assert again.stats().decoded.kept_nbytes > 60 * ONE
    del again
    fourth = others()
    epochs(fourth, 1)
    assert fourth.stats().decoded.hits == 40


def test_another_size_begins_anew(pictures, tmp_path, caplog):
    """The size is the file's: another one begins a new file, or is told while it is in use."""
    folder = tmp_path / "kept"
    small, large = (ff.DecodedCache(size, folder=folder) for size in ("2MiB", "4MiB"))
    one = loader(pictures, small)
    epochs(one, 1)
    second = loader(pictures, large)
    epochs(second, 1)
    assert second.stats().decoded.hits == 96
    assert "another job uses" in caplog.text
    del one, second
    third = loader(pictures, large)
    epochs(third, 1)
    assert third.stats().decoded.hits == 0
    assert (folder / FILE).stat().st_size == 4 << 20


def test_copies_of_a_data_set(pictures, tmp_path, leak_gauge):
    """A copy in memory begins empty, one of a folder has the same folder."""
    for folder, hits in ((None, 0), (tmp_path / "kept", 96)):
        first = ff.ShardDataset(
            pictures / "pictures-000000.tar",
            {"image": ff.Image("png", ff.Resize((32, 32)))},
            decoded=ff.DecodedCache("8MiB", folder=folder),
        )
        assert len(first.__getitems__(list(range(96)))) == 96
        for other in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
            same = ff.DataLoader(other, 16)
            for _ in same:
                pass
            assert same.stats().decoded.hits == hits


def test_on_error_and_transforms(pictures, tmp_path, tar_writer):
    """Bad samples are skipped as ever, and the user's own function is called each time."""
    picture = io.BytesIO()
    Pillow.new("RGB", (60, 80)).save(picture, "PNG")
    data = picture.getvalue()
    tar_writer(tmp_path / "bad.tar", [("0.png", data[:60]), ("1.png", data), ("2.png", b"no")])
    calls = []

    def transform(sample):
        calls.append(sample)
        return sample

    shards = ff.ShardDataset(
        tmp_path / "bad.tar",
        CROP,
        on_error="skip",
        transform=transform,
        decoded=ff.DecodedCache("2MiB"),
    )
    cached = ff.DataLoader(shards, 3)
    assert [len(batch["image"]) for _ in range(3) for batch in cached] == [1, 1, 1]
    assert len(calls) == 3
    assert cached.stats().decoded.hits == 2
    assert shards.bad_count == 6


@pytest.mark.parametrize("turn", [1, 2, 5, 40, 99, 211])
def test_killed_while_it_keeps(pictures, tmp_path, turn):
    """The folder of a job that was killed at any instant serves the next one, rightly."""
    cache = ff.DecodedCache("8MiB", folder=tmp_path / "kept")
    child = multiprocessing.get_context("fork").Process(
        target=_die_keeping, args=(pictures, cache, turn), daemon=True
    )
    child.start()
    child.join(60)
    assert child.exitcode == -9
    cached = loader(pictures, cache)
    assert_equal(epochs(loader(pictures, None)), epochs(cached))
    assert cached.stats().decoded.hits >= 96


def _die_keeping(pictures, cache, turn):
    """Be a job that dies at its n-th write."""
    torch.set_num_threads(1)  # the pool of threads stayed behind
    write, seen = os.pwrite, 0

    def counted(*arguments):
        nonlocal seen
        seen += 1
        if seen == turn:
            os.kill(os.getpid(), 9)
        return write(*arguments)

    os.pwrite = counted
    epochs(loader(pictures, cache), 1)
    os._exit(0)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"size": "1kB"}, "too small"),
        ({"size": "much"}, "not a size"),
        ({"size": "1GiB", "folder": ""}, "names no folder"),
    ],
)
def test_what_cannot_be_a_cache(arguments, fact):
    """Sizes and folders are checked where they are written."""
    with pytest.raises(OptionError, match=fact):
        ff.DecodedCache(**arguments)


def test_where_no_cache_may_be(pictures, tmp_path, leak_gauge):
    """Not among the data, not among files of others, and not larger than the memory there is."""
    with pytest.raises(OptionError, match="no DecodedCache"):
        ff.ShardDataset(pictures / "pictures-000000.tar", CROP, decoded="8GiB")
    for folder, fact in ((pictures, "lie one in the other"), (tmp_path / "mine", "not its own")):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / "thesis.tex").touch()
        with pytest.raises(OptionError, match=fact):
            loader(pictures, ff.DecodedCache("8MiB", folder=folder))
    with pytest.raises(OptionError, match=r"more than the .* bytes of memory"):
        loader(pictures, ff.DecodedCache("1000TB"))
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
