"""Look into shards without changing anything: find them, list them, copy a field out.

The headers of the shards themselves are walked, so no index is needed and none is written; shards
of any tool will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.reading.sources import is_pattern, list_shards
from fastfeed.shardfile.index import MISSING, ShardIndex, group
from fastfeed.shardfile.names import MANIFEST_NAME, split_name
from fastfeed.shardfile.tar import walk
from fastfeed.storage.compressed import open_shard
from fastfeed.storage.open import local_path
from fastfeed.storage.urls import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastfeed.shardfile.tar import Member
    from fastfeed.storage.open import Storage

_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """One field of one sample, where it lies in its shard."""

    field: str
    offset: int
    size: int


def find_shards(dest: str) -> list[str]:
    """Return the shards of `dest`: a folder, with or without a manifest, a shard, or a pattern.

    OptionError if there are none.
    """
    if is_remote(dest):
        from fastfeed_shard.sources import shards_of

        return shards_of(dest)
    folder = None if is_pattern(dest) else Path(local_path(dest))
    if folder is None or not folder.is_dir() or (folder / MANIFEST_NAME).exists():
        return list(list_shards(dest).paths)
    paths = tars_in(folder)
    if not paths:
        raise OptionError(f"the folder {dest!r} holds no shards", way_out="Name another")
    return paths


def tars_in(folder: Path) -> list[str]:
    """Return the shards that lie in a folder, compressed ones among them, sorted."""
    return sorted(str(path) for kind in ("*.tar", "*.tar.zst") for path in folder.glob(kind))


def read_contents(path: str, storage: Storage) -> tuple[list[str], ShardIndex]:
    """Return the keys of a shard in their order, and its index without checksums."""
    keys: list[str] = []

    def members() -> Iterator[Member]:
        for member in walk(storage.read_at, storage.size, shard=path):
            split = split_name(member.name)
            if split and member.kind in {"file", "hardlink"} and keys[-1:] != [split[0]]:
                keys.append(split[0])
            yield member

    index = group(members(), shard=path, shard_bytes=storage.size)
    return keys, index


def contents(index: ShardIndex, row: int) -> list[Content]:
    """Return the fields that a sample has, sorted by name."""
    return [
        Content(field, offset, size)
        for field, (header, offset, size, _) in zip(
            index.fields, index.cells[row].tolist(), strict=True
        )
        if header != MISSING
    ]


def list_samples(dest: str) -> Iterator[str]:
    """Yield a line for each sample: shard, key, and each field with its size, parted by tabs."""
    for path in find_shards(dest):
        with open_shard(path) as storage:
            keys, index = read_contents(path, storage)
        for row, key in enumerate(keys):
            fields = " ".join(f"{shown(part.field)}:{part.size}" for part in contents(index, row))
            yield f"{Path(path).name}\t{shown(key)}\t{fields}"


def copy_fields(dest: str, wanted: str, write: Callable[[bytes], object]) -> None:
    """Hand the data of `KEY.FIELD`, or of all fields of `KEY` in order, to `write`.

    Raises OptionError if there is no such sample or field.
    """
    key, field = split_name(wanted) or (wanted, None)
    for path in find_shards(dest):
        with open_shard(path) as storage:
            keys, index = read_contents(path, storage)
            if key not in keys:
                continue
            parts = contents(index, keys.index(key))
            chosen = [part for part in parts if field in {None, part.field}]
            if not chosen:
                names = ", ".join(shown(part.field) for part in parts)
                fact = f"the sample has no field {field!r}"
                raise OptionError(fact, way_out=f"Its fields are {names}", shard=path, key=key)
            for part in chosen:
                copy_data(storage, part, write)
            return
    raise OptionError("no sample has this key", way_out="See `fastfeed-shard ls`", key=key)


def copy_data(storage: Storage, part: Content, write: Callable[[bytes], object]) -> None:
    """Hand the data of a field to `write`, in pieces."""
    for start in range(0, part.size, _PIECE):
        write(storage.read_at(part.offset + start, min(_PIECE, part.size - start)))


def shown(name: str) -> str:
    """Return a name from a shard so that it is safe to print; it may hold anything."""
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in name
    )
