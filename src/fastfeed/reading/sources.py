"""What a user names as the source of a data set, resolved to shards and what is known of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfeed.errors import OptionError
from fastfeed.shardfile.manifest import Manifest, ShardEntry, load_manifest
from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed.shardfile.patterns import expand
from fastfeed.staging.source import Source
from fastfeed.storage.open import local_path, read_if_there
from fastfeed.storage.urls import base_name, is_remote, join, parent, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MANIFEST_LIMIT = 256 << 20
"""Bytes of one document of a manifest, at most: ten times what a full chunk of shards takes."""
_SHARDS = (".tar", ".tar.zst", ".tzst", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True, slots=True)
class Listing:
    """Shards in order, with the manifest's word on each, or None where there is no manifest."""

    paths: tuple[str, ...]
    entries: tuple[ShardEntry | None, ...]
    fields: frozenset[str]
    """Fields that the manifests name."""
    counts: dict[str, int] | None
    """For each field how many samples have it, if manifests list all of the shards."""

    def sources(self) -> list[Source]:
        """Return the remote shards of which a manifest tells size and digest."""
        return [
            Source(path, entry.file_bytes, digest=entry.digest)
            for path, entry in zip(self.paths, self.entries, strict=True)
            if entry is not None and entry.digest is not None and is_remote(path)
        ]


def list_shards(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Listing:
    """Resolve a source: a folder with a manifest, a path, a pattern of shards, or a list of these.

    A text that is a path of this machine is taken as it stands, a `pathlib.Path` always is. Each
    may be a URL; `storage_options` go to its file system. Where shards are named one by one, a
    manifest in their folder is believed on those that it lists. Raises OptionError if the source
    names no shard, ShardError for a damaged manifest, StorageError if it cannot be read.
    """
    manifests = _Manifests(storage_options)
    paths: list[str] = []
    entries: list[ShardEntry | None] = []
    counts: Counter[str] | None = Counter()
    for item in items_of(source):
        if (folder := _folder_of_manifest(item)) is not None:
            manifest = manifests.require(folder)
            paths += (_within(folder, shard.name) for shard in manifest.shards)
            entries += manifest.shards
            if counts is not None:
                counts.update(manifest.fields)
        else:
            names = names_of(item)
            paths += names
            entries += map(manifests.entry, names)
            counts = None
    if not paths:
        raise OptionError(f"{source!r} names no shard", way_out="Name a folder or at least a tar")
    return Listing(tuple(paths), tuple(entries), manifests.fields(), counts)


def items_of(source: object) -> list[str | os.PathLike[str]]:
    """Return what a source lists, or itself; OptionError if that cannot name shards."""
    if isinstance(source, str | os.PathLike):
        return [source]
    items: list[Any] = list(source) if isinstance(source, Iterable) else [source]
    for item in items:
        if not isinstance(item, str | os.PathLike):
            raise OptionError(
                f"{item!r} names no shard",
                way_out="Name a folder, a tar, a pattern such as train-{000000..000146}.tar, or a "
                "list of these",
            )
    return items


def is_pattern(source: str | os.PathLike[str]) -> bool:
    """Say whether a source is a pattern of shards; what exists under that very name is none."""
    if not isinstance(source, str):
        return False
    if not ("{" in source or "::" in source or source.startswith("pipe:")):
        return False
    return is_remote(source) or not os.path.exists(local_path(source))  # noqa: PTH110


def names_of(source: str | os.PathLike[str]) -> list[str]:
    """Return the names that a pattern stands for, or the source itself if it is none."""
    return expand(os.fspath(source)) if is_pattern(source) else [os.fspath(source)]


def _folder_of_manifest(source: str | os.PathLike[str]) -> str | None:
    """Return the folder whose manifest an item stands for; None if it names shards."""
    if is_pattern(source):
        return None
    item = os.fspath(source)
    if is_remote(item):
        # Storage of objects knows no folders, so the name must tell.
        name = base_name(item)
        if name == MANIFEST_NAME:
            return parent(item)
        return None if name.endswith(_SHARDS) else item
    path = local_path(item)
    if os.path.basename(path) == MANIFEST_NAME:  # noqa: PTH119 - keeps the path as it was written
        return os.path.dirname(path) or "."  # noqa: PTH120
    # One that cannot be looked at is a shard, which says why it cannot be opened.
    return path if os.path.isdir(path) else None  # noqa: PTH112


def _within(folder: str, name: str) -> str:
    if is_remote(folder):
        return join(folder, name)
    return os.path.join(folder, name)  # noqa: PTH118 - keeps the path as it was written


class _Manifests:
    """The manifests met so far by folder, so that ten thousand shards read theirs once."""

    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        self._options = storage_options
        self._found: dict[str, dict[str, ShardEntry] | None] = {}
        self._fields: set[str] = set()

    def fields(self) -> frozenset[str]:
        return frozenset(self._fields)

    def require(self, folder: str) -> Manifest:
        """Return the manifest of a folder, which must have one."""
        try:
            manifest = self._read(folder)
        except FileNotFoundError as error:
            raise OptionError(
                f"the folder {shown(folder)!r} has no {MANIFEST_NAME}, or not for us to read",
                way_out="Write one with `fastfeed-shard index`, or name the shards themselves, "
                "for example as train-{000000..000146}.tar",
            ) from error
        self._fields.update(manifest.fields)
        return manifest

    def entry(self, path: str) -> ShardEntry | None:
        """Return what a manifest beside the shard at `path` says of it."""
        if is_remote(path):
            folder, name = parent(path), base_name(path)
        else:
            folder, _, name = local_path(path).rpartition("/")
        if folder not in self._found:
            try:
                manifest = self._read(folder or ("/" if path.startswith("/") else "."))
            except FileNotFoundError:
                self._found[folder] = None
            else:
                self._found[folder] = {shard.name: shard for shard in manifest.shards}
                self._fields.update(manifest.fields)
        return (self._found[folder] or {}).get(name)

    def _read(self, folder: str) -> Manifest:
        """Read the manifest of a folder; FileNotFoundError if there is none."""

        def fetch(name: str) -> bytes | None:
            return read_if_there(
                _within(folder, name), limit=MANIFEST_LIMIT, storage_options=self._options
            )

        first = fetch(MANIFEST_NAME)
        if first is None:
            raise FileNotFoundError(MANIFEST_NAME)

        def content(name: str) -> bytes:
            found = first if name == MANIFEST_NAME else fetch(name)
            if found is None:
                raise ValueError(f"its part {name!r} is missing")
            return found

        return load_manifest(content, shard=shown(_within(folder, MANIFEST_NAME)))
