"""Turn a value into the bytes of a field, by the last part of the field's name."""

from __future__ import annotations

import io
import json
import operator
from typing import Any

from fastfeed.errors import OptionError

_INTEGERS = frozenset({"cls", "cls2", "index", "inx", "id"})
# A text here is most likely a path that should have been read.
_NOT_TEXT = frozenset(
    {"npy", "npz", "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif", "heic"}
)
_WAY_OUT = (
    "Give bytes, or text for text fields, whole numbers for cls, anything JSON can hold for json, "
    "an array for npy"
)


def encode(value: Any, *, key: str, field: str) -> bytes:
    """Return the bytes to store for `value`; OptionError if the field cannot hold it.

    Bytes are stored as they are. `cls` takes whole numbers, `json` what JSON can hold, `npy` an
    array (not of objects: they would need pickle), other fields that aren't pictures take text and
    numbers.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    kind = field.rpartition(".")[2].lower()
    try:
        if kind == "json":
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if kind == "npy":
            return _array(value)
        if kind in _INTEGERS and not isinstance(value, bool):
            return _integer(value)
        if isinstance(value, str) and kind not in _NOT_TEXT:
            return value.encode()
        if isinstance(value, int | float) and not isinstance(value, bool) and kind not in _NOT_TEXT:
            return _number(value)
    except (TypeError, ValueError, RecursionError) as error:
        fact = f"this {type(value).__name__} cannot be stored: {error}"
        raise OptionError(fact, way_out=_WAY_OUT, key=key, field=field) from error
    fact = f"the field cannot hold a {type(value).__name__}"
    raise OptionError(fact, way_out=_WAY_OUT, key=key, field=field)


def _integer(value: Any) -> bytes:
    number = int(value) if isinstance(value, str) else operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} is beyond 64 bits")
    return b"%d" % number


def _number(value: float) -> bytes:
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124
        raise ValueError(f"{value} is no number")
    return repr(value).encode()


def _array(value: Any) -> bytes:
    import numpy as np

    if not hasattr(value, "__array__"):
        raise TypeError("it is no array")
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
    return file.getvalue()
