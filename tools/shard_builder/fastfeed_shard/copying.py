"""Samples of shards that exist already, on their way into new ones.

What was written of them is not believed: where the source has an index with checksums, each field
is compared with its own while it is copied, for afterwards its new checksum would vouch for it.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import ChecksumError, WorkerError, located
from fastfeed.shardfile.index import MISSING
from fastfeed.storage.compressed import open_shard
from fastfeed.storage.frames import FrameCache
from fastfeed.storage.urls import shown
from fastfeed_shard.pool import parent_is_gone
from fastfeed_shard.reader import Reader, ahead_of
from fastfeed_shard.stored import key_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed_shard.packing import ShardFile
    from fastfeed_shard.stored import StoredShard

_OPEN_AT_ONCE = 64


def copy_samples(
    out: ShardFile,
    rows: Sequence[tuple[int, int]],
    shards: Sequence[StoredShard],
    *,
    in_order: bool,
    parent: int,
) -> None:
    """Copy the samples (number of a shard, row in it) to a new shard, in this order.

    `in_order` says that the rows of a shard come in its own order. `parent` is the process that
    planned the copy: without it there is nobody to copy for.
    """
    opened: dict[int, Reader] = {}
    frames = FrameCache()  # one for all: its limit is that of the copy
    try:
        for number, group in groupby(rows, key=lambda row: row[0]):
            shard = shards[number]
            if number not in opened:
                if len(opened) >= (1 if in_order else _OPEN_AT_ONCE):
                    opened.pop(next(iter(opened))).close()
                opened[number] = Reader(
                    open_shard(shard.path, cache=frames),
                    ahead=ahead_of(shard.path) if in_order else 0,
                )
            with located(shard=shown(shard.path)):
                for _, row in group:
                    if parent_is_gone(parent):
                        raise WorkerError("the run has ended", way_out="Go on with --resume")
                    _copy_sample(out, shard, row, opened[number])
    finally:
        for reader in opened.values():
            reader.close()


def _copy_sample(out: ShardFile, shard: StoredShard, row: int, reader: Reader) -> None:
    cells = shard.cells[row].tolist()
    there = [cell for cell in cells if cell[0] != MISSING]
    start = min(cell[0] for cell in there)
    # Most often all of a sample comes in one request, or was there already.
    reader.want(start, max(start, *(cell[1] + cell[2] for cell in there)))
    key = shard.keys.changed(key_at(shard, row, reader))
    out.begin(shard.size_of(row))
    for field, (header, offset, size, checksum) in zip(shard.fields, cells, strict=True):
        if header != MISSING:
            data = _Data(reader, offset, size)
            out.add(f"{key}.{field}", size, data.fill)
            if checksum and checksum != data.checksum():
                raise ChecksumError(
                    "the data are not those that were indexed",
                    way_out="Copy the shard again; `fastfeed-shard verify` shows what else is",
                    key=key,
                    field=field,
                    offset=offset,
                )


class _Data:
    """The data of one field, put into memory piece by piece."""

    def __init__(self, reader: Reader, offset: int, size: int) -> None:
        self._reader = reader
        self._position = offset
        self._end = offset + size
        self._state = xxhash.xxh3_64()

    def fill(self, buffer: memoryview) -> int:
        """Fill as much of `buffer` as there is data for; returns how much that is."""
        piece = buffer[: self._end - self._position]
        self._reader.read_into(self._position, piece)
        self._state.update(piece)
        self._position += len(piece)
        return len(piece)

    def checksum(self) -> int:
        """Return the checksum of what was put, as an index has it."""
        return self._state.intdigest() or 1
