"""JSON documents that users name: traces and reports, plain or packed, bounded."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def read_document(path: Path, *, longest: int) -> tuple[Any, str]:
    """Return the document in a file, and why there is none (empty if there is one).

    At most `longest` bytes are unpacked: a small file may hold any number of them.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            text = file.read(longest + 1)
    except OSError as error:
        return None, error.strerror or "it cannot be unpacked"
    except (EOFError, zlib.error):
        return None, "it cannot be unpacked"
    if len(text) > longest:
        return None, f"it has more than {longest >> 20} MiB"
    try:
        return json.loads(text), ""
    except (ValueError, RecursionError):
        return None, "it is not JSON"
