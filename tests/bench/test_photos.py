"""The ImageNet-like set: the same for everyone, and of the size it says."""

from __future__ import annotations

import io
import statistics
from dataclasses import replace

import pytest
from PIL import Image

from fastfeed.errors import OptionError
from fastfeed_bench.photos import IMAGENET_LIKE, find_sources, make_photos
from fastfeed_bench.photos import photos as generate

FEW = replace(IMAGENET_LIKE, count=36)


def test_the_set_is_deterministic(photos):
    """Two runs give the same bytes, and a longer set begins with the shorter one."""
    first = list(generate(photos, replace(FEW, count=4)))
    assert first == list(generate(photos, replace(FEW, count=6)))[:4]
    assert len({content for _, content in first}) == 4


def test_the_set_is_on_target(photos):
    """Photos have about 500x375 pixels, a quarter of them upright, and about 110 kB."""
    contents = [content for _, content in generate(photos, FEW)]
    sizes = [Image.open(io.BytesIO(content)).size for content in contents]
    assert 100_000 < statistics.mean(map(len, contents)) < 120_000
    assert all(470 <= max(size) <= 530 and 350 <= min(size) <= 400 for size in sizes)
    assert 3 <= sum(height > width for width, height in sizes) <= 18


def test_the_set_lies_in_class_folders_and_is_made_once(photos, tmp_path):
    """A finished set is found again; a partial one is made anew."""
    few = replace(FEW, count=6)
    (tmp_path / "photos-0.partial").mkdir()
    folder = make_photos(photos, tmp_path, few)
    assert len(list(folder.rglob("*.jpg"))) == 6
    assert {path.name for path in folder.iterdir()} <= {"animal", "place", "thing"}
    stamp = folder.stat().st_mtime_ns
    assert make_photos(photos, tmp_path, few) == folder
    assert folder.stat().st_mtime_ns == stamp
    assert make_photos(photos[1:], tmp_path, few) != folder


def test_no_source_photos_is_said_clearly(tmp_path):
    """A folder without photos is an error with a way out."""
    with pytest.raises(OptionError, match="--data"):
        find_sources(tmp_path)
