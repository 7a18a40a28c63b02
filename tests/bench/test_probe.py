"""The probe tells the window and the filter of a pipeline from outside."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from fastfeed_bench.model import OURS
from fastfeed_bench.probe import SIZE, examine, judge_pictures, make_probe
from fastfeed_bench.windows import RATIO, SIDE, draw_window


@pytest.fixture(scope="module")
def probe(photos):
    return make_probe(photos[0])


def outputs(probe, *, draw, count=128, resample=Image.Resampling.BILINEAR, gap=None):
    image = Image.open(io.BytesIO(probe)).convert("RGB")
    drawn = random.Random(1)
    for _ in range(count):
        left, top, width, height = draw(drawn)
        box = (left, top, left + width, top + height)
        yield np.asarray(
            image.resize((SIDE, SIDE), resample, box=box, reducing_gap=gap)
            if gap
            else image.crop(box).resize((SIDE, SIDE), resample)
        )


def test_the_reference_itself_is_equal(probe):
    """Windows are recovered exactly, so that the reference pipeline differs by nothing."""
    found = examine(outputs(probe, draw=lambda r: draw_window(*SIZE, r)), probe)
    assert found["difference"] == 0
    assert judge_pictures({OURS: found})[OURS].equal


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"resample": Image.Resampling.NEAREST}, "other pictures"),
        ({"draw": lambda r: (r.randint(0, 276), r.randint(0, 151), SIDE, SIDE)}, "share"),
        ({"draw": lambda _: (0, 0, 400, 300)}, "windows repeat"),
    ],
    ids=["filter", "windows", "one window"],
)
def test_other_work_is_told(probe, change, says):
    """Another filter, other windows or always the same window are not equal work."""
    options = {"draw": lambda r: draw_window(*SIZE, r), **change}
    finding = judge_pictures({OURS: examine(outputs(probe, **options), probe)})[OURS]
    assert not finding.equal
    assert says in finding.note


def test_windows_stay_inside_and_keep_their_shape():
    """Drawn windows lie inside pictures of any shape."""
    drawn = random.Random(0)
    for width, height in ((500, 375), (1, 1), (1000, 10), (3, 700)):
        for _ in range(50):
            window = draw_window(width, height, drawn)
            assert 0 <= window.left <= width - window.width
            assert 0 <= window.top <= height - window.height
            assert min(window.width, window.height) > 0
    ratios = [w.width / w.height for w in (draw_window(500, 375, drawn) for _ in range(200))]
    assert min(ratios) > RATIO[0] * 0.98
    assert max(ratios) < RATIO[1] * 1.02
