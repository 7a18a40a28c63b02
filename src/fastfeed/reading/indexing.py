"""Find the index of a shard, or make it when a shard of another tool is used for the first time."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import IndexMismatchError, StorageError, TarError
from fastfeed.shardfile.index import MISSING, ShardIndex, group, load_index, save_index
from fastfeed.shardfile.names import index_name
from fastfeed.shardfile.tar import read_member, walk
from fastfeed.storage.local import write_whole
from fastfeed.storage.open import local_path

if TYPE_CHECKING:
    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

_WAY_OUT = "Run `fastfeed-shard index` on the shard again"


def find_index(shard: str, storage: Storage, *, cache: Path | None) -> ShardIndex:
    """Return the index of an open shard, mapped into memory.

    It lies beside the shard; failing that in `cache`, under a name made of the shard's path, size
    and time. If it is in neither place it is made, without checksums, and written to the first of
    them that can be written to. One without checksums is made anew if the shard has changed since,
    for nothing else would show it. Raises IndexMismatchError if the index is of another file, and
    StorageError if it can be kept nowhere.
    """
    beside = local_path(index_name(shard))
    cached = None if cache is None else cache / _cached_name(shard, storage.size)
    for path in (beside, cached):
        if path is None or not Path(path).exists():
            continue
        index = load_index(path)
        if not index.has_checksums:
            if _is_older(path, shard):
                continue
            index = load_index(path, verify=True)  # what it says is not compared with anything else
        check_fit(index, storage, shard=shard)
        return index
    index = load_index(_make(shard, storage, beside=beside, cached=cached))
    check_fit(index, storage, shard=shard)
    return index


def _is_older(index: str | Path, shard: str) -> bool:
    try:
        return os.stat(index).st_mtime_ns < os.stat(local_path(shard)).st_mtime_ns  # noqa: PTH116
    except OSError as error:
        raise StorageError(f"cannot open {shard!r}: {error.strerror}") from error


def check_fit(index: ShardIndex, storage: Storage, *, shard: str) -> None:
    """Compare the size of a shard, and the header of its last sample, with the index."""
    if index.shard_bytes != storage.size:
        raise IndexMismatchError(
            f"the shard has {storage.size:,} bytes, but {index.shard_bytes:,} when it was indexed",
            way_out=_WAY_OUT,
            shard=shard,
        )
    if not len(index):
        return
    # The last header moves with almost any change of the shard.
    header, offset, size, _ = max(
        (cell for cell in index.cells[-1].tolist() if cell[0] != MISSING), default=[0, 0, 0, 0]
    )
    try:
        member = read_member(storage.read_at, storage.size, header=header, shard=shard)
    except TarError as error:
        raise _other(shard, header) from error
    if member.kind == "file" and (member.offset, member.size) != (offset, size):
        raise _other(shard, header)


def _other(shard: str, header: int) -> IndexMismatchError:
    return IndexMismatchError(
        "the index is of another file: the member that it names is not in the shard",
        way_out=_WAY_OUT,
        shard=shard,
        offset=header,
    )


def _make(shard: str, storage: Storage, *, beside: str, cached: Path | None) -> str:
    """Index a shard and return where the index was written."""
    log.info("indexing %s, which has no index", shard)
    members = walk(storage.read_at, storage.size, shard=shard)
    content = save_index(group(members, shard=shard, shard_bytes=storage.size))
    try:
        write_whole(beside, content)
    except StorageError as error:
        if cached is None:
            error.way_out = "Let the index be kept in a cache folder, or index the shards elsewhere"
            raise
    else:
        return beside
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the shard has no index, and no place for one: cannot make {str(cached.parent)!r}: "
            f"{error.strerror}",
            shard=shard,
            way_out="Let its folder or the cache folder (XDG_CACHE_HOME) be written to",
        ) from error
    write_whole(cached, content)
    return str(cached)


def _cached_name(shard: str, size: int) -> str:
    path = os.path.abspath(local_path(shard))  # noqa: PTH100 - the name is all that is wanted
    try:
        changed = os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError as error:
        raise StorageError(f"cannot open {shard!r}: {error.strerror}") from error
    digest = xxhash.xxh3_128_hexdigest(os.fsencode(path))
    return index_name(f"{digest}-{size}-{changed}")
