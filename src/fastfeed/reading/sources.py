"""What a user names as the source of a data set, resolved to shards and what is known of them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, StorageError
from fastfeed.shardfile.manifest import Manifest, ShardEntry, load_manifest
from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed.shardfile.patterns import expand
from fastfeed.storage.open import local_path

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Listing:
    """Shards in order, with the manifest's word on each, or None where there is no manifest."""

    paths: tuple[str, ...]
    entries: tuple[ShardEntry | None, ...]
    fields: frozenset[str]
    """Fields that the manifests name."""
    counts: dict[str, int] | None
    """For each field how many samples have it, if manifests list all of the shards."""


def list_shards(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> Listing:
    """Resolve a source: a folder with a manifest, a path, a pattern of shards, or a list of these.

    Where shards are named one by one, a manifest in their folder is believed on those that it
    lists. Raises OptionError if the source names no shard, ShardError for a damaged manifest.
    """
    items = [source] if isinstance(source, str | os.PathLike) else list(source)
    manifests = _Manifests()
    paths: list[str] = []
    entries: list[ShardEntry | None] = []
    counts: Counter[str] | None = Counter()
    for item in (os.fspath(item) for item in items):
        if (folder := _folder_of_manifest(item)) is not None:
            manifest = manifests.require(folder)
            paths += (os.path.join(folder, shard.name) for shard in manifest.shards)  # noqa: PTH118
            entries += manifest.shards
            if counts is not None:
                counts.update(manifest.fields)
        else:
            names = expand(item)
            paths += names
            entries += map(manifests.entry, names)
            counts = None
    if not paths:
        raise OptionError(f"{source!r} names no shard", way_out="Name a folder or at least a tar")
    return Listing(tuple(paths), tuple(entries), manifests.fields(), counts)


def _folder_of_manifest(item: str) -> str | None:
    """Return the folder whose manifest an item stands for; None if it names shards."""
    if "{" in item or "::" in item or item.startswith("pipe:"):
        return None
    path = local_path(item)
    if os.path.basename(path) == MANIFEST_NAME:  # noqa: PTH119 - keeps the path as it was written
        return os.path.dirname(path) or "."  # noqa: PTH120
    return path if Path(path).is_dir() else None


class _Manifests:
    """The manifests met so far by folder, so that ten thousand shards read theirs once."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, ShardEntry] | None] = {}
        self._fields: set[str] = set()

    def fields(self) -> frozenset[str]:
        return frozenset(self._fields)

    def require(self, folder: str) -> Manifest:
        """Return the manifest of a folder, which must have one."""
        try:
            manifest = _read(folder)
        except FileNotFoundError as error:
            raise OptionError(
                f"the folder {folder!r} has no {MANIFEST_NAME}",
                way_out="Write one with `fastfeed-shard index`, or name the shards themselves, "
                "for example as train-{000000..000146}.tar",
            ) from error
        self._fields.update(manifest.fields)
        return manifest

    def entry(self, path: str) -> ShardEntry | None:
        """Return what a manifest beside the shard at `path` says of it."""
        folder, _, name = local_path(path).rpartition("/")
        if folder not in self._found:
            try:
                manifest = _read(folder or ("/" if path.startswith("/") else "."))
            except FileNotFoundError:
                self._found[folder] = None
            else:
                self._found[folder] = {shard.name: shard for shard in manifest.shards}
                self._fields.update(manifest.fields)
        return (self._found[folder] or {}).get(name)


def _read(folder: str) -> Manifest:
    def content(name: str) -> bytes:
        try:
            return Path(folder, name).read_bytes()
        except FileNotFoundError:
            if name == MANIFEST_NAME:
                raise
            raise ValueError(f"its part {name!r} is missing") from None
        except OSError as error:
            raise StorageError(f"cannot read {name!r} of {folder!r}: {error.strerror}") from error

    return load_manifest(content, shard=os.path.join(folder, MANIFEST_NAME))  # noqa: PTH118
