"""Pictures stored as `.npy`: looked at where they lie, and only the wanted part converted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fastfeed.decoding.values import NPY_START, npy_header
from fastfeed.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES = ("uint8", "uint16")
# Weights of red, green and blue in 1/65536, as Pillow's conversion to gray has them.
_GRAY = np.array([19595, 38470, 7471], np.uint32)
_HALF = np.uint32(0x8000)


def is_raw(data: memoryview) -> bool:
    """Say whether these bytes begin as an `.npy` does."""
    return bytes(data[:6]) == NPY_START


def view_raw(data: memoryview, *, max_pixels: int) -> NDArray[Any]:
    """Return the picture [h, w, channels] as a view of the bytes of its `.npy`.

    It is of 8 or 16 bits, in either order of bytes, with 1, 3 or 4 channels; else DecodeError.
    """
    shape, fortran, dtype, start = npy_header(data)
    if dtype.newbyteorder("=").name not in _TYPES:
        raise DecodeError(
            f"an array of {dtype} is no picture", way_out="Store uint8 or uint16, or use Array"
        )
    if len(shape) not in {2, 3} or 0 in shape or shape[2:] not in {(), (1,), (3,), (4,)}:
        raise DecodeError(
            f"an array of the shape {shape} is no picture",
            way_out="Store [height, width] or [height, width, channels] with 1, 3 or 4 channels",
        )
    if fortran:
        raise DecodeError(
            "the array is stored by columns (Fortran order)",
            way_out="Store numpy.ascontiguousarray of it",
        )
    height, width = shape[:2]
    if height * width > max_pixels:
        raise DecodeError(
            f"{width}x{height} pixels are more than the budget of {max_pixels:,}",
            way_out="If the picture is meant to be so large, raise max_pixels of the field",
        )
    count = math.prod(shape)
    if count * dtype.itemsize > len(data) - start:
        raise DecodeError(
            f"the picture is cut short: {shape} of {dtype} takes {count * dtype.itemsize:,} "
            f"bytes, and {len(data) - start:,} are there"
        )
    return np.frombuffer(data, dtype, count, start).reshape(height, width, -1)


def as_asked(
    part: NDArray[Any], mode: Literal["RGB", "RGBA", "L"], dtype: Literal["uint8", "uint16"]
) -> NDArray[Any]:
    """Return a part [h, w, channels] in the mode and depth of its field, itself if it has them.

    Colours become gray, and lose or gain opacity, as Pillow converts them; 16 bits are scaled to
    8 as value / 257, and 8 to 16 as value * 257.
    """
    part = _with_channels(part, mode)
    if part.dtype.itemsize < np.dtype(dtype).itemsize:
        part = part.astype(np.uint16) * np.uint16(257)
    elif part.dtype.itemsize > np.dtype(dtype).itemsize:
        part = ((part.astype(np.uint32) + 128) // 257).astype(np.uint8)
    # torch knows neither foreign orders of bytes nor memory that may not be written to.
    return np.require(part, dtype, "W")


def _with_channels(part: NDArray[Any], mode: Literal["RGB", "RGBA", "L"]) -> NDArray[Any]:
    there, wanted = part.shape[2], {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    if there == wanted:
        return part
    if wanted == 1:
        weighted = part[..., :3] * _GRAY
        gray: NDArray[Any] = (weighted.sum(axis=2, dtype=np.uint32, keepdims=True) + _HALF) >> 16
        return gray.astype(part.dtype)
    if there == 4:
        return part[..., :3]
    colours = np.repeat(part, 3, axis=2) if there == 1 else part
    if wanted == 3:
        return colours
    opaque = np.full((*part.shape[:2], 1), np.iinfo(part.dtype).max, part.dtype)
    return np.concatenate([colours, opaque], axis=2)
