"""The one message of protocol buffers that TFRecord files hold, parsed without its library.

Example { Features features = 1; }            Features { map<string, Feature> feature = 1; }
Feature { BytesList = 1; FloatList = 2; Int64List = 3; }      each list { repeated value = 1; }
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parse_example(record: bytes) -> dict[str, list[Any]]:
    """Return each feature's values: bytes, floats or ints; ValueError for another message."""
    values: dict[str, list[Any]] = {}
    for number, features in _fields(memoryview(record)):
        if number != 1 or isinstance(features, int):
            raise ValueError(f"the message has a field {number}")
        for _, entry in _messages(features):
            name, found = _entry(entry)
            values[name] = found
    if not values:
        raise ValueError("it has no features")
    return values


def _entry(entry: memoryview) -> tuple[str, list[Any]]:
    name, found = "", []
    for number, part in _messages(entry):
        if number == 1:
            name = str(part, "utf-8")
        elif number == 2:
            found = _feature(part)
    return name, found


def _feature(feature: memoryview) -> list[Any]:
    found: list[Any] = []
    for number, part in _messages(feature):
        match number:
            case 1:
                found = [bytes(value) for _, value in _messages(part)]
            case 2:
                found = list(_floats(part))
            case 3:
                found = list(_integers(part))
            case _:
                raise ValueError(f"a feature has the kind {number}")
    return found


def _floats(part: memoryview) -> Iterator[float]:
    """Yield the floats of a list, as the shortest text that means them has it."""
    for _, value in _fields(part):
        # Alone, a float comes as the number of its four bytes; packed, as all their bytes.
        raw = struct.pack("<I", value) if isinstance(value, int) else value
        for one in np.frombuffer(raw, "<f4"):
            yield float(str(one))


def _integers(part: memoryview) -> Iterator[int]:
    for _, value in _fields(part):
        if isinstance(value, int):
            yield _signed(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield _signed(number)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields of a message that may only hold bytes and other messages."""
    for number, value in _fields(data):
        if isinstance(value, int):
            raise ValueError(f"the field {number} is a number")  # noqa: TRY004 - of the data
        yield number, value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (number, value) of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif not size:
            raise ValueError(f"a field has the kind {kind}")
        piece = data[at : at + size]
        if len(piece) != size:
            raise ValueError("a field goes beyond its message")
        at += size
        yield tag >> 3, piece if kind == _BYTES else int.from_bytes(piece, "little")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
