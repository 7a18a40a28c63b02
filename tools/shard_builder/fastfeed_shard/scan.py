"""Samples from a folder of files: those that share a stem are the fields of one sample."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, StorageError
from fastfeed.shardfile.names import split_name
from fastfeed_shard.safe import refuse_unsafe, rename_key, split_loosely, why_unsafe
from fastfeed_shard.samples import DataPart, FilePart, Part, Sample, Source, file_part

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASS_FIELD = "cls"
# What operating systems leave in folders.
_LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
_WAY_OUT = "Rename the files, or let --rename do it (docs/shards.md says how)"
_RENAMED = "Rename these files: --rename rewrites keys, but not these names (docs/shards.md)"


def scan_folder(root: str, *, classes: bool, rename: bool) -> Source:
    """Return the samples of the folder `root` and of all folders below it.

    With `classes`, the folders directly in `root` are classes: each sample gets the field `cls`
    with the number of its class, counted from 0 in sorted order. Names that some reader would
    misread are an OptionError, or with `rename` rewritten.
    """
    if not os.path.isdir(root):  # noqa: PTH112 - paths stay text for the sake of speed
        raise OptionError(f"{root!r} is no folder", way_out="Name the folder of the files")
    return _Scan(root, classes=classes, rename=rename).run()


class _Scan:
    """The samples found so far, by key."""

    def __init__(self, root: str, *, classes: bool, rename: bool) -> None:
        self._root = root
        self._classes = classes
        self._rename = rename
        self._parts: dict[str, list[Part]] = {}
        self._class_of: dict[str, str] = {}
        self._offenders: list[tuple[str, str]] = []
        self._skipped: Counter[str] = Counter()
        self._found: list[str] = []

    def run(self) -> Source:
        """Look at every file, then put the samples together."""
        for relative, entry in self._walk(self._root, "", ()):
            self._take(relative, entry)
        refuse_unsafe(self._offenders, way_out=_RENAMED if self._rename else _WAY_OUT)
        if not self._classes:
            return Source([self._sample(key, ()) for key in self._parts], None, self._skipped)
        names = sorted(self._found)
        empty = sorted(set(names) - set(self._class_of.values()))
        if empty:  # it would take a number, and move those of the classes behind it
            raise OptionError(
                f"class folders without a sample: {', '.join(map(repr, empty[:5]))}",
                way_out="Remove them, or put their samples in",
            )
        if any("\n" in name for name in names):
            raise OptionError("the name of a class holds a line break", way_out="Rename its folder")
        number = {
            name: DataPart(CLASS_FIELD, str(place).encode()) for place, name in enumerate(names)
        }
        samples = [self._sample(key, (number[self._class_of[key]],)) for key in self._parts]
        return Source(samples, names, self._skipped)

    def _walk(
        self, folder: str, prefix: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield (path relative to the root, entry) of every file; links to folders are followed."""
        try:
            status = os.stat(folder)  # noqa: PTH116
            own = (status.st_dev, status.st_ino)
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError as error:
            raise StorageError(
                f"cannot read the folder {folder!r}: {error.strerror}",
                way_out="Mend the source and try again",
            ) from error
        if own in above:
            raise StorageError(
                f"the folder {folder!r} contains itself, by a link", way_out="Remove the link"
            )
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.name.startswith("."):
                self._skipped["hidden"] += 1
            elif entry.name.lower() in _LITTER:
                self._skipped["left by an operating system"] += 1
            elif entry.is_dir():
                if self._classes and not prefix:
                    self._found.append(entry.name)
                yield from self._walk(entry.path, f"{name}/", (*above, own))
            elif self._classes and not prefix:
                self._skipped["beside the class folders"] += 1
            else:
                yield name, entry

    def _take(self, name: str, entry: os.DirEntry[str]) -> None:
        """Add one file to its sample."""
        split = self._split(name)
        if split is None:
            return
        key, field = split
        try:
            status = entry.stat()
        except OSError:
            status = None
        parts = self._parts.get(key)
        if parts is None:
            parts = self._parts[key] = []
            if self._classes:
                self._class_of[key] = name.split("/", 1)[0]
        parts.append(file_part(field, entry.path, status))

    def _split(self, name: str) -> tuple[str, str] | None:
        """Return key and field of a file's name, as they are to be in the shard."""
        folder, slash, base = name.rpartition("/")
        stem, field = split_loosely(base) if self._rename else split_name(base) or ("", "")
        if not stem or not field:
            like_this = base.startswith("__") and "." in base
            self._skipped["name like __this__" if like_this else "name without an extension"] += 1
            return None
        key, field = f"{folder}{slash}{stem}", field.lower()
        if self._rename:
            key = rename_key(key)
        elif split_name(name) is None:
            self._skipped["name like __this__"] += 1
            return None
        reason = why_unsafe(key, field)
        if reason is not None:
            self._offenders.append((name, reason))
            return None
        return key, field

    def _sample(self, key: str, more: tuple[Part, ...]) -> Sample:
        parts = sorted((*self._parts[key], *more), key=lambda part: part.field)
        for one, other in pairwise(parts):
            if one.field == other.field:
                raise self._twice(key, one, other)
        return Sample(key, tuple(parts))

    def _twice(self, key: str, one: Part, other: Part) -> OptionError:
        files = [part.path for part in (one, other) if isinstance(part, FilePart)]
        if len(files) == 1:
            fact = f"the file {files[0]!r} and the number of the class would be the same field"
            way_out = "Rename the file, or use --layout files, which adds no class"
        else:
            first, second = sorted(files)
            fact = f"the files {first!r} and {second!r} would be the same field"
            way_out = "Rename one of them; fields are told apart in lower case"
        return OptionError(fact, way_out=way_out, key=key, field=one.field)
