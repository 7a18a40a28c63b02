"""Pictures that are left to the device come out as the CPU makes them, and none is ever lost."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import fastfeed as ff
from device_pictures import CROP, LABELLED, MEAN, STD, collect, fields, jpeg, same, write
from fake_decoder import FakeDecoder
from fastfeed.errors import OptionError
from fastfeed.readahead import ReadAhead

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("workers", [0, 2])
def test_any_share_gives_the_same_batches(mixed, use_decoder, share, workers):
    """Who decodes a picture cannot be seen in it; what the GPU refuses is there as well."""
    decoder = use_decoder(FakeDecoder())
    theirs, _ = collect(mixed, fields())
    ours, _ = collect(mixed, fields(), device="cuda", decode=share, num_workers=workers)
    same(ours, theirs, levels=1)
    assert bool(decoder.calls) == (share > 0)


def test_regions_do_as_well(mixed, use_decoder):
    """A decoder that returns only the boxes gives the same rows."""
    use_decoder(FakeDecoder(regions=True))
    theirs, _ = collect(mixed, fields())
    ours, _ = collect(mixed, fields(), device="cuda", decode="gpu", num_workers=1)
    same(ours, theirs, levels=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_normalize_on_the_device(mixed, use_decoder, dtype):
    """Normalising there is the same arithmetic as here, to the bit."""
    use_decoder(FakeDecoder())
    normalize = ff.Normalize(MEAN, STD, dtype=dtype)
    theirs, _ = collect(mixed, fields(normalize))
    ours, _ = collect(mixed, fields(normalize), device="cuda", decode="cpu", num_workers=2)
    same(ours, theirs, levels=0)


def test_gray(mixed, use_decoder):
    """One channel is asked of the decoder as one channel."""
    use_decoder(FakeDecoder())
    theirs, _ = collect(mixed, fields(mode="L"))
    ours, _ = collect(mixed, fields(mode="L"), device="cuda", decode="gpu", num_workers=1)
    same(ours, theirs, levels=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_decoder_fails_at_comes_from_the_cpu(mixed, use_decoder, workers):
    """A picture that a decoder fails at is made again here, and the batch is whole."""
    use_decoder(FakeDecoder(fails_at=frozenset({0, 2, 5})))
    theirs, _ = collect(mixed, fields())
    ours, loader = collect(mixed, fields(), device="cuda", decode="gpu", num_workers=workers)
    same(ours, theirs, levels=1)
    assert loader.dataset_of_test.bad_count == 0


@pytest.fixture
def broken(tmp_path):
    """Sixteen samples of which number 5 is a JPEG cut short with an end put behind it."""
    samples = [{"jpg": jpeg(i), "cls": str(i).encode()} for i in range(16)]
    whole = samples[5]["jpg"]
    samples[5]["jpg"] = whole[: len(whole) // 2] + b"\xff\xd9"
    return write(tmp_path / "broken-000000.tar", samples)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_raises_with_its_key(broken, use_decoder, workers):
    """Under "raise" the error of the CPU's decoder comes, with shard, key and field."""
    use_decoder(FakeDecoder(fails_at=frozenset({5})))
    dataset = ff.ShardDataset(str(broken), LABELLED)
    loader = ff.DataLoader(dataset, batch_size=8, device="cuda", decode="gpu", num_workers=workers)
    with pytest.raises(ff.FastfeedError, match=r"broken-000000\.tar.*00005.*jpg"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_skipped(broken, use_decoder, workers):
    """Under "skip" its whole sample is left out, and the others stand in their order."""
    use_decoder(FakeDecoder(fails_at=frozenset({5})))
    dataset = ff.ShardDataset(str(broken), LABELLED, on_error="skip")
    loader = ff.DataLoader(dataset, batch_size=8, device="cuda", decode="gpu", num_workers=workers)
    first, second = loader
    assert first["y"].tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert len(first["image"]) == 7
    assert second["y"].tolist() == list(range(8, 16))
    assert dataset.bad_count == 1
    assert dataset.bad_samples[0].index == 5
    assert loader.snapshot().samples == 15


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_substituted(broken, use_decoder, workers):
    """Under "substitute" the whole sample is another one, the same as without a device."""
    use_decoder(FakeDecoder(fails_at=frozenset({5})))
    theirs = list(
        ff.DataLoader(ff.ShardDataset(str(broken), LABELLED, on_error="substitute"), batch_size=8)
    )
    dataset = ff.ShardDataset(str(broken), LABELLED, on_error="substitute")
    ours = list(
        ff.DataLoader(dataset, batch_size=8, device="cuda", decode="gpu", num_workers=workers)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one["y"].tolist() == other["y"].tolist()
        assert (one["image"].int() - other["image"].int()).abs().max() <= 1
    assert dataset.bad_count == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stray_marker_is_for_the_cpu(tmp_path, use_decoder, workers):
    """Engines decode past it to garbage, so workers never send such a file."""
    use_decoder(FakeDecoder())
    samples = [{"jpg": jpeg(i), "cls": str(i).encode()} for i in range(8)]
    damaged = bytearray(samples[5]["jpg"])
    damaged[-200:-198] = b"\xff\xc4"
    samples[5]["jpg"] = bytes(damaged)
    stray = write(tmp_path / "stray-000000.tar", samples)
    dataset = ff.ShardDataset(str(stray), LABELLED, on_error="skip")
    loader = ff.DataLoader(dataset, batch_size=8, device="cuda", decode="gpu", num_workers=workers)
    list(loader)
    assert loader.snapshot().refused == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_whole_batch_of_broken_pictures_is_passed_over(tmp_path, use_decoder, workers):
    """If nothing is left of a batch the next one comes."""
    samples = [{"jpg": jpeg(i), "cls": str(i).encode()} for i in range(8)]
    for sample in samples[:4]:
        sample["jpg"] = sample["jpg"][: len(sample["jpg"]) // 2] + b"\xff\xd9"
    path = write(tmp_path / "half-000000.tar", samples)
    decoder = use_decoder(FakeDecoder())
    dataset = ff.ShardDataset(str(path), LABELLED, on_error="skip")
    loader = ff.DataLoader(dataset, batch_size=4, device="cuda", decode="gpu", num_workers=workers)
    assert [b["y"].tolist() for b in loader] == [[4, 5, 6, 7]]
    assert dataset.bad_count == 4
    assert decoder.calls == 2


def test_raw_pixels_are_cut_on_the_device(tmp_path, use_decoder):
    """Prepared pictures go over as they are stored, only the rows that are wanted."""
    samples = []
    for i in range(16):
        file = io.BytesIO()
        np.save(file, np.asarray(Pillow.open(io.BytesIO(jpeg(i, height=64, width=80)))))
        samples.append({"npy": file.getvalue(), "cls": str(i).encode()})
    path = write(tmp_path / "raw-000000.tar", samples)
    described = {"image": ff.Image("npy", *CROP, ff.Normalize(MEAN, STD)), "y": ff.Int("cls")}
    use_decoder(None)
    theirs = list(ff.DataLoader(ff.ShardDataset(str(path), described), batch_size=8))
    dataset = ff.ShardDataset(str(path), described)
    ours = list(ff.DataLoader(dataset, batch_size=8, device="cuda", num_workers=1))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one["image"], other["image"])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations(tmp_path, use_decoder, orientation):
    """Pictures are turned on the device as they are here, cut and flipped likewise."""
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    samples = [{"jpg": jpeg(i, exif=exif), "cls": b"1"} for i in range(6)]
    path = write(tmp_path / "turned-000000.tar", samples)
    use_decoder(FakeDecoder())
    for transforms in (CROP, (ff.Resize(40), ff.CenterCrop((64, 56)), ff.HorizontalFlip())):
        described = {"image": ff.Image("jpg", *transforms)}
        theirs = next(iter(ff.DataLoader(ff.ShardDataset(str(path), described), batch_size=6)))
        ours = next(
            iter(
                ff.DataLoader(
                    ff.ShardDataset(str(path), described), batch_size=6, device="cuda", decode="gpu"
                )
            )
        )
        assert (ours["image"].int() - theirs["image"].int()).abs().max() <= 1


def test_pictures_made_again_are_read_alone(mixed, use_decoder, monkeypatch):
    """The trainer asks for no shards ahead: the workers do, in the order of the epoch."""
    use_decoder(FakeDecoder(fails_at=frozenset({0})))
    here, asked = os.getpid(), []
    follow = ReadAhead.follow

    def watched(self, *about):
        asked.append(os.getpid())
        follow(self, *about)

    monkeypatch.setattr(ReadAhead, "follow", watched)
    ours, loader = collect(
        mixed, fields(), device="cuda", decode="gpu", num_workers=1, shuffle=True
    )
    assert len(ours) == 3
    assert loader.stats().failed == 3
    assert here not in asked


def test_a_lost_decoder_gets_no_more_pictures(mixed, use_decoder):
    """Without workers too, pictures after the loss are left to nobody but the CPU."""
    decoder = use_decoder(FakeDecoder(raises=True))
    theirs, _ = collect(mixed, fields())
    ours, loader = collect(mixed, fields(), device="cuda", decode="gpu", num_workers=0)
    same(ours, theirs, levels=0)
    assert decoder.calls == 1
    assert loader.stats().failed == 8


def test_static_output_takes_gray_pictures_of_either_side(tmp_path, use_decoder):
    """One channel has strides that mean nothing, and differ by who decoded: no other batch."""
    samples = [{"jpg": jpeg(i, mode="L"), "cls": b"1"} for i in range(8)]
    for sample in samples[4:]:  # of a kind that the GPU does not do
        file = io.BytesIO()
        Pillow.open(io.BytesIO(sample["jpg"])).save(file, "png")
        sample["jpg"] = file.getvalue()
    path = write(tmp_path / "gray-000000.tar", samples)
    use_decoder(FakeDecoder())
    described = {"image": ff.Image("jpg", ff.Resize((20, 30)), mode="L")}
    theirs = list(ff.DataLoader(ff.ShardDataset(str(path), described), batch_size=4))
    loader = ff.DataLoader(
        ff.ShardDataset(str(path), described),
        batch_size=4,
        device="cuda",
        decode="gpu",
        output="static",
        num_workers=1,
    )
    for ours, other in zip(loader, theirs, strict=True):
        assert (ours["image"].int() - other["image"].int()).abs().max() <= 1


@pytest.mark.parametrize("decode", ["gpu", 0.5, "nvjpeg"])
@pytest.mark.parametrize(
    "described", [{"y": ff.Int("cls")}, {"image": ff.Image("jpg")}], ids=["no picture", "any size"]
)
def test_nothing_to_decode_is_said(mixed, use_decoder, decode, described):
    """Asking the GPU to decode what it cannot is an error, not silence."""
    use_decoder(FakeDecoder())
    dataset = ff.ShardDataset(str(mixed), described)
    with pytest.raises(OptionError, match="nothing here is for a GPU"):
        iter(ff.DataLoader(dataset, batch_size=4, device="cuda", decode=decode))


def test_no_decoder_is_tried_where_nothing_is_decoded(mixed, fake_device, monkeypatch):
    """Labels alone need no decoder, so none is looked for, and AUTO may be tuned."""
    monkeypatch.setattr("fastfeed.device.path.choose", lambda *_, **__: pytest.fail("tried"))
    dataset = ff.ShardDataset(str(mixed), {"y": ff.Int("cls")})
    loader = ff.DataLoader(dataset, batch_size=8, device="cuda", num_workers=ff.AUTO)
    assert sum(len(batch["y"]) for batch in loader) == 24
    assert loader.stats().device.decoder is None
    assert loader._workforce.is_tuned
