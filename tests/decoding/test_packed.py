"""Fields that are compressed by themselves: `seg.npy.zst` stands for `seg.npy`."""

from __future__ import annotations

import io

import numpy as np
import pytest
import zstandard

from fastfeed.decoding.compile import compile_fields
from fastfeed.errors import DecodeError, MissingFieldError
from fastfeed.fields import Array, Bytes, Image, Json, Text

ARRAY = np.arange(5000, dtype=np.int32).reshape(50, 100)


def npy(array=ARRAY):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(*contents):
    """Return one frame for each content."""
    return b"".join(map(zstandard.ZstdCompressor(write_checksum=True).compress, contents))


def decode(fields, sources, held=()):
    """Decode one sample of shards that have the fields `held`."""
    decoder = compile_fields(fields, held=held)
    rows = {name: np.zeros(row.shape, row.dtype) for name, row in decoder.layout.items()}
    views = {name: memoryview(data) for name, data in sources.items()}
    return {**rows, **decoder.decode(views, draw=(1, 2, 3), rows=rows)}


def test_the_name_without_the_suffix_is_enough():
    """Of several fields that the shards hold, the plain one is taken first."""
    fields = {"x": Array("seg.npy", shape=(50, 100), dtype="int32"), "t": Text(("txt", "text"))}
    held = {"seg.npy.zst", "text.zst", "other"}
    assert compile_fields(fields, held=held).sources == (
        "seg.npy", "txt", "text", "seg.npy.zst", "text.zst",
    )  # fmt: skip
    assert compile_fields(fields).sources == ("seg.npy", "txt", "text")
    found = decode(fields, {"seg.npy.zst": packed(npy()), "text.zst": packed(b"hel", b"lo")}, held)
    assert np.array_equal(found["x"], ARRAY)
    assert found["t"] == "hello"
    both = {"txt": b"plain", "text.zst": packed(b"packed"), "seg.npy": npy()}
    assert decode(fields, both, held)["t"] == "plain"


def test_named_in_full(kit):
    """With the suffix it is unpacked as well, but for bytes, which are what the shard holds."""
    data = packed(b'{"a": 1}')
    assert kit.one(Json("json.zst"), data) == {"a": 1}
    assert kit.one(Bytes("json.zst"), data) == data
    assert decode({"x": Bytes("json")}, {"json.zst": data}, {"json.zst"})["x"] == b'{"a": 1}'


def test_pictures(kit, photos):
    """Any kind of field will do."""
    data = photos[0].read_bytes()
    assert np.array_equal(kit.one(Image("jpg.zst"), packed(data)), kit.one(Image("jpg"), data))


@pytest.mark.parametrize(
    "data",
    [packed(npy())[:-1], packed(npy()) + b"x", b"", b"no zstd", packed(npy())[:50], packed(b"x")],
)
def test_c13_damage_is_a_decode_error(data):
    """A cut or followed field is a bad sample, named in full, and never a shorter one."""
    with pytest.raises(DecodeError) as caught:
        decode({"x": Array("seg.npy")}, {"seg.npy.zst": data}, {"seg.npy.zst"})
    assert caught.value.field == "seg.npy.zst"


def test_bombs_are_refused(monkeypatch):
    """What unpacks to more than a bound is given up while it unpacks."""
    monkeypatch.setattr("fastfeed.decoding.values._LARGEST", 1 << 20)
    with pytest.raises(DecodeError, match="more than"):
        decode({"x": Bytes("x")}, {"x.zst": packed(bytes(1 << 26))}, {"x.zst"})


def test_missing_in_both_forms():
    """The error names the field that was asked for."""
    with pytest.raises(MissingFieldError, match="`x`"):
        decode({"x": Text("x")}, {}, {"x.zst"})
