"""The values in columns of MDS shards, by the encoding that the index names."""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BITS = (8, 16, 32, 64)
_SCALARS = {
    "int": "<i8",
    **{f"int{bits}": f"<i{bits // 8}" for bits in _BITS},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in _BITS},
    **{f"float{bits}": f"<f{bits // 8}" for bits in _BITS[1:]},
}
# Of arrays: the byte that stands for a dtype.
_DTYPES = {
    **{bits: f"<u{bits // 8}" for bits in _BITS},
    **{bits + 1: f"<i{bits // 8}" for bits in _BITS},
    **{bits + 2: f"<f{bits // 8}" for bits in _BITS[1:]},
}
# Modes of raw pictures that are plain arrays of bytes.
_MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}


def decoder_of(encoding: str, *, column: str) -> Callable[[bytes], Any]:
    """Return the function from a column's bytes to its value; OptionError if there is none."""
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        return _array_decoder(rest)
    if name in _SCALARS:
        return _scalar_decoder(_SCALARS[name])
    if name in _OTHERS:
        return _OTHERS[name]
    raise OptionError(
        f"the column {column!r} has the encoding {encoding!r}"
        + (", and a pickle may run anything" if name == "pkl" else ", which is not read here"),
        way_out="Write the data set without it, for example as bytes, json or ndarray",
    )


def _scalar_decoder(dtype: str) -> Callable[[bytes], Any]:
    kind = np.dtype(dtype)

    def decode(data: bytes) -> Any:
        (value,) = np.frombuffer(data, kind)
        # The shortest text that means a narrow float is also its value for people.
        return float(str(value)) if kind.kind == "f" else int(value)

    return decode


def _array_decoder(rest: str) -> Callable[[bytes], Any]:
    """`ndarray`, `ndarray:DTYPE` or `ndarray:DTYPE:SHAPE`; what isn't said comes with the value."""
    name, _, axes = rest.partition(":")
    fixed = np.dtype(name).newbyteorder("<") if name else None
    shape = tuple(int(axis) for axis in axes.split(",")) if axes else None
    if fixed is not None and fixed.kind not in "iuf":
        raise OptionError(f"arrays of {name!r} are not known")

    def decode(data: bytes) -> Any:
        dtype, at = fixed, 0
        if dtype is None:
            dtype, at = np.dtype(_DTYPES[data[0]]), 1
        sizes = shape
        if sizes is None:
            axes, width = data[at] >> 2, 1 << (data[at] & 3)
            at += 1
            sizes = tuple(np.frombuffer(data, f"<u{width}", count=axes, offset=at).tolist())
            at += axes * width
        return np.frombuffer(data, dtype, offset=at).reshape(sizes)

    return decode


def _cut(data: bytes, *, skip: int) -> list[bytes]:
    """Return the pictures of a list: a count, their sizes, then their bytes."""
    (count,) = struct.unpack_from("<I", data, skip)
    if count > len(data) // 4:
        raise ValueError(f"a list of {count:,} pictures cannot be in {len(data):,} bytes")
    sizes = struct.unpack_from(f"<{count}I", data, skip + 4)
    position = skip + 4 + 4 * count
    if position + sum(sizes) != len(data):
        raise ValueError("the pictures of a list do not fit its bytes")
    pictures: list[bytes] = []
    for size in sizes:
        pictures.append(data[position : position + size])
        position += size
    return pictures


def _raw_picture(data: bytes) -> Any:
    """Return the pixels of a raw picture as an array [height, width, channels]."""
    width, height, letters = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + letters].decode()
    if mode not in _MODES:
        raise OptionError(
            f"a raw picture has the mode {mode!r}, which is no plain array",
            way_out="Write such columns as png",
        )
    pixels = np.frombuffer(data, np.uint8, offset=12 + letters)
    return pixels.reshape((height, width, _MODES[mode]) if mode != "L" else (height, width))


_OTHERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("bytes", "jpeg", "png"), bytes),
    **dict.fromkeys(("str", "str_int", "str_float", "str_decimal"), bytes.decode),
    **dict.fromkeys(("list[jpeg]", "list[png]"), partial(_cut, skip=4)),
    **dict.fromkeys(("jpegarray", "jpeg_array"), partial(_cut, skip=0)),
    "json": json.loads,
    "pil": _raw_picture,
}
