"""Data sets that an ordinary script would have: photos with transforms, and an array."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader

import fastfeed
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS
from fastfeed_bench.systems import startup, work


def settings_of(photos, dtype):
    folder = str(photos[0].parent.parent)
    return {"photos": folder, "repeats": 1, "dtype": dtype, "batch": 4, "workers": 1}


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_both_loaders_draw_the_same_crops(photos, dtype, leak_gauge):
    """With one seed the epochs are equal to the bit, types included, and all photos are counted."""
    evidence = {}
    for system, make in ((OURS, work.fastfeed_session), ("torch", work.torch_session)):
        session = make(settings_of(photos, dtype))
        evidence[system] = session.evidence()
        assert session.run()["value"] > 0
        assert session.samples == len(photos)
        del session
        gc.collect()
    assert all(finding.equal for finding in judge_same(evidence).values())


def test_the_pictures_are_what_a_network_takes(photos):
    """Crops of 224 pixels, as floats up to 1 or as bytes."""
    for dtype in ("float32", "uint8"):
        dataset = work.Photos(work.photos_of(str(photos[0].parent.parent)), work._transform(dtype))
        picture, label = dataset[0]
        assert picture.shape == (3, 224, 224)
        assert picture.dtype is getattr(torch, dtype)
        assert picture.max() > 1 if dtype == "uint8" else picture.max() <= 1
        assert isinstance(label, int)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(startup.torch_spawned, DataLoader), (startup.fastfeed_spawned, fastfeed.DataLoader)],
)
def test_the_array_goes_to_spawned_workers(make, kind):
    """Both loaders get the array whole, and the start method."""
    session = make({"nbytes": 40_000, "workers": 2, "batch": 4})
    loader = session.make()
    assert type(loader) is kind
    assert loader.multiprocessing_context.get_start_method() == "spawn" == session.context
    assert loader.dataset.array.nbytes == 40_000
    assert torch.equal(loader.dataset[3], torch.from_numpy(loader.dataset.array[3]))
