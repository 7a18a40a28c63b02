"""The index of a shard: where each field of each sample lies, one row a sample.

An index is a `.npy` file that can be memory-mapped, with a trailer of 32 bytes; docs/format.md
describes it byte by byte. All numbers are 64-bit, so no shard is too large. Field names come from
the file and are data like everything else in it.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import xxhash

from fastfeed.errors import IndexDamagedError, ShardError, StorageError
from fastfeed.shardfile.literals import undisturbed
from fastfeed.shardfile.names import split_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from fastfeed.shardfile.tar import Member

MISSING = 2**64 - 1
"""Value of `header` where a sample lacks the field."""

CELL = np.dtype([("header", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("checksum", "<u8")])
"""One field of one sample."""

_WIDTH = 4

# Bounds what a hostile file makes us parse.
_HEADER_LIMIT = 256 << 10
# Many fields that few samples have are a sign of dots in keys; as a table they would also take
# memory without bound.
_FIELD_LIMIT, _SPREAD = 1024, 64
# Indexes up to this size may stay mapped whole.
_LARGE = 8 << 20
# Magic, bytes of the shard, samples, xxh3_64 of all bytes of the index before the trailer.
_TRAILER = struct.Struct("<8sQQQ")
_MAGIC = b"ffindex1"
_WAY_OUT = "Run `fastfeed-shard index` on the shard to make it anew"
_REPACK = "Pack the shard again with its members sorted by name (fastfeed-shard build)"
# What numpy and struct raise for a file that is no array, or is cut.
_JUNK = (
    SyntaxError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
)


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """Where each field of each sample of one shard lies."""

    fields: tuple[str, ...]
    """Names of the fields, sorted."""
    rows: NDArray[np.void]
    """One row a sample, one sub-record of dtype `CELL` a field."""
    shard_bytes: int
    """Size of the shard that the index was made from."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Members that belong to no sample, counted by reason; known only to whoever grouped them."""
    map: mmap.mmap | None = None
    """The file that `rows` lie in, if they were not made in memory."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cells(self) -> NDArray[np.uint64]:
        """The rows as numbers: uint64 [samples, fields, 4], columns as in `CELL`."""
        shape = (len(self.rows), len(self.fields), _WIDTH)
        return self.rows.view("<u8").reshape(shape) if self.fields else np.zeros(shape, "<u8")

    @property
    def has_checksums(self) -> bool:
        """Whether the data of its fields can be compared with what was indexed."""
        return bool(len(self)) and bool(self.cells[0, :, 3].any())

    def let_pages_go(self) -> None:
        """Give up the pages of a large index that were looked at; the kernel's cache keeps them.

        Each row that is looked up maps 64 KiB around it, and samples come in random order: without
        this every worker would end up with the whole file as memory of its own.
        """
        if self.map is not None and self.rows.nbytes > _LARGE and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)

    def counts(self) -> dict[str, int]:
        """Return for each field how many samples have it."""
        present = (self.cells[..., 0] != MISSING).sum(axis=0)
        return dict(zip(self.fields, present.tolist(), strict=True))


def row_dtype(fields: Sequence[str]) -> np.dtype[np.void]:
    """Return the dtype of the rows of an index with these fields."""
    return np.dtype([(name, CELL) for name in fields])


def save_index(index: ShardIndex) -> bytes:
    """Return the bytes of the index file; the same index always gives the same bytes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, index.rows, version=(3, 0), allow_pickle=False)
    body = file.getvalue()
    if len(body) - index.rows.nbytes > _HEADER_LIMIT:
        raise ShardError("the names of its fields are too long for an index")
    digest = xxhash.xxh3_64_intdigest(body)
    return body + _TRAILER.pack(_MAGIC, index.shard_bytes, len(index.rows), digest)


def load_index(path: str | PathLike[str], *, verify: bool = False) -> ShardIndex:
    """Map the index file at `path` into memory.

    The form and the length of the file are always checked, its rows only when they are used; with
    `verify=True` the file's own checksum is compared, which reads all of it. Raises
    IndexDamagedError for a damaged file and StorageError for one that cannot be read.
    """
    path = os.fspath(path)
    try:
        rows = undisturbed(
            lambda: np.lib.format.open_memmap(path, mode="r", max_header_size=_HEADER_LIMIT)
        )
        with open(path, "rb") as file:  # noqa: PTH123 - shards are opened by the thousand
            length = file.seek(0, os.SEEK_END)
            file.seek(-min(length, _TRAILER.size), os.SEEK_END)
            trailer = file.read()
            magic, shard_bytes, samples, digest = _TRAILER.unpack(trailer)
            if verify:
                file.seek(0)
                intact = _digest(file, length - _TRAILER.size) == digest
    except OSError as error:
        raise StorageError(f"cannot read the index {path!r}: {error.strerror}") from error
    except _JUNK as error:
        raise _damaged(path, str(error)) from error
    fields = rows.dtype.names or ()
    if magic != _MAGIC:
        raise _damaged(path, "it does not end as an index ends")
    if rows.ndim != 1 or rows.dtype != row_dtype(fields):
        raise _damaged(path, "its rows are not rows of an index")
    if len(rows) != samples or length != rows.offset + rows.nbytes + _TRAILER.size:
        raise _damaged(path, f"{length:,} bytes are not what {samples:,} samples take")
    if verify and not intact:
        raise _damaged(path, "its checksum is wrong")
    return ShardIndex(
        tuple(fields), rows.view(np.ndarray), shard_bytes, map=getattr(rows, "_mmap", None)
    )


def _digest(file: BinaryIO, length: int) -> int:
    state = xxhash.xxh3_64()
    while length > 0 and (chunk := file.read(min(length, 1 << 20))):
        state.update(chunk)
        length -= len(chunk)
    return state.intdigest()


def _damaged(path: str, why: str) -> IndexDamagedError:
    return IndexDamagedError(f"the index {path!r} is damaged: {why}", way_out=_WAY_OUT)


def group(
    members: Iterable[Member],
    *,
    shard: str,
    shard_bytes: int,
    checksum_of: Callable[[int, int], int] | None = None,
) -> ShardIndex:
    """Group the members of one shard into samples, by keys as `split_name` defines them.

    Members of a sample must be neighbours: a key that comes back, like a field that a sample has
    twice, is a ShardError with both offsets. Hard links stand for the bytes of the earlier member
    that they name. What is no regular file is skipped and counted. `checksum_of(offset, size)`
    gives the xxh3_64 of a member's data; without it none is recorded.
    """
    grouping = _Grouping(shard)
    for member in members:
        grouping.add(member, checksum_of)
    return grouping.finish(shard_bytes)


class _Grouping:
    """The samples seen so far, as flat columns with one entry a field: 48 bytes each."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._rows: dict[str, int] = {}
        self._starts = array("Q")
        self._columns: dict[str, int] = {}
        self._places = array("Q")
        """Row and column of each entry, in turn."""
        self._cells = array("Q")
        """Header, offset, size and checksum of each entry, in turn."""
        self._key: str | None = None
        self._seen: dict[str, int] = {}
        self._skipped: dict[str, int] = {}

    def add(self, member: Member, checksum_of: Callable[[int, int], int] | None) -> None:
        """Take the next member of the shard."""
        name = None if member.kind == "dir" else split_name(member.name)
        if name is None or member.kind in {"symlink", "other"}:
            reason = "other name" if member.kind == "file" else member.kind
            self._skipped[reason] = self._skipped.get(reason, 0) + 1
            return
        key, field_name = name
        if member.kind == "sparse":
            way_out = "Pack the shard again without tar's --sparse"
            raise self._error("this member is stored without its holes (sparse)", member, way_out)
        if key != self._key:
            self._begin(key, member)
        elif field_name in self._seen:
            fact = f"the sample has this field twice, first at offset {self._seen[field_name]:,}"
            raise self._error(fact, member, _REPACK)
        self._seen[field_name] = member.header
        offset, size, checksum = member.offset, member.size, 0
        if member.kind == "hardlink":
            offset, size, checksum = self._target(member)
        elif checksum_of is not None:
            checksum = checksum_of(offset, size) or 1
        column = self._columns.setdefault(field_name, len(self._columns))
        self._places.extend((len(self._starts) - 1, column))
        self._cells.extend((member.header, offset, size, checksum))

    def _begin(self, key: str, member: Member) -> None:
        first = self._rows.setdefault(key, len(self._starts))
        if first != len(self._starts):
            before = self._cells[_WIDTH * self._starts[first]]
            fact = f"the key comes back; its sample began at offset {before:,} and has ended"
            raise self._error(fact, member, _REPACK)
        self._starts.append(len(self._places) // 2)
        self._key = key
        self._seen = {}

    def _target(self, link: Member) -> tuple[int, int, int]:
        """Return offset, size and checksum of the earlier entry that a hard link names."""
        key, field_name = split_name(link.link) or ("", "")
        row = self._rows.get(key)
        column = self._columns.get(field_name)
        if row is not None and column is not None:
            for entry in range(self._starts[row], len(self._places) // 2):
                if self._places[2 * entry] != row:
                    break
                if self._places[2 * entry + 1] == column:
                    _, *target = self._cells[_WIDTH * entry : _WIDTH * (entry + 1)]
                    return target[0], target[1], target[2]
        fact = f"this hard link names {link.link!r}, which is no earlier field of the shard"
        way_out = "Pack the shard again with the file itself (tar: --hard-dereference)"
        raise self._error(fact, link, way_out)

    def finish(self, shard_bytes: int) -> ShardIndex:
        """Return the index, its fields sorted by name."""
        fields = sorted(self._columns)
        self._check_fields(fields)
        entries = len(self._places) // 2
        cells = np.zeros((len(self._rows), len(fields), _WIDTH), "<u8")
        cells[..., 0] = MISSING
        places = np.frombuffer(self._places, np.uint64).reshape(entries, 2)
        ranks = np.array([fields.index(name) for name in self._columns], np.int64)
        columns = ranks[places[:, 1]]
        cells[places[:, 0], columns] = np.frombuffer(self._cells, np.uint64).reshape(
            entries, _WIDTH
        )
        rows = np.zeros(len(cells), row_dtype(fields))
        if fields:
            rows = cells.reshape(-1).view(rows.dtype)
        return ShardIndex(tuple(fields), rows, shard_bytes, self._skipped)

    def _check_fields(self, fields: list[str]) -> None:
        """Refuse names that no index can hold, and those that are really parts of keys."""
        entries = len(self._places) // 2
        if len(fields) > _FIELD_LIMIT or len(self._rows) * len(fields) > _SPREAD * entries:
            raise ShardError(
                f"its {len(self._rows):,} samples have {len(fields):,} different fields, such as "
                f"{fields[0]!r} and {fields[-1]!r}",
                way_out="The key of a sample ends at the first dot of the base name: rename the "
                "members so that keys hold no dots",
                shard=self._shard,
            )
        for name in fields:
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise ShardError(
                    f"the field name {name!r} is not UTF-8",
                    way_out="Rename the members",
                    shard=self._shard,
                )

    def _error(self, fact: str, member: Member, way_out: str) -> ShardError:
        key, field_name = split_name(member.name) or (None, None)
        return ShardError(
            fact,
            way_out=way_out,
            shard=self._shard,
            key=key,
            field=field_name,
            offset=member.header,
        )
