"""Small documents of a source, read whole, and the names of the files beside them."""

from __future__ import annotations

import json
from typing import Any

from fastfeed.errors import ShardError
from fastfeed.storage.open import open_storage

LIMIT = 256 << 20
"""Bytes of a document that says what a data set is; more is none."""


def read_document(path: str) -> bytes:
    """Return all bytes of a file; StorageError if it is not there, ShardError if it is large."""
    with open_storage(path) as storage:
        if storage.size > LIMIT:
            raise ShardError(f"{path!r} has {storage.size:,} bytes, too many for a document")
        return storage.read_at(0, storage.size)


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object that a file holds; ShardError if it holds none."""
    try:
        document = json.loads(read_document(path))
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{path!r} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ShardError(f"{path!r} is no JSON object")
    return document


def join(folder: str, name: str) -> str:
    """Return the path or URL of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if folder.strip("/") else f"{folder}{name}"
