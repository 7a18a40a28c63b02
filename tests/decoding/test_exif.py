"""EXIF orientation: one switch, the same for every format, decoder and crop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image as Pillow
from PIL import ImageOps

from fastfeed.decoding.exif import jpeg_orientation, stored_box, turn, turn_back
from fastfeed.decoding.window import Box
from fastfeed.fields import CenterCrop, HorizontalFlip, Image, Mask, RandomResizedCrop

KINDS = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
}


def oriented(kit, orientation, kind, *, height=16, width=24):
    """Return a file of a gradient, landscape as stored, with an orientation."""
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    return kit.encode(kit.scene(height, width), kind, exif=exif, **KINDS[kind])


def as_displayed(kit, data):
    return np.asarray(ImageOps.exif_transpose(kit.opened(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_c66_applied(kit, decoders, kind, orientation):
    """Applied, a picture is Pillow's exif_transpose, whole, cut and flipped."""
    data = oriented(kit, orientation, kind)
    expected = as_displayed(kit, data)
    most = 4 if kind == "JPEG" else 0
    out = kit.one(Image("x"), data, decoders=decoders)
    assert out.shape == expected.shape
    assert np.abs(out - expected).max() <= most
    height, width = expected.shape[:2]
    top, left = round((height - 9) / 2), round((width - 13) / 2)
    cut = kit.one(Image("x", CenterCrop((9, 13)), HorizontalFlip(1)), data, decoders=decoders)
    part = expected[top : top + 9, left : left + 13, :][:, ::-1]
    assert np.abs(cut - part).max() <= most


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_c66_ignored(kit, decoders, kind, orientation):
    """Ignored, a picture comes as it is stored."""
    data = oriented(kit, orientation, kind)
    out = kit.one(Image("x", exif="ignore"), data, decoders=decoders).astype(int)
    plain = kit.one(Image("x"), oriented(kit, 1, kind), decoders=decoders)
    assert np.abs(out - plain).max() <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_c66_parts(kit, decoders, orientation):
    """Parts are drawn in the picture as displayed, and resized before they are turned."""
    data = oriented(kit, orientation, "JPEG", height=80, width=130)
    displayed = as_displayed(kit, data).astype(np.uint8)
    field = Image("x", RandomResizedCrop((20, 33)), HorizontalFlip())
    for sample in range(6):
        out = kit.one(field, data, decoders=decoders, draw=(0, 0, sample)).astype(int)
        same = kit.one(field, kit.encode(displayed, "PNG"), draw=(0, 0, sample))
        assert np.abs(out - same).mean() < 1


def test_c66_masks(kit):
    """Masks follow the switch too."""
    exif = Pillow.Exif()
    exif[0x0112] = 6
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    data = kit.encode(values, "PNG", exif=exif)
    assert np.array_equal(kit.one(Mask("x"), data), np.rot90(values, -1))
    assert np.array_equal(kit.one(Mask("x", exif="ignore"), data), values)


# Pillow warns of what it cannot read; here warnings are errors, and to it an error is no picture.
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x01\0\x06\0\0",
        b"Exif\0\0rubbish",
    ],
)
def test_c66_broken_blocks(kit, decoders, block):
    """A broken EXIF block loses nothing but the orientation."""
    picture = kit.scene(16, 24)
    data = kit.encode(picture, quality=95, subsampling=0, exif=block)
    out = kit.one(Image("x"), data, decoders=decoders)
    plain = kit.one(Image("x"), kit.encode(picture, quality=95, subsampling=0))
    assert np.abs(out.astype(int) - plain).max() <= 4


@given(st.binary(max_size=300), st.booleans())
@example(b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0", True)
def test_the_parser_never_fails(junk, inside):
    """Any bytes give an orientation from 1 to 8."""
    if inside:
        size = len(junk) + 8
        junk = b"\xff\xd8\xff\xe1" + size.to_bytes(2, "big") + b"Exif\0\0" + junk
    assert 1 <= jpeg_orientation(memoryview(junk)) <= 8


@given(st.integers(1, 8), st.data())
def test_boxes_and_turning_agree(orientation, data):
    """Cutting the stored picture, then turning, is turning, then cutting."""
    stored = np.arange(7 * 11).reshape(7, 11)
    displayed = turn(stored, orientation)
    height, width = displayed.shape
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    w, h = data.draw(st.integers(1, width - x)), data.draw(st.integers(1, height - y))
    box = stored_box(Box(x, y, w, h), orientation, height, width)
    part = turn(stored[box.y : box.y + box.h, box.x : box.x + box.w], orientation)
    assert np.array_equal(part, displayed[y : y + h, x : x + w])
    assert np.array_equal(turn_back(displayed, orientation), stored)
