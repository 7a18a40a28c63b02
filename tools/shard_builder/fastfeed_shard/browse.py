"""Look into shards without changing anything: `ls`, `cat` and `extract`.

All three walk the headers of the shards themselves, so they need no index and work on shards of
any tool. Names of members are shown with everything unprintable escaped.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, ShardError, StorageError
from fastfeed.reading.sources import list_shards
from fastfeed.shardfile.names import MANIFEST_NAME, is_contained, split_name
from fastfeed.shardfile.tar import walk
from fastfeed.storage.open import local_path, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from fastfeed.shardfile.tar import Member
    from fastfeed.storage.open import Storage

_PIECE = 4 << 20


def shard_paths(dest: str) -> list[str]:
    """Return the shards that `dest` names: those of a folder's manifest, else its tars, or shards.

    `dest` may also be one shard or a pattern of shards. OptionError if there are none.
    """
    folder = Path(local_path(dest)) if "{" not in dest and "::" not in dest else None
    if folder is not None and folder.is_dir() and not (folder / MANIFEST_NAME).exists():
        paths = sorted(str(path) for path in folder.glob("*.tar"))
        if not paths:
            raise OptionError(f"the folder {dest!r} holds no shards", way_out="Name another")
        return paths
    return list(list_shards(dest).paths)


def shown(name: str) -> str:
    """Return a name from a shard as text that is safe to print: it may hold anything."""
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in name
    )


def list_samples(dest: str) -> Iterator[str]:
    """Yield a line for each sample: shard, key, and the size of each field."""
    for path in shard_paths(dest):
        key, fields = None, []
        for member, split in _members(path):
            if split is None:
                continue
            if split[0] != key:
                if key is not None:
                    yield _line(path, key, fields)
                key, fields = split[0], []
            fields.append(f"{split[1]}:{member.size}")
        if key is not None:
            yield _line(path, key, fields)


def _line(path: str, key: str, fields: list[str]) -> str:
    return shown(f"{Path(path).name}\x00{key}\x00{' '.join(fields)}").replace("\\x00", "\t")


def _members(path: str) -> Iterator[tuple[Member, tuple[str, str] | None]]:
    """Yield the members of a shard, each with its key and field if it is of a sample."""
    with open_storage(path) as storage:
        for member in walk(storage.read_at, storage.size, shard=path):
            of_sample = member.kind in {"file", "hardlink", "sparse"}
            yield member, split_name(member.name) if of_sample else None


def copy_fields(dest: str, wanted: str, out: BinaryIO) -> None:
    """Write the data of `KEY.FIELD`, or of all fields of `KEY` in their order, to `out`.

    Raises OptionError if there is no such sample or field.
    """
    key, field = split_name(wanted) or (wanted, None)
    fields: list[str] = []
    found = False
    for path in shard_paths(dest):
        seen: dict[str, Member] = {}
        for member, split in _members(path):
            if split is not None and split[0] == key:
                fields.append(split[1])
                if field in {None, split[1]}:
                    found = True
                    with open_storage(path) as storage:
                        _copy(_resolve(member, seen, path), storage, out.write, path)
            seen[member.name] = member
            if fields and (split is None or split[0] != key):
                break
        if fields:
            break
    if found:
        return
    if fields:
        raise OptionError(
            f"the sample has no field {field!r}",
            way_out=f"Its fields are {', '.join(map(shown, fields))}",
            key=key,
        )
    raise OptionError("no sample has this key", way_out="See `fastfeed-shard ls`", key=key)
