"""ShardDataset as a map-style data set: samples, errors, policies, torch's own loader."""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import pytest
import torch

import fastfeed as ff
from fastfeed.errors import (
    DecodeError,
    EmptyBatchError,
    IndexDamagedError,
    MissingFieldError,
    OptionError,
    ShardError,
    StorageError,
)
from fastfeed_shard.reindex import index_shards
from fastfeed_shard.verify import verify_shards


def shards_of(folder):
    return str(folder / "*-{000000..000002}.tar").replace("*", "photos")


FIELDS = {
    "image": ff.Image("jpg", ff.RandomResizedCrop(64), ff.HorizontalFlip()),
    "label": ff.Int("cls"),
    "about": ff.Json("json"),
}


def test_samples(photo_shards):
    """A sample is a dict of tensors and Python values, the picture as [channels, height, width]."""
    data = ff.ShardDataset(shards_of(photo_shards), FIELDS)
    assert len(data) == 18
    sample = data[7]
    assert sample["image"].shape == (3, 64, 64)
    assert sample["image"].dtype == torch.uint8
    assert int(sample["label"]) == 1
    assert isinstance(sample["about"]["name"], str)
    assert data[-1]["about"] == data[17]["about"]
    with pytest.raises(IndexError):
        data[18]


def test_fields_default_to_raw_bytes(photo_shards):
    """Without `fields`, every field comes as its bytes."""
    sample = ff.ShardDataset(shards_of(photo_shards))[0]
    assert sorted(sample) == ["cls", "jpg", "json"]
    assert bytes(sample["cls"]) == b"0"


def test_draws_belong_to_seed_epoch_and_sample(photo_shards):
    """After set_epoch a sample is the same however it is asked for, and differs between epochs."""
    data = ff.ShardDataset(shards_of(photo_shards), FIELDS, seed=3)
    data.set_epoch(0)
    one, many = data[5]["image"], data.__getitems__([9, 5, 2])[1]["image"]
    assert torch.equal(one, many)
    data.set_epoch(1)
    assert not torch.equal(one, data[5]["image"])


def test_without_an_epoch_torch_seeds_the_draws(photo_shards):
    """Like torchvision's transforms, draws follow torch's global generator."""
    data = ff.ShardDataset(shards_of(photo_shards), FIELDS)
    torch.manual_seed(1)
    one, other = data[5]["image"], data[5]["image"]
    torch.manual_seed(1)
    assert torch.equal(one, data[5]["image"])
    assert not torch.equal(one, other)


def test_in_torchs_own_loader(photo_shards):
    """It is an ordinary data set to torch's loader, with workers too."""
    data = ff.ShardDataset(shards_of(photo_shards), FIELDS)
    fields = {"image": FIELDS["image"], "label": FIELDS["label"]}
    data = ff.ShardDataset(shards_of(photo_shards), fields)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
    batches = list(loader)
    assert [len(batch["label"]) for batch in batches] == [4, 4, 4, 4, 2]
    assert torch.cat([batch["label"] for batch in batches]).tolist() == [0] * 6 + [1] * 6 + [2] * 6


def test_pickled_copies_read_the_same(photo_shards):
    """A copy in another process reads what the first one reads."""
    data = ff.ShardDataset(shards_of(photo_shards), FIELDS)
    data.set_epoch(0)
    first = data[3]
    assert torch.equal(pickle.loads(pickle.dumps(data))[3]["image"], first["image"])


def test_transform_runs_with_the_samples_own_numbers(photo_shards):
    """A transform's random numbers depend on the sample alone and leave the global ones alone."""

    def jitter(sample):
        legacy = float(np.random.rand())
        return {"draws": (random.random(), legacy, float(torch.rand(())))}

    data = ff.ShardDataset(shards_of(photo_shards), FIELDS, transform=jitter)
    data.set_epoch(0)
    state = random.getstate()
    first = data[4]["draws"]
    assert random.getstate() == state
    random.seed(5)
    assert data[4]["draws"] == first
    assert data[5]["draws"] != first


def test_transform_may_take_a_generator(photo_shards):
    """A parameter named generator receives a numpy generator of the sample."""

    def jitter(sample, generator):
        return {"draw": float(generator.random())}

    data = ff.ShardDataset(shards_of(photo_shards), FIELDS, transform=jitter)
    data.set_epoch(0)
    assert data[4]["draw"] == data[4]["draw"]
    assert data[4]["draw"] != data[3]["draw"]


def test_c11_missing_field_is_named_at_the_start(photo_shards):
    """Asking for `jpeg` where the shards hold `jpg` says so, with the fields there are."""
    with pytest.raises(MissingFieldError, match=r"0 of 18 samples have field `jpeg`.*`jpg`"):
        ff.ShardDataset(shards_of(photo_shards), {"image": ff.Image("jpeg")})


@pytest.fixture
def damaged(tmp_path, photos, tar_writer):
    """One shard of six photos whose third is cut short and whose fifth is text."""
    members = []
    for i, photo in enumerate(photos[:6]):
        data = photo.read_bytes()
        data = {2: data[: len(data) // 2], 4: b"not a photo"}.get(i, data)
        members += [(f"p{i}.cls", b"%d" % i), (f"p{i}.jpg", data)]
    tar_writer(tmp_path / "photos-000000.tar", members)
    return tmp_path / "photos-000000.tar"


IMAGES = {"image": ff.Image("jpg", ff.Resize((32, 32))), "label": ff.Int("cls")}


def test_c69_bad_picture_raises_with_its_place(damaged):
    """The error names shard, key and field."""
    data = ff.ShardDataset(damaged, IMAGES)
    with pytest.raises(DecodeError) as caught:
        data[2]
    assert caught.value.shard.endswith("photos-000000.tar")
    assert caught.value.key == "p2"
    assert "jpg" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_c69_bad_pictures_are_skipped_and_counted(damaged, workers):
    """Skipping shortens the batch and names the samples."""
    data = ff.ShardDataset(damaged, IMAGES, on_error="skip")
    loader = ff.DataLoader(data, batch_size=6, num_workers=workers)
    (batch,) = loader
    assert batch["label"].tolist() == [0, 1, 3, 5]
    assert data.bad_count == 2
    assert [bad.key for bad in data.bad_samples] == ["p2", "p4"]


@pytest.mark.parametrize("workers", [0, 2])
def test_c69_bad_pictures_are_substituted(damaged, workers):
    """Substitution keeps the length, is the same every time, and counts."""
    runs = []
    for _ in range(2):
        data = ff.ShardDataset(damaged, IMAGES, on_error="substitute")
        (batch,) = ff.DataLoader(data, batch_size=6, num_workers=workers)
        labels = batch["label"].tolist()
        assert len(labels) == 6
        assert labels[0] == 0
        assert not {2, 4} & set(labels)
        assert data.bad_count >= 2
        runs.append(labels)
    assert runs[0] == runs[1]


def test_wrong_options_are_named(photo_shards):
    """Each option that cannot be honoured is an OptionError naming it."""
    source = shards_of(photo_shards)
    with pytest.raises(OptionError, match="on_error"):
        ff.ShardDataset(source, FIELDS, on_error="ignore")
    with pytest.raises(OptionError, match="shuffle_window"):
        ff.ShardDataset(source, FIELDS, shuffle_window="big")
    with pytest.raises(OptionError, match="transform"):
        ff.ShardDataset(source, FIELDS, transform=3)


def test_c01_cut_shard_raises(photo_shards):
    """A shard cut after it was indexed is an error, not a short epoch."""
    source = shards_of(photo_shards)
    ff.ShardDataset(source, FIELDS)
    shard = photo_shards / "photos-000001.tar"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) - 20_000])
    with pytest.raises(ShardError, match=r"photos-000001.*Copy or build"):
        list(ff.DataLoader(ff.ShardDataset(source, FIELDS), batch_size=6))


def test_a_transform_that_returns_nothing_is_an_error(photo_shards):
    """A forgotten `return` is named, not taken for a skipped sample."""

    def forgets(sample):
        sample["label"] += 1

    data = ff.ShardDataset(shards_of(photo_shards), FIELDS, transform=forgets)
    with pytest.raises(OptionError, match="returned None for sample 0"):
        list(ff.DataLoader(data, batch_size=4))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_counted_under_a_collate_function(damaged, workers):
    """What a user's collate function hides is still told to the trainer."""
    data = ff.ShardDataset(damaged, IMAGES, on_error="skip")
    loader = ff.DataLoader(data, batch_size=3, num_workers=workers, collate_fn=len)
    assert list(loader) == [2, 2]
    assert data.bad_count == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, len])
def test_batches_with_nothing_left_are_left_out(damaged, workers, collate_fn):
    """A batch whose samples were all skipped does not come, whatever collates."""
    data = ff.ShardDataset(damaged, IMAGES, on_error="skip")
    loader = ff.DataLoader(data, batch_size=1, num_workers=workers, collate_fn=collate_fn)
    assert len(list(loader)) == 4
    assert loader.snapshot().batches == 4


@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "process"), (2, "thread")])
def test_an_epoch_without_any_usable_sample_is_an_error(damaged, workers, kind):
    """Where all is skipped a loop that ends after no batch would look like success."""
    data = ff.ShardDataset(damaged, {"image": ff.Image("cls")}, on_error="skip")
    loader = ff.DataLoader(
        data, batch_size=2, num_workers=workers, worker_kind=kind, persistent_workers=workers > 0
    )
    for _ in range(2):
        with pytest.raises(EmptyBatchError, match=r"all of its 3 batches.*first one: .*verify"):
            list(loader)
    subset = torch.utils.data.Subset(data, [0, 1])
    with pytest.raises(EmptyBatchError, match="all of its 1 batches"):
        list(ff.DataLoader(subset, batch_size=2, num_workers=workers))


def test_what_exists_is_no_pattern(number_shards):
    """A folder or shard with braces in its name is read by that name; a Path is never a pattern."""
    folder = number_shards / "a {1..3}::b"
    folder.mkdir()
    shard = (number_shards / "numbers-000003.tar").rename(folder / "{0..9}.tar")
    fields = {"number": ff.Int("cls")}
    for source in (shard, str(shard), [str(shard)]):
        assert int(ff.ShardDataset(source, fields)[0]["number"]) == 30
    index_shards([str(folder)], jobs=1, progress=lambda _: None)
    for source in (folder, str(folder)):
        assert len(ff.ShardDataset(source, fields)) == 10
    found = verify_shards(str(folder), jobs=1, decode=False, needed=(), progress=lambda _: None)
    assert (found.samples, found.problems) == (10, ())
    with pytest.raises(StorageError):
        ff.ShardDataset(number_shards / "numbers-{000000..000002}.tar")


@pytest.mark.parametrize("source", [None, 5, b"a.tar", [None], [["a.tar"]]])
def test_what_names_no_shard_is_refused(source):
    """The error says what may be named."""
    with pytest.raises(OptionError, match=r"names no shard.*Name a folder"):
        ff.ShardDataset(source)


def test_shards_without_a_sample_say_so(tmp_path, tar_writer):
    """Who names no field is not told that he asked for nothing."""
    tar_writer(tmp_path / "a.tar", [])
    with pytest.raises(ShardError, match="the shards hold no samples"):
        ff.ShardDataset(tmp_path / "a.tar")


@pytest.mark.parametrize("options", [{"verify": "yes"}, {"storage_options": 3}])
def test_options_that_cannot_be_meant(number_shards, options):
    """They are refused by the call, not taken for true."""
    with pytest.raises(OptionError, match=next(iter(options))):
        ff.ShardDataset(number_shards / "numbers-000000.tar", **options)


@pytest.mark.parametrize("index", ["a", 1.5, None])
def test_what_is_no_number_of_a_sample(number_shards, index):
    """It is named."""
    data = ff.ShardDataset(number_shards / "numbers-000000.tar")
    with pytest.raises(OptionError, match="is no number of a sample"):
        data[index]
    assert bytes(data[np.int64(3)]["cls"]) == b"3"


@pytest.mark.parametrize("epoch", ["a", 1.5, None, -1])
def test_what_is_no_epoch(number_shards, epoch):
    """The call that sets it says so, not a worker much later."""
    loader = ff.DataLoader(ff.ShardDataset(number_shards / "numbers-000000.tar"))
    with pytest.raises(OptionError, match="epoch="):
        loader.set_epoch(epoch)
    loader.set_epoch(np.int64(3))


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_damaged_index_is_never_skipped(number_shards, on_error):
    """Its samples are not bad: an index can be made anew."""
    source = number_shards / "numbers-000000.tar"
    data = ff.ShardDataset(source, {"number": ff.Int("cls")}, on_error=on_error)
    index = number_shards / "numbers-000000.ffx"
    rows = np.load(index, mmap_mode="r+")
    for name in rows.dtype.names:
        rows[name][3] = 0
    rows.flush()
    with pytest.raises(IndexDamagedError, match="row 3"):
        list(ff.DataLoader(data, batch_size=4))


def test_bad_samples_of_a_subset_are_counted(damaged):
    """A data set inside another is found."""
    data = ff.ShardDataset(damaged, IMAGES, on_error="skip")
    subset = torch.utils.data.Subset(data, [0, 1, 2, 3])
    list(ff.DataLoader(subset, batch_size=4, num_workers=1))
    assert data.bad_count == 1


def test_an_index_without_checksums_follows_its_shard(tmp_path, tar_writer):
    """A shard of another tool that is written anew is indexed anew, even at the same size."""
    path = tmp_path / "a.tar"
    fields = {"text": ff.Text("txt"), "number": ff.Int("cls")}
    one = [("a.txt", b"text of a"), ("a.cls", b"97"), ("b.txt", b"of b"), ("b.cls", b"98")]
    last = [("c.txt", b"c"), ("c.cls", b"99")]
    tar_writer(path, one + last)
    assert ff.ShardDataset(path, fields)[0]["text"] == "text of a"
    tar_writer(path, [*one[2:], *one[:2], *last])
    later = (path.stat().st_mtime_ns + 10**9,) * 2
    os.utime(path, ns=later)
    assert [s["text"] for s in ff.ShardDataset(path, fields).__getitems__([0, 1])] == [
        "of b",
        "text of a",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"fields": {"a": "jpg"}},
        {"fields": [ff.Int("cls")]},
        {"fields": {}},
        {"seed": None},
        {"seed": "a"},
        {"shuffle_window": "9" * 400 + "GB"},
    ],
)
def test_wrong_kinds_of_arguments(photo_shards, arguments):
    """What is no such thing is an OptionError at once."""
    with pytest.raises(OptionError):
        ff.ShardDataset(shards_of(photo_shards), **{"fields": FIELDS, **arguments})
