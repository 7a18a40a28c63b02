"""Photos in class folders, as libraries without shards read them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Photo(NamedTuple):
    """A file and the number of its class."""

    path: Path
    label: int


def photos_of(folder: str) -> list[Photo]:
    """Return the photos of the class folders in `folder`, in name order."""
    return [
        Photo(path, label)
        for label, classes in enumerate(sorted(Path(folder).iterdir()))
        for path in sorted(classes.glob("*.jpg"))
    ]
