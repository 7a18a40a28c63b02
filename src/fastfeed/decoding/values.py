"""Fields that are no pictures: numbers, text, JSON and arrays, from bytes that may be hostile."""

from __future__ import annotations

import ast
import io
import json
import math
import operator
import re
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import DecodeError, ShardError
from fastfeed.shardfile.literals import undisturbed
from fastfeed.storage.streams import inflate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastfeed.decoding.window import Window

# Zeros may be packed to almost nothing; what unpacks to this many bytes is taken as meant.
_LARGEST = 1 << 30
_LONGEST_NUMBER = 400
NPY_START = b"\x93NUMPY"
# As long as NumPy itself reads a header without being told that it is trusted.
_LONGEST_HEADER = 10_000
# Whole numbers as Python 2 wrote them into headers.
_LONG = re.compile(r"(\d)L\b")
# Farther than any picture reaches, in pixels.
_FARTHEST = 1e9


def unpack(data: memoryview) -> memoryview:
    """Return the content of a field that was compressed with zstd by itself, all frames of it."""

    def read_at(offset: int, size: int) -> bytes:
        return bytes(data[offset : offset + size])

    parts: list[bytes] = []
    room = _LARGEST
    try:
        for part in inflate(read_at, len(data), kind="zstd", shard=""):
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise DecodeError(f"it unpacks to more than {_LARGEST:,} bytes")
    except ShardError as error:
        raise DecodeError(error.fact) from error
    return memoryview(b"".join(parts))


def decode_text(data: memoryview) -> str:
    """Return UTF-8 text."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(f"no UTF-8: {error.reason} at byte {error.start:,}") from error


def decode_int(data: memoryview) -> int:
    """Return a whole number that fits 64 bits; space around it is no matter."""
    try:
        value = int(_number(data))
    except ValueError as error:
        raise DecodeError(f"no whole number: {bytes(data[:40])!r}") from error
    if not -(2**63) <= value < 2**63:
        raise DecodeError(f"a number beyond 64 bits: {value}")
    return value


def decode_float(data: memoryview) -> float:
    """Return a number."""
    try:
        return float(_number(data))
    except ValueError as error:
        raise DecodeError(f"no number: {bytes(data[:40])!r}") from error


def _number(data: memoryview) -> str:
    if len(data) > _LONGEST_NUMBER:
        raise ValueError("too long")
    text = str(data, "ascii")
    if "_" in text:  # Python's own way to write 1_000
        raise ValueError("an underscore")
    return text


def decode_json(data: memoryview) -> Any:
    """Return the objects of a JSON document as Python reads them, byte order marks allowed."""
    try:
        return json.loads(bytes(data), parse_constant=_refuse)
    except RecursionError as error:
        raise DecodeError("JSON nested too deeply") from error
    except ValueError as error:  # of JSON or of its encoding
        raise DecodeError(f"no JSON: {str(error)[:200]}") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def decode_array(data: memoryview) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array of an .npy, or the arrays of an .npz by name; never a pickle."""
    if bytes(data[:4]) in {b"PK\x03\x04", b"PK\x05\x06"}:
        return _decode_npz(data)
    return _decode_npy(data)


def _decode_npy(data: memoryview) -> NDArray[Any]:
    shape, fortran, dtype, start = npy_header(data)
    count = math.prod(shape)
    if count * dtype.itemsize > len(data) - start:
        raise DecodeError(
            f"the array is cut short: {shape} of {dtype} takes {count * dtype.itemsize:,} "
            f"bytes, and {len(data) - start:,} are there"
        )
    try:
        flat = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
        return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")
    except ValueError as error:  # lengths beyond what NumPy can hold, values of no size
        raise DecodeError(f"no .npy: {shape} of {dtype}: {str(error)[:200]}") from error


def npy_header(data: memoryview) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, Fortran order, type and the place where the values begin."""
    if bytes(data[:6]) != NPY_START:
        raise DecodeError("no .npy: it does not begin as one")
    version = data[6:7].tobytes()
    wide = version != b"\x01"
    start = 12 if wide else 10
    length = int.from_bytes(data[8:start], "little")
    if length > min(_LONGEST_HEADER, len(data) - start):
        raise DecodeError(f"no .npy: a header of {length:,} bytes")
    try:
        text = "utf-8" if version == b"\x03" else "latin-1"
        header = _literal(str(data[start : start + length], text).strip())
        shape, fortran = tuple(map(operator.index, header["shape"])), bool(header["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(header["descr"])
    except Exception as error:  # Python literals from anywhere fail in many ways
        raise DecodeError(f"no .npy: {type(error).__name__}: {str(error)[:200]}") from error
    if dtype.hasobject:
        raise DecodeError("the array holds Python objects (a pickle)", way_out="Store numbers")
    if any(side < 0 for side in shape):
        raise DecodeError(f"no .npy: a shape of {shape}")
    return shape, fortran, dtype, start + length


def _literal(text: str) -> Any:
    try:
        return undisturbed(lambda: ast.literal_eval(text))
    except SyntaxError:
        return undisturbed(lambda: ast.literal_eval(_LONG.sub(r"\1", text)))


def _decode_npz(data: memoryview) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            fits = sum(member.file_size for member in members) <= _LARGEST
            # A member is never read beyond the size that the directory gives.
            files = {one.filename: archive.read(one) for one in members} if fits else {}
    except Exception as error:  # zipfile and its decompressors raise anything on rubbish
        raise DecodeError(f"no .npz: {type(error).__name__}: {str(error)[:200]}") from error
    if not fits:
        raise DecodeError(f"the .npz unpacks to more than {_LARGEST:,} bytes")
    return {
        name.removesuffix(".npy"): _decode_npy(memoryview(file)) for name, file in files.items()
    }


def decode_coordinates(data: memoryview, columns: int) -> NDArray[np.float32]:
    """Return [n, columns] float32 of a JSON list of lists, or of an .npy; all finite."""
    value: Any = _decode_npy(data) if bytes(data[:6]) == NPY_START else decode_json(data)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise DecodeError(f"no list of {columns} numbers each: {str(error)[:200]}") from error
    if array.dtype.kind not in "iuf":
        raise DecodeError(
            f"{array.dtype} is no type of coordinates", way_out="Store lists of numbers, or float32"
        )
    if array.size == 0:
        return np.zeros((0, columns), np.float32)
    if array.ndim != 2 or array.shape[1] != columns:
        raise DecodeError(f"{columns} numbers each are needed, not the shape {array.shape}")
    if not ((array >= -_FARTHEST) & (array <= _FARTHEST)).all():  # so is NaN
        raise DecodeError("coordinates that are not finite, or beyond any picture")
    return array.astype(np.float32)


def move_points(points: NDArray[np.float32], window: Window) -> NDArray[np.float32]:
    """Return points [n, 2] of the displayed picture in pixels of the result."""
    crop, (height, width), final = window.crop, window.size, window.final
    x = (points[:, 0] - crop.x) * (width / crop.w) - final.x
    y = (points[:, 1] - crop.y) * (height / crop.h) - final.y
    if window.flip:
        x = final.w - x
    return np.stack([x, y], axis=1).astype(np.float32)


def move_boxes(boxes: NDArray[np.float32], window: Window, layout: str) -> NDArray[np.float32]:
    """Return boxes [n, 4] as x0, y0, x1, y1 of the result, cut at its edges."""
    if layout == "xywh":
        boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    one, other = move_points(boxes[:, :2], window), move_points(boxes[:, 2:], window)
    limits = np.array([window.final.w, window.final.h], np.float32)
    low = np.clip(np.minimum(one, other), 0, limits)
    high = np.clip(np.maximum(one, other), 0, limits)
    return np.concatenate([low, high], axis=1).astype(np.float32)
