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
    array (not of objects: they would need pickle), other fields that aren't pictures take text.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    kind = field.rpartition(".")[2].lower()
    try:
        if kind == "json":
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if kind == "npy":
            return _array(value)
        if kind in _INTEGERS and not isinstance(value, str | bool):
            return b"%d" % operator.index(value)
        if isinstance(value, str) and kind not in _NOT_TEXT:
            return value.encode()
    except (TypeError, ValueError, RecursionError) as error:
        fact = f"this {type(value).__name__} cannot be stored: {error}"
        raise OptionError(fact, way_out=_WAY_OUT, key=key, field=field) from error
    fact = f"the field cannot hold a {type(value).__name__}"
    raise OptionError(fact, way_out=_WAY_OUT, key=key, field=field)


def _array(value: Any) -> bytes:
    import numpy as np

    if not hasattr(value, "__array__"):
        raise TypeError("it is no array")
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
    return file.getvalue()
