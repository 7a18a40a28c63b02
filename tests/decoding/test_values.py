"""Numbers, text, JSON and arrays, from bytes that may be hostile."""

from __future__ import annotations

import io
import json
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fastfeed.errors import DecodeError
from fastfeed.fields import Array, Boxes, Bytes, Float, Image, Int, Json, Text

NEVER = [Int("x"), Float("x"), Text("x"), Json("x"), Array("x")]


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text, *, version=b"\x01\x00"):
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode("latin-1")


# Numbers and text


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"7", 7), (b" -12\n", -12), (b"+3", 3), (b"007", 7), (str(2**63 - 1).encode(), 2**63 - 1)],
)
def test_whole_numbers(kit, data, value):
    """An optional sign and digits, with space around them."""
    out = kit.one(Int("cls"), data)
    assert out.dtype == np.int64
    assert out == value


@pytest.mark.parametrize(
    "data",
    [b"", b" ", b"1.5", b"1e3", b"0x10", b"1_000", b"one", "٣".encode(), b"1\0", b"9" * 19,
     b"9" * 5000, b"1 2"],
)  # fmt: skip
def test_no_whole_numbers(kit, data):
    """Anything else is an error, and so is what 64 bits do not hold."""
    with pytest.raises(DecodeError):
        kit.one(Int("cls"), data)


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"1.5", 1.5), (b" -2e-3 ", -0.002), (b"7", 7.0), (b"inf", np.inf), (b".5", 0.5)],
)
def test_numbers(kit, data, value):
    """Numbers as Python writes them."""
    assert kit.one(Float("x"), data) == value


@pytest.mark.parametrize("data", [b"", b"1,5", b"1_0.0", b"0x1p3", b"1" * 500])
def test_no_numbers(kit, data):
    """Anything else is an error."""
    with pytest.raises(DecodeError):
        kit.one(Float("x"), data)


def test_text_and_bytes(kit):
    """Text is UTF-8 or an error with the place; bytes are themselves."""
    assert kit.one(Text("txt"), "Übung\n".encode()) == "Übung\n"
    with pytest.raises(DecodeError, match="byte 2"):
        kit.one(Text("txt"), b"ab\xff")
    assert bytes(kit.one(Bytes("raw"), b"\0\xff")) == b"\0\xff"


@given(st.sampled_from(NEVER), st.binary(max_size=200))
@example(Array("x"), b"PK\x03\x04")
@example(Array("x"), b"\x93NUMPY")
def test_rubbish(kit, field, data):
    """Any bytes give a value or a DecodeError."""
    with suppress(DecodeError):
        kit.one(field, data)


# JSON


def test_json(kit):
    """A document is what json.loads makes of it, byte order mark or not."""
    for document in ({"a": [1, 2.5, None, "ü"]}, [], 5, "x"):
        data = json.dumps(document, ensure_ascii=False).encode()
        assert kit.one(Json("json"), data) == document
        assert kit.one(Json("json"), b"\xef\xbb\xbf" + data) == document


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[1,]", b"NaN", b"[Infinity]", b"[-Infinity]", b'"\xff"', b"1" * 5000,
     b"[" * 200_000, b'{"a":' * 200_000],
)  # fmt: skip
def test_hostile_json(kit, data):
    """No NaN, no bytes that are no text, no endless number, no bottomless nesting."""
    with pytest.raises(DecodeError):
        kit.one(Json("json"), data)


# Arrays


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0)))
def test_arrays_come_back(kit, array):
    """Any type, shape and byte order comes back as it was saved, and may be written to."""
    out = kit.one(Array("npy"), npy(array))
    assert out.dtype == array.dtype
    assert out.tobytes() == array.tobytes()
    assert out.shape == array.shape
    assert out.flags.writeable


def test_fortran_order_and_structures(kit):
    """Arrays by columns and arrays of records are read as they are."""
    columns = np.asfortranarray(np.arange(12).reshape(3, 4))
    assert np.array_equal(kit.one(Array("npy"), npy(columns)), columns)
    records = np.array([(1, 2.5, b"ab")], dtype=[("a", "<i4"), ("b", ">f8"), ("c", "S3")])
    assert kit.one(Array("npy"), npy(records)) == records
    names = np.array([(1,)], dtype=[("π", "<i4")])
    with pytest.warns(UserWarning, match="format 3"):
        data = npy(names)
    assert kit.one(Array("npy"), data)["π"] == 1


def test_no_pickles(kit):
    """An array of Python objects is refused, in an .npz as well."""
    data = npy(np.array([{}, None]), allow_pickle=True)
    with pytest.raises(DecodeError, match="pickle"):
        kit.one(Array("npy"), data)
    file = io.BytesIO()
    np.savez(file, a=np.array([{}]))
    with pytest.raises(DecodeError, match="pickle"):
        kit.one(Array("npz"), file.getvalue())


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 10**30), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 999999999999999999999), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1.5,), }",
        "{'descr': 'O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (999999999999,), }",
        "{'descr': 'no', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f8', 'shape': (1,), }",
        "__import__('os')",
        "(" * 9000,
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}" + " " * 20_000,
    ],
)
def test_lying_headers(kit, text):
    """A header that lies, or is no header, is an error before any memory is taken."""
    for version in (b"\x01\x00", b"\x02\x00"):
        with pytest.raises(DecodeError):
            kit.one(Array("npy"), header(text, version=version) + bytes(16))


@pytest.mark.parametrize("cut", [1, 6, 9, 40, 128, 200])
def test_cut_arrays(kit, cut):
    """A cut array is an error, wherever it is cut."""
    with pytest.raises(DecodeError):
        kit.one(Array("npy"), npy(np.arange(10.0))[:cut])


def test_archives(kit):
    """An .npz is a dict of its arrays, compressed or not."""
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, a=np.arange(5), b=np.eye(2))
        out = kit.one(Array("npz"), file.getvalue())
        assert sorted(out) == ["a", "b"]
        assert np.array_equal(out["b"], np.eye(2))


def test_archives_that_unpack_to_anything(kit):
    """An .npz bomb is refused from its directory, before it is unpacked."""
    piece = io.BytesIO()
    with zipfile.ZipFile(piece, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in range(3):
            with archive.open(f"{name}.npy", "w") as member:
                for _ in range(4):
                    member.write(bytes(1 << 20))
    data = bytearray(piece.getvalue())
    size = (4 << 20).to_bytes(4, "little")
    directory = data.index(b"PK\x01\x02")
    data[directory:] = data[directory:].replace(size, (0x7FFFFFFF).to_bytes(4, "little"))
    with pytest.raises(DecodeError, match="unpacks"):
        kit.one(Array("npz"), bytes(data))


def test_declared_arrays(kit):
    """With shape and dtype given, an array lands in its row, or does not fit and is an error."""
    field = Array("npy", shape=(2, 3), dtype="float32")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(kit.one(field, npy(array)), array)
    for other in (array.T, array.astype(np.float64), array[0]):
        with pytest.raises(DecodeError, match="declared"):
            kit.one(field, npy(other))


# Coordinates


@pytest.mark.parametrize(
    "data",
    [b"5", b"[1,2,3,4]", b"[[1,2,3]]", b'{"a":1}', b'[["a","b","c","d"]]', b"[[1,2,3,[4]]]",
     npy(np.ones((1, 4), complex)), b"[[1,2,3,NaN]]"],
)  # fmt: skip
def test_no_coordinates(kit, data):
    """What are no rows of four numbers is an error."""
    fields = {"image": Image("png"), "boxes": Boxes("json", like="image")}
    picture = kit.encode(kit.scene(4, 4), "PNG")
    with pytest.raises(DecodeError) as caught:
        kit.decode(fields, {"png": picture, "json": data})
    assert caught.value.field == "json"


@pytest.mark.parametrize("data", [b"[]", npy(np.zeros((0, 4)))])
def test_no_boxes_are_no_error(kit, data):
    """A picture without boxes has an array of none."""
    fields = {"image": Image("png"), "boxes": Boxes("json", like="image")}
    out = kit.decode(fields, {"png": kit.encode(kit.scene(4, 4), "PNG"), "json": data})
    assert out["boxes"].shape == (0, 4)
