"""Small documents of a source, read whole, and the names of the files beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastfeed.errors import ShardError
from fastfeed.storage.open import exists, read_if_there, read_whole
from fastfeed.storage.urls import base_name, is_remote, parent, shown
from fastfeed.storage.urls import join as join_url

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT = 256 << 20


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object that a file holds; ShardError if it holds none."""
    try:
        document = json.loads(read_whole(path, limit=_LIMIT))
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{shown(path)!r} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ShardError(f"{shown(path)!r} is no JSON object")
    return document


def is_there(path: str) -> bool:
    """Say whether a document is there for us to read; StorageError if that cannot be known."""
    if is_remote(path):
        # Storage that keeps from us what is missing says that it is forbidden.
        return read_if_there(path, limit=_LIMIT) is not None
    return exists(path)


def join(folder: str, name: str) -> str:
    """Return the path or URL of a file in a folder."""
    if is_remote(folder):
        return join_url(folder, name)
    return f"{folder.rstrip('/')}/{name}" if folder.strip("/") else f"{folder}{name}"


def beside(path: str, name: Callable[[str], str]) -> str:
    """Return the path or URL of the file whose name `name` makes of that of a file beside it."""
    if is_remote(path):
        return join_url(parent(path), name(base_name(path)))
    folder, slash, base = path.rpartition("/")
    return f"{folder}{slash}{name(base)}"
