"""Pictures stored as `.npy`: nothing to decode, and otherwise like any other; 16-bit results."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image as Pillow

from fastfeed.decoding.raw_picture import as_asked, is_raw, view_raw
from fastfeed.errors import DecodeError, OptionError
from fastfeed.fields import (
    Boxes,
    CenterCrop,
    HorizontalFlip,
    Image,
    Mask,
    Normalize,
    RandomResizedCrop,
    Resize,
)

CROP = (RandomResizedCrop(24), HorizontalFlip())
SHAPES = st.tuples(st.integers(1, 30), st.integers(1, 30)) | st.tuples(
    st.integers(1, 30), st.integers(1, 30), st.sampled_from([1, 3, 4])
)


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


# What comes out


@given(
    arrays.arrays(np.uint8, SHAPES),
    st.sampled_from(["RGB", "RGBA", "L"]),
    st.sampled_from(["uint8", "uint16"]),
)
def test_modes_are_as_pillow_has_them(kit, array, mode, dtype):
    """Any shape in any mode is what Pillow converts it to; 16 bits are 257 times that."""
    out = kit.one(Image("npy", mode=mode, dtype=dtype), npy(array))
    flat = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    wanted = np.asarray(Pillow.fromarray(flat).convert(mode), np.dtype(dtype))
    wanted = wanted if wanted.ndim == 3 else wanted[..., None]
    assert out.dtype == dtype
    assert np.array_equal(out, wanted * (257 if dtype == "uint16" else 1))


@pytest.mark.parametrize(
    "transforms",
    [(), CROP, (Resize(20), CenterCrop(16)), (CenterCrop(90),), (Resize((9, 70)),)],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_same_as_a_png(kit, transforms, mode):
    """Window, resize and flip are those of a PNG with the same pixels, to the last bit."""
    picture = kit.scene(60, 80)
    if mode == "L":
        picture = picture[..., 0]
    for sample in range(5):
        options = {"draw": (1, 2, sample)}
        raw = kit.one(Image(("npy", "png"), *transforms, mode=mode), npy(picture), **options)
        png = kit.encode(picture, "PNG")
        assert np.array_equal(kit.one(Image("png", *transforms, mode=mode), png, **options), raw)


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_16_bits(kit, order):
    """They are kept where asked for, in colour too and in any order of bytes, or else scaled."""
    values = np.random.default_rng(5).integers(0, 1 << 16, (40, 50, 3))
    data = npy(values.astype(order))
    wide = kit.one(Image("npy", dtype="uint16"), data)
    assert wide.dtype == np.dtype("uint16")
    assert np.array_equal(wide, values)
    assert np.array_equal(kit.one(Image("npy"), data), (values + 128) // 257)
    gray = kit.one(Image("npy", mode="L", dtype="uint16"), data)[..., 0]
    assert np.abs(gray - values @ (0.299, 0.587, 0.114)).max() < 2
    small = kit.one(Image("npy", *CROP, dtype="uint16"), data)
    assert small.shape == (24, 24, 3)
    assert np.abs(small / 257.0 - kit.one(Image("npy", *CROP), data)).max() <= 1


def test_nothing_is_copied_before_the_resize():
    """The picture is a view of the record, and so is a part of it that needs no conversion."""
    record = bytearray(b"?" + npy(np.arange(60 * 70 * 3).reshape(60, 70, 3).astype(np.uint8)))
    memory = np.frombuffer(record, np.uint8)
    view = view_raw(memoryview(record)[1:], max_pixels=60 * 70)
    part = as_asked(view[3:50, 4:60], "RGB", "uint8")
    assert np.shares_memory(view, memory)
    assert np.shares_memory(part, memory)
    assert as_asked(view_raw(memoryview(bytes(record))[1:], max_pixels=4200), "RGB", "uint8").any()


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_records_may_begin_anywhere(kit, dtype):
    """A record at an odd address is read like any other."""
    array = np.arange(30 * 31 * 3, dtype=dtype).reshape(30, 31, 3)
    record = memoryview(bytearray(b"?" + npy(array)))[1:]
    out = kit.decode({"out": Image("npy", *CROP, dtype=dtype)}, {"npy": record})["out"]
    field = Image("npy", *CROP, dtype=dtype)
    assert np.array_equal(out, kit.one(field, bytes(record)))


def test_others_share_its_window(kit):
    """Masks and boxes that are like it follow its crop and flip."""
    picture = kit.scene(60, 80)
    fields = {
        "image": Image("npy", *CROP),
        "mask": Mask("seg.png", like="image"),
        "boxes": Boxes("json", like="image"),
    }
    sources = {
        "npy": npy(picture),
        "seg.png": kit.encode(picture[..., 0], "PNG"),
        "json": b"[[10, 10, 70, 50]]",
    }
    as_png = fields | {"image": Image("png", *CROP)}
    out = kit.decode(fields, sources)
    other = kit.decode(as_png, sources | {"png": kit.encode(picture, "PNG")})
    for name in ("mask", "boxes"):
        assert np.array_equal(out[name], other[name])


# What is refused


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 5, 3), np.float32), "float32"),
        (np.zeros((4, 5, 3), np.int8), "int8"),
        (np.zeros((4, 5), bool), "bool"),
        (np.zeros((4, 5), "S3"), "no picture"),
        (np.zeros((4, 5), [("a", "u1")]), "no picture"),
        (np.zeros(20, np.uint8), "shape"),
        (np.zeros((), np.uint8), "shape"),
        (np.zeros((3, 4, 5), np.uint8), "channels"),
        (np.zeros((4, 5, 2), np.uint8), "channels"),
        (np.zeros((1, 4, 5, 3), np.uint8), "shape"),
        (np.zeros((0, 5, 3), np.uint8), "shape"),
        (np.zeros((4, 0), np.uint8), "shape"),
        (np.asfortranarray(np.zeros((4, 5, 3), np.uint8)), "Fortran"),
        (np.zeros((11, 10), np.uint8), "budget of 100"),
    ],
)
def test_what_is_no_picture(kit, array, words):
    """Other types, shapes and orders, and too many pixels, are errors that say what to store."""
    with pytest.raises(DecodeError, match=words) as caught:
        kit.one(Image("npy", max_pixels=100), npy(array))
    assert caught.value.field == "npy"
    assert caught.value.way_out


def test_no_pickles(kit):
    """An array of objects is refused before anything of it is looked at."""
    with pytest.raises(DecodeError, match="pickle"):
        kit.one(Image("npy"), npy(np.array([[{}]]), allow_pickle=True))


@pytest.mark.parametrize("cut", [6, 9, 40, 127, 128, 187])
def test_cut_pictures(kit, cut):
    """A picture that was cut short is an error, wherever it was cut."""
    with pytest.raises(DecodeError):
        kit.one(Image("npy"), npy(np.zeros((4, 5, 3), np.uint8))[:cut])


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9999999, 9999999, 3), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (10**30, 1), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 4, 3), }",
        "{'descr': ('|u1', (3,)), 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': '|u1', 'shape': (2, 2), }",
    ],
)
def test_lying_headers(kit, text):
    """A header that claims more than there is, or is none, is an error before memory is taken."""
    with pytest.raises(DecodeError):
        kit.one(Image("npy"), header(text) + bytes(16))


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00"]))
def test_rubbish(kit, data, start):
    """Any bytes that begin as an array give a picture or a DecodeError."""
    assert is_raw(memoryview(start + data)) or not start
    with suppress(DecodeError):
        kit.one(Image("npy"), start + data)


# Normalised values of 16 bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("transforms", [CROP, ()])
@pytest.mark.parametrize("depth", ["uint8", "uint16"])
def test_normalised_values_are_rounded_once(kit, dtype, transforms, depth):
    """They are the float32 values rounded to the nearest of 16 bits, ties to even."""
    data = npy(kit.scene(50, 60))
    numbers = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    exact = kit.one(Image("npy", *transforms, Normalize(*numbers), dtype=depth), data)
    assert exact.dtype == np.float32
    out = kit.one(Image("npy", *transforms, Normalize(*numbers, dtype=dtype), dtype=depth), data)
    values = torch.from_numpy(out).view(getattr(torch, dtype))
    assert torch.equal(values, torch.from_numpy(exact).to(values.dtype))


def test_types_of_normalised_values():
    """Only types that a GPU trains in, and by name."""
    assert Normalize((0.5,), (0.5,)).dtype == "float32"
    with pytest.raises(OptionError, match="float64"):
        Normalize((0.5,), (0.5,), dtype="float64")
    with pytest.raises(TypeError):
        Normalize((0.5,), (0.5,), "float16")
