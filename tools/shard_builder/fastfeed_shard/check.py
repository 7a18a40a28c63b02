"""Prove that a shard is whole: every header, every checksum, every index beside it.

Nothing is believed: the shard is walked and its data are read anew, and each thing that was written
about it is compared with what is found.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from fastfeed.errors import ChecksumError, FastfeedError, IndexMismatchError, ShardError
from fastfeed.shardfile.index import MISSING, ShardIndex, group, load_index
from fastfeed.shardfile.manifest import ShardEntry
from fastfeed.shardfile.names import index_name, split_name
from fastfeed.shardfile.tar import read_member, walk
from fastfeed.storage.compressed import CompressedShard, wrap
from fastfeed.storage.open import local_path, open_storage
from fastfeed.storage.streams import kind_of
from fastfeed_shard.frames import SUFFIX
from fastfeed_shard.sidecars import dali_name, energon_name, last_end, side_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastfeed.shardfile.tar import Member
    from fastfeed.storage.open import Storage

_PIECE = 4 << 20
_SHOWN = 20
_REBUILD = "Build or copy the shard again"
_REINDEX = "Run `fastfeed-shard index` on it if the shard itself is right"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in one shard; it is proven whole if there are no problems."""

    entry: ShardEntry
    """The shard as it is, whatever the manifest says."""
    fields: Mapping[str, int]
    single: int = 0
    """Samples with one field only."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_shard(path: str, *, entry: ShardEntry | None = None, decode: bool = False) -> Checked:
    """Read all of a shard and compare it with its indexes and with its line in the manifest.

    With an `entry`, that is, in a data set with a manifest, the shard must have its index. `decode`
    decodes pictures, arrays, numbers and JSON as well. Never raises for a fault of the shard.
    """
    name = Path(local_path(path)).name if entry is None else entry.name
    problems: list[str] = []
    notes: list[str] = []
    try:
        with open_tar(path, entry=entry) as (storage, known):
            found = replace(known, name=name)
            members: list[Member] = []
            fresh = index_shard(path, storage, into=members)
            found = replace(found, samples=len(fresh))
            problems += _against_entry(found, entry)
            problems += _against_index(fresh, path, storage, needed=entry is not None, notes=notes)
            problems += _against_others(path, members)
            if decode:
                problems += _decode(fresh, path, storage)
    except FastfeedError as error:
        error.shard = error.shard or name
        return Checked(ShardEntry(name, 0, 0), {}, problems=(*problems, str(error)))
    present = (fresh.cells[..., 0] != MISSING).sum(axis=1)
    single = int((present == 1).sum())
    counts = fresh.counts()
    return Checked(found, counts, single, fresh.skipped, tuple(problems), tuple(notes))


@contextmanager
def open_tar(path: str, *, entry: ShardEntry | None = None) -> Iterator[tuple[Storage, ShardEntry]]:
    """Give the tar of a shard, compressed or not, and what is known of it without its samples.

    Raises IndexMismatchError for a compressed one that is not the file of its `entry`.
    """
    with open_storage(path) as stored:
        # Reading the shard in order first leaves it in memory for the walk.
        digest, kind, nbytes = digest_of(stored), kind_of(stored), stored.size
        with wrap(stored, path, entry=entry) as storage:
            name = Path(local_path(path)).name
            found = ShardEntry(name, storage.size, 0, digest)
            if kind is not None:
                frame = storage.frame_bytes if isinstance(storage, CompressedShard) else None
                found = replace(found, compression=kind, stored_bytes=nbytes, frame_bytes=frame)
            yield storage, found


def digest_of(storage: Storage) -> str:
    """Return the digest of all bytes of a shard, as the manifest has it."""
    state = xxhash.xxh3_64()
    position = 0
    while position < storage.size:
        piece = storage.read_at(position, _PIECE)
        if not piece:
            break
        state.update(piece)
        position += len(piece)
    return f"xxh3_64:{state.hexdigest()}"


def index_shard(path: str, storage: Storage, *, into: list[Member] | None = None) -> ShardIndex:
    """Return a new index of a shard, checksums included; its members are added to `into`."""

    def members() -> Iterator[Member]:
        for member in walk(storage.read_at, storage.size, shard=path):
            if into is not None:
                into.append(member)
            yield member

    def checksum_of(offset: int, size: int) -> int:
        if size <= _PIECE:
            return xxhash.xxh3_64_intdigest(storage.read_at(offset, size))
        state = xxhash.xxh3_64()
        for start in range(0, size, _PIECE):
            state.update(storage.read_at(offset + start, min(_PIECE, size - start)))
        return state.intdigest()

    return group(members(), shard=path, shard_bytes=storage.size, checksum_of=checksum_of)


def _against_entry(found: ShardEntry, entry: ShardEntry | None) -> Iterator[str]:
    if entry is None:
        return
    for what in ("bytes", "samples", "frame_bytes"):
        has, said = getattr(found, what) or 0, getattr(entry, what)
        if said is not None and has != said:
            fact = f"the shard has {has:,} {what}, not {said:,} as the manifest says"
            yield str(ShardError(fact, way_out=_REBUILD, shard=entry.name))
    if entry.digest is not None and entry.digest.startswith("xxh3_64:"):
        if entry.digest != found.digest:
            fact = "the digest of the shard is not the one in the manifest"
            yield str(ChecksumError(fact, way_out=_REBUILD, shard=entry.name))
    elif entry.digest is not None:
        fact = f"the digest {entry.digest!r} is of a kind that this version does not know"
        yield str(ChecksumError(fact, way_out="Upgrade fastfeed", shard=entry.name))


def _against_index(
    fresh: ShardIndex, path: str, storage: Storage, *, needed: bool, notes: list[str]
) -> Iterator[str]:
    """Compare the index beside a shard with one made just now."""
    beside = local_path(index_name(path))
    if not Path(beside).exists():
        if needed:
            yield str(IndexMismatchError("the index is missing", way_out=_REINDEX, shard=path))
        else:
            notes.append(f"{path}: no index, so only the structure of the tar is proven")
        return
    try:
        index = load_index(beside, verify=True)
    except FastfeedError as error:
        yield str(error)
        return
    if index.shard_bytes != storage.size or index.fields != fresh.fields:
        fact = "the index is of another shard: sizes or fields differ"
        yield str(IndexMismatchError(fact, way_out=_REINDEX, shard=path))
    elif len(index) != len(fresh):
        fact = f"the index has {len(index):,} samples, but the shard has {len(fresh):,}"
        yield str(IndexMismatchError(fact, way_out=_REINDEX, shard=path))
    else:
        yield from _against_rows(fresh, index, path, storage)
        if not index.cells[..., 3].any() and len(index):
            notes.append(f"{path}: the index has no checksums to compare")


def _against_rows(
    fresh: ShardIndex, index: ShardIndex, path: str, storage: Storage
) -> Iterator[str]:
    ours, theirs = fresh.cells, index.cells
    moved = (ours[..., :3] != theirs[..., :3]).any(axis=-1)
    changed = ~moved & (theirs[..., 3] != 0) & (ours[..., 3] != theirs[..., 3])
    for places, kind, fact in (
        (moved, IndexMismatchError, "the index says that this field is somewhere else"),
        (changed, ChecksumError, "the data are not those that were written"),
    ):
        rows, columns = np.nonzero(places)
        for row, column in list(zip(rows.tolist(), columns.tolist(), strict=True))[:_SHOWN]:
            key, offset = _key_at(fresh, path, storage, row), int(ours[row, column, 1])
            name = fresh.fields[column]
            yield str(kind(fact, way_out=_REBUILD, shard=path, key=key, field=name, offset=offset))
        if len(rows) > _SHOWN:
            yield f"{path}: the same for {len(rows) - _SHOWN:,} more fields"


def _key_at(index: ShardIndex, path: str, storage: Storage, row: int) -> str:
    header = int(index.cells[row, :, 0].min())
    member = read_member(storage.read_at, storage.size, header=header, shard=path)
    return (split_name(member.name) or (member.name, ""))[0]


def _against_others(path: str, members: list[Member]) -> Iterator[str]:
    """Compare the indexes of DALI and Energon, where they are, with what they must be."""
    folder, name = Path(local_path(path)).parent, Path(local_path(path)).name.removesuffix(SUFFIX)
    beside = [side for side in (dali_name(name), energon_name(name)) if (folder / side).exists()]
    # Those that others made differ for members that are no plain files; ours have none.
    plain = all(m.kind == "file" and m.offset - m.header == 512 for m in members)
    if not beside or not plain:
        return
    right = side_indexes(name, members, end=last_end(members))
    for side in beside:
        if (folder / side).read_bytes() != right[side]:
            yield str(IndexMismatchError(f"{side!r} does not fit", way_out=_REINDEX, shard=path))


def _decode(index: ShardIndex, path: str, storage: Storage) -> Iterator[str]:
    from fastfeed_shard.decode import why_undecodable

    for column, name in enumerate(index.fields):
        for row, (header, offset, size, _) in enumerate(index.cells[:, column].tolist()):
            if header == MISSING:
                continue
            reason = why_undecodable(name, storage.read_at(offset, size))
            if reason is not None:
                key = _key_at(index, path, storage, row)
                error = ShardError(reason, shard=path, key=key, field=name, offset=offset)
                yield str(error)
