"""Input that means harm, and descriptions that mean nothing: one kind of error each."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from PIL import Image as Pillow

from fastfeed.decoding.compile import compile_fields
from fastfeed.decoding.jpeg_header import MOST_SCANS, check_scans
from fastfeed.errors import DecodeError, OptionError
from fastfeed.fields import (
    Array,
    Boxes,
    CenterCrop,
    HorizontalFlip,
    Image,
    Int,
    Keypoints,
    Mask,
    Normalize,
    RandomResizedCrop,
    Resize,
)


def npy(array):
    """Return the file of an array."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_scans(kit, mode, count):
    """Return a small progressive JPEG whose last scan is repeated `count` times."""
    data = kit.encode(Pillow.new(mode, (64, 64), 90), progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * count + b"\xff\xd9"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("kind", [Image, Mask])
def test_thousands_of_scans_are_refused_at_once(kit, decoders, mode, kind):
    """A progressive bomb is refused on every way a picture can take, whichever decoder it meets."""
    data = with_scans(kit, mode, 20_000)
    start = time.monotonic()
    with pytest.raises(DecodeError, match="scans") as caught:
        kit.one(kind("jpg"), data, decoders=decoders)
    assert caught.value.way_out
    assert time.monotonic() - start < 20


def test_scans_are_counted_outside_segments_and_before_the_end(kit):
    """Markers inside a segment or behind the end are no scans."""
    inside = kit.encode(kit.scene(16, 16), exif=b"Exif\0\0" + b"\xff\xda\0\2" * 2000)
    check_scans(memoryview(inside))
    check_scans(memoryview(inside + b"\xff\xda\0\2" * 2000))
    check_scans(memoryview(with_scans(kit, "RGB", MOST_SCANS // 2)))
    with pytest.raises(DecodeError):
        check_scans(memoryview(with_scans(kit, "RGB", MOST_SCANS)))


@pytest.mark.parametrize(
    "data",
    [
        b"[[1e999, 0, 1, 1]]",
        b"[[null, 0, 1, 1]]",
        b'[["1", "2", "3", "4"]]',
        b"[[true, false, true, true]]",
        b"[[1, 2], [3]]",
        b'{"a": 1}',
        b"3",
        b"[[1, 2, 3]]",
        b"[" * 80 + b"]" * 80,
        b"[[1" + b"0" * 400 + b", 0, 1, 1]]",
        npy(np.full((1, 4), 1e300)),
        npy(np.array([[np.inf, 0, -np.inf, 1]])),
        npy(np.array([[np.nan, 0, 1, 1]])),
        npy(np.array([["a", "b", "c", "d"]])),
    ],
)
@pytest.mark.parametrize("form", ["xyxy", "xywh"])
def test_coordinates_that_are_none(kit, data, form):
    """Coordinates that are no finite numbers of the right shape never reach a batch."""
    fields = {"image": Image("png", Resize((8, 8))), "boxes": Boxes("x", like="image", format=form)}
    sources = {"png": kit.encode(kit.scene(16, 16), "PNG"), "x": data}
    with pytest.raises(DecodeError) as caught:
        kit.decode(fields, sources)
    assert caught.value.field == "x"


def test_coordinates_of_foreign_byte_order(kit):
    """Big-endian coordinates are the same coordinates; none at all are none."""
    fields = {"image": Image("png", Resize((8, 8))), "points": Keypoints("x", like="image")}
    png = kit.encode(kit.scene(16, 16), "PNG")
    points = kit.decode(fields, {"png": png, "x": npy(np.array([[4, 6]], ">f4"))})["points"]
    assert points.tolist() == [[2.0, 3.0]]
    assert kit.decode(fields, {"png": png, "x": b"[]"})["points"].shape == (0, 2)


@pytest.mark.parametrize("declared", ["float32", ">f4", "<f4"])
@pytest.mark.parametrize("stored", [">f4", "<f4"])
def test_rows_are_in_the_machines_byte_order(kit, declared, stored):
    """An array of declared shape has the values it had, in a type that torch takes."""
    out = kit.one(Array("x", shape=(3,), dtype=declared), npy(np.arange(3).astype(stored)))
    assert out.dtype.isnative
    assert out.tolist() == [0.0, 1.0, 2.0]


def test_headers_of_python_2(kit):
    """A header with Python 2's long integers is read."""
    data = npy(np.arange(6.0).reshape(2, 3)).replace(b"(2, 3), }  ", b"(2L, 3L), }")
    assert b"2L" in data
    assert kit.one(Array("x"), data).shape == (2, 3)


@pytest.mark.parametrize(
    "describe",
    [
        lambda: Int(None),
        lambda: Int(b"cls"),
        lambda: Int(()),
        lambda: Resize(2.5),
        lambda: Resize(True),
        lambda: Resize((1, 2, 3)),
        lambda: CenterCrop(0),
        lambda: RandomResizedCrop(3, scale="ab"),
        lambda: RandomResizedCrop(3, scale=(1,)),
        lambda: RandomResizedCrop(3, scale=(float("nan"), 1)),
        lambda: RandomResizedCrop(3, ratio=(1, float("inf"))),
        lambda: HorizontalFlip("a"),
        lambda: HorizontalFlip(2),
        lambda: Normalize(0.5, 0.5),
        lambda: Normalize((0.5,), (0,)),
        lambda: Image("x", max_pixels=-1),
        lambda: Image("x", max_pixels="many"),
        lambda: Mask("x", max_pixels=0),
        lambda: Image("x", CenterCrop(3), like="image"),
        lambda: Image("x", HorizontalFlip(), like="image"),
        lambda: Array("x", shape=3, dtype="f4"),
        lambda: Array("x", shape=(-3,), dtype="f4"),
        lambda: Array("x", shape="ab", dtype="f4"),
        lambda: compile_fields({"x": Array("x", shape=(3,), dtype="nonsense")}),
        lambda: compile_fields({"x": Array("x", shape=(3,), dtype="object")}),
    ],
)
def test_descriptions_that_mean_nothing(describe):
    """What cannot be meant is an OptionError when it is written, not a surprise in a worker."""
    with pytest.raises(OptionError):
        describe()
