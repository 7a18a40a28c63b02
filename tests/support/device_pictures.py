"""Pictures for a GPU to decode, and epochs of them to hold against the CPU's."""

from __future__ import annotations

import io
import tarfile

import numpy as np
from PIL import Image as Pillow

import fastfeed as ff

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = (ff.RandomResizedCrop(48), ff.HorizontalFlip())
LABELLED = {"image": ff.Image("jpg", *CROP), "y": ff.Int("cls")}


def supports(kind):
    return kind.is_common and not kind.progressive


def jpeg(seed, *, height=70, width=90, mode="RGB", **how):
    """A smooth picture that is different for each seed."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (6, 8, 3), np.uint8)
    picture = Pillow.fromarray(small).resize((width, height), Pillow.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.convert(mode).save(file, "jpeg", quality=90, **how)
    return file.getvalue()


def write(path, samples):
    """Write samples, each a dict of field and bytes, as a tar."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, sample in enumerate(samples):
            for name, data in sample.items():
                member = tarfile.TarInfo(f"{number:05d}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def fields(*transforms, **more):
    return {
        "image": ff.Image("jpg", *CROP, *transforms, **more),
        "y": ff.Int("cls"),
        "about": ff.Json("json"),
        "raw": ff.Bytes("jpg"),
    }


def collect(source, some_fields, **arguments):
    """Return all batches of an epoch as (image, y, about, raw)."""
    dataset = ff.ShardDataset(str(source), some_fields, **arguments.pop("dataset", {}))
    loader = ff.DataLoader(dataset, batch_size=8, **arguments)
    loader.dataset_of_test = dataset
    batches = [
        (b["image"].clone(), b["y"].tolist(), b["about"], b["raw"].to_list()) for b in loader
    ]
    return batches, loader


def same(ours, theirs, *, levels):
    """Say whether batches are the same but for a few levels in the pictures."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one[1:] == other[1:]
        assert one[0].shape == other[0].shape
        assert one[0].dtype == other[0].dtype
        assert one[0].stride() == other[0].stride()
        apart = (one[0].float() - other[0].float()).abs()
        assert apart.max() <= levels, apart.amax(dim=(1, 2, 3))
