"""Read the bytes of a batch: locate, merge, one request for each run, into one buffer."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import xxhash

from fastfeed.errors import (
    ChecksumError,
    FastfeedError,
    IndexDamagedError,
    IndexMismatchError,
    ShardError,
    located,
)
from fastfeed.reading.ranges import merge
from fastfeed.shardfile.index import MISSING
from fastfeed.storage.compressed import CompressedShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from fastfeed.reading.ranges import Runs
    from fastfeed.reading.shards import OpenShard, ShardSet
    from fastfeed.storage.compressed import Range
    from fastfeed.storage.open import Storage

GAP = 32 << 10
"""Bytes between two ranges that are rather read than skipped by a request of their own."""

_FRAME_GAP = 4 << 10
"""The same in compressed shards: neighbours alone. A frame that lies inside of a range is not kept
for others, and a range of its own costs little where the frame is kept."""

_HEADER, _OFFSET, _SIZE, _CHECKSUM = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The bytes of some fields of some samples, in one buffer."""

    buffer: NDArray[np.uint8]
    """What was read: the bytes of the fields, and of small gaps between them."""
    starts: NDArray[np.int64]
    """Where each field begins in the buffer: int64 [samples, fields]."""
    sizes: NDArray[np.int64]
    """Bytes of each field, -1 where a sample lacks it: int64 [samples, fields]."""

    def data(self, sample: int, field: int) -> memoryview | None:
        """Return the bytes of a field, or None if the sample lacks it."""
        size = int(self.sizes[sample, field])
        if size < 0:
            return None
        start = int(self.starts[sample, field])
        return self.buffer.data[start : start + size]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What a batch wants of one shard."""

    shard: int
    opened: OpenShard
    samples: NDArray[np.int64]
    """Positions in the batch: int64 [k]."""
    rows: NDArray[np.int64]
    cells: NDArray[np.uint64]
    """Rows of the index: uint64 [k, fields, 4]."""
    present: NDArray[np.bool_]
    """Which fields the samples have: bool [k, fields]."""
    runs: Runs

    def reader(self, *, verify: bool) -> Callable[[int, memoryview], None]:
        """Return what reads the shard; it may rely on checksums if all fields are compared."""
        storage = self.opened.storage
        if verify and isinstance(storage, CompressedShard):
            recorded = self.cells[..., _CHECKSUM] != 0
            if bool((recorded | ~self.present).all()):
                return partial(storage.read_into, verified=True)
        return storage.read_into


def read(
    shards: ShardSet,
    indices: NDArray[np.int64],
    *,
    fields: Sequence[str],
    allocate: Callable[[int], NDArray[np.uint8]],
    verify: bool,
) -> Records:
    """Read `fields` of the samples `indices` (int64) into memory that `allocate(bytes)` returns.

    With `verify` each field that has a checksum in the index is compared with it. Raises
    ChecksumError or IndexMismatchError, with shard, key, field and offset, for damaged data and
    StorageError if a shard cannot be read; nothing of the batch is returned then. Where a staged
    copy may be what is damaged, it is fetched again first.
    """
    while True:
        try:
            return _read(shards, indices, fields=fields, allocate=allocate, verify=verify)
        except ShardError as error:
            if not shards.lose_copy(error, of=indices):
                raise


def _read(
    shards: ShardSet,
    indices: NDArray[np.int64],
    *,
    fields: Sequence[str],
    allocate: Callable[[int], NDArray[np.uint8]],
    verify: bool,
) -> Records:
    parts = list(_parts(shards, indices, fields))
    buffer = allocate(sum(int(part.runs.sizes.sum()) for part in parts))
    view = buffer.data
    starts = np.zeros((len(indices), len(fields)), np.int64)
    sizes = np.full(starts.shape, -1, np.int64)
    base = 0
    far = shards.far_readers()
    waiting: list[Future[None]] = []
    coming: list[_Part] = []
    try:
        for part in parts:
            chosen = np.zeros(part.present.shape, np.int64)
            chosen[part.present] = part.runs.places + base
            starts[part.samples] = chosen
            sizes[part.samples] = np.where(part.present, part.cells[..., _SIZE].view(np.int64), -1)
            with located(shard=part.opened.name):
                pool = None if part.opened.is_near() else far
                fill = part.reader(verify=verify)
                ranges: list[Range] = []
                for offset, size in zip(
                    part.runs.offsets.tolist(), part.runs.sizes.tolist(), strict=True
                ):
                    if size and pool is not None:
                        ranges.append((offset, view[base : base + size]))
                    elif size:
                        fill(offset, view[base : base + size])
                    base += size
            if pool is not None:
                coming.append(part)
                waiting += [
                    pool.submit(_read_far, part.opened, some)
                    for some in _apart(part.opened.storage, ranges)
                ]
            elif verify:  # while the bytes are in the cores' cache
                _verify(shards, part, view, starts=starts[part.samples], fields=fields)
    finally:
        wait(waiting)  # until no read writes into the buffer any more
    for read_run in waiting:
        read_run.result()
    for part in coming if verify else ():
        _verify(shards, part, view, starts=starts[part.samples], fields=fields)
    return Records(buffer, starts, sizes)


def _apart(storage: Storage, ranges: Sequence[Range]) -> Sequence[Sequence[Range]]:
    """Return which ranges are read one after the other: those that need the same frames."""
    if isinstance(storage, CompressedShard):
        return storage.connected(ranges)
    return [(one,) for one in ranges]


def _read_far(opened: OpenShard, ranges: Sequence[Range]) -> None:
    with located(shard=opened.name):
        if isinstance(opened.storage, CompressedShard):
            opened.storage.read_ranges(ranges)
        else:
            for offset, into in ranges:
                opened.storage.read_into(offset, into)


def _parts(shards: ShardSet, indices: NDArray[np.int64], fields: Sequence[str]) -> Iterator[_Part]:
    numbers, rows = shards.locate(indices)
    held: list[int] = sorted(set(numbers.tolist()))
    for shard, opened in zip(held, shards.open_all(held), strict=True):
        samples = np.flatnonzero(numbers == shard)
        here = rows[samples]
        cells = _cells(opened, here, fields)
        opened.index.let_pages_go()
        present = cells[..., _HEADER] != MISSING
        _check_bounds(shards, shard, here, cells=cells, present=present, fields=fields)
        # Half the time of cells[present].
        wanted = cells.reshape(-1, 4).compress(present.ravel(), axis=0).view(np.int64)
        gap = _FRAME_GAP if isinstance(opened.storage, CompressedShard) else GAP
        runs = merge(wanted[:, _OFFSET], wanted[:, _SIZE], gap=gap)
        yield _Part(shard, opened, samples, here, cells, present, runs)


def _cells(opened: OpenShard, rows: NDArray[np.int64], fields: Sequence[str]) -> NDArray[np.uint64]:
    """Return the index rows of the wanted fields: uint64 [rows, fields, 4]."""
    columns = [opened.columns.get(name) for name in fields]
    if None not in columns:
        return opened.cells[rows[:, None], np.array(columns, np.int64)]
    # The shard knows nothing of some fields: none of its samples has them.
    cells = np.zeros((len(rows), len(fields), 4), np.uint64)
    cells[..., _HEADER] = MISSING
    for place, column in enumerate(columns):
        if column is not None:
            cells[:, place] = opened.cells[rows, column]
    return cells


def _check_bounds(
    shards: ShardSet,
    shard: int,
    rows: NDArray[np.int64],
    *,
    cells: NDArray[np.uint64],
    present: NDArray[np.bool_],
    fields: Sequence[str],
) -> None:
    """Refuse cells that point to no data of the shard, before any memory is asked for."""
    end = np.uint64(shards.shard_bytes[shard])
    offsets, sizes = cells[..., _OFFSET], cells[..., _SIZE]
    # A difference that wraps belongs to an offset that is refused by itself.
    outside = present & ((offsets > end) | (sizes > end - offsets))
    if outside.any():
        i, j = np.argwhere(outside)[0].tolist()
        error = IndexMismatchError(
            "the index points outside the shard",
            way_out="Run `fastfeed-shard index` on the shard again",
            field=fields[j],
            offset=int(offsets[i, j]),
        )
        _raise_of_sample(error, shards, shard, int(rows[i]))
    # A header comes before all data. Zeros are what is read behind the end of a file that was cut
    # while it was mapped.
    blank = present & (offsets == 0)
    if blank.any():
        i, j = np.argwhere(blank)[0].tolist()
        raise IndexDamagedError(
            f"the index is damaged: row {int(rows[i]):,} is nothing but zeros, as if it was cut",
            way_out="Run `fastfeed-shard index` on the shard again",
            shard=shards.shown(shard),
            field=fields[j],
        )


def _verify(
    shards: ShardSet,
    part: _Part,
    view: memoryview,
    *,
    starts: NDArray[np.int64],
    fields: Sequence[str],
) -> None:
    """Compare each field that has a checksum in the index with it."""
    checksums = part.cells[..., _CHECKSUM]
    recorded = part.present & (checksums != 0)
    begins = starts[recorded]
    ends = begins + part.cells[..., _SIZE][recorded].view(np.int64)
    digest = xxhash.xxh3_64_digest
    found = b"".join(
        [digest(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    )
    # A digest of 0 is kept as 1, since 0 stands for none.
    wrong = np.maximum(np.frombuffer(found, ">u8"), 1) != checksums[recorded]
    if wrong.any():
        i, j = np.argwhere(recorded)[wrong][0].tolist()
        error = ChecksumError(
            "the shard holds other bytes than were written",
            way_out="Copy or build the shard again, and its index with it: either may be damaged "
            "(`fastfeed-shard verify` lists what is bad)",
            field=fields[j],
            offset=int(part.cells[i, j, _OFFSET]),
        )
        _raise_of_sample(error, shards, part.shard, int(part.rows[i]))


def _raise_of_sample(
    error: ChecksumError | IndexMismatchError, shards: ShardSet, shard: int, row: int
) -> NoReturn:
    """Raise an error with shard and key; the key is read now, where it is still readable."""
    error.shard = shards.shown(shard)
    try:
        error.key = shards.key(shard, row)
    except FastfeedError:
        error.key = f"(row {row:,})"
    raise error
