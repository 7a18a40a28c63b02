"""Compressed shards as the plain tars that they hold, read by position like any other.

A shard whose zstd frames are listed in a table (docs/format.md) is read where it lies: a request
costs the frames that it touches, each decompressed by itself and checked. Any other compressed
shard is inflated once into the cache folder.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NoReturn

from fastfeed.errors import IndexMismatchError, ShardError, StorageError
from fastfeed.options import CACHE_SIZE, cache_folder, parse_size
from fastfeed.shardfile.seekable import (
    FOOTER_BYTES,
    SeekTable,
    content_checksum,
    load_table,
    table_bytes,
)
from fastfeed.storage.frames import FrameCache
from fastfeed.storage.inflated import open_inflated
from fastfeed.storage.open import open_storage
from fastfeed.storage.streams import kind_of
from fastfeed.storage.urls import shown

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from zstandard import ZstdDecompressor

    from fastfeed.shardfile.manifest import ShardEntry
    from fastfeed.storage.open import Storage

    Range = tuple[int, memoryview]
    """Where a read begins, and what it fills."""

# Larger frames are no good for reading by position: each is decoded for every sample in it.
_LARGEST_FRAME = 32 << 20
# Read together with the footer, so that most tables take one request.
_TAIL = 64 << 10
_REQUEST = 8 << 20
# How long another thread may take to bring a frame, until it counts as interrupted.
_PATIENCE_S = 60.0
_WAY_OUT = "Copy or build the shard again"
_CHANGED = (
    "If it was cut or damaged, copy it again (`fastfeed-shard verify` lists what is bad); if it is "
    "meant to be so, run `fastfeed-shard index` on the folder"
)

_OF_THREAD = threading.local()


def _decompressor() -> ZstdDecompressor:
    """Return that of the thread; it also serves the process that a thread forks."""
    try:
        own: ZstdDecompressor = _OF_THREAD.decompressor
    except AttributeError:
        import zstandard

        own = _OF_THREAD.decompressor = zstandard.ZstdDecompressor()
    return own


class CompressedShard:
    """The tar in a seekable `.tar.zst`. Safe to use from several threads and after a fork.

    Every frame is compared with the table: its sizes before memory is asked for, and its checksum
    if all of it is decoded.
    """

    def __init__(
        self, inner: Storage, table: SeekTable, *, name: str, cache: FrameCache | None = None
    ) -> None:
        self._inner = inner
        self._table = table
        self._name = name
        self._cache = FrameCache() if cache is None else cache
        self._base = self._cache.base()

    @property
    def size(self) -> int:
        """Bytes of the tar."""
        return self._table.size

    @property
    def frame_bytes(self) -> int:
        """Bytes of the tar in the largest frame."""
        return self._table.largest

    @property
    def stored(self) -> Storage:
        """The file as it lies."""
        return self._inner

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`; fewer only if the tar ends before."""
        buffer = bytearray(max(0, min(size, self.size - offset)))
        if buffer:
            self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview, /, *, verified: bool = False) -> None:
        """Fill all of `buffer` with the bytes at `offset`, or raise an error.

        With `verified` the caller compares what it gets with checksums of its own; then the frame
        in which it ends need not be decoded to its end.
        """
        starts, end = self._table.starts, offset + len(buffer)
        if offset < 0 or end > starts[-1]:
            raise StorageError(
                f"{self._name!r} holds {self.size:,} bytes, and those at {offset:,} to {end:,} "
                "were asked for",
                offset=offset,
            )
        if not len(buffer):
            return
        number = bisect_right(starts, offset) - 1
        if end <= starts[number + 1]:
            frame = self._frame(number)
            start = starts[number]
            buffer[:] = frame[offset - start : end - start]
            return
        numbers = range(number, bisect_left(starts, end))
        self._read_frames(numbers, offset, buffer, may_cut=verified)

    def connected(self, ranges: Sequence[Range]) -> list[list[Range]]:
        """Split ranges, in the order of their offsets, where the next one shares no frame.

        And where they are more than one request fetches.
        """
        starts, begin, reached = self._table.starts, 0, -1
        groups: list[list[Range]] = []
        for offset, buffer in ranges:
            if offset >= reached or offset - begin > _REQUEST:
                groups.append([])
                begin = offset
            groups[-1].append((offset, buffer))
            end = bisect_left(starts, offset + len(buffer))
            reached = max(reached, starts[min(end, len(starts) - 1)])
        return groups

    def read_ranges(self, ranges: Sequence[Range]) -> None:
        """Fill all buffers of connected ranges; frames that several want are read once."""
        if len(ranges) > 1:
            starts, (offset, buffer) = self._table.starts, ranges[-1]
            end = min(bisect_left(starts, offset + len(buffer)), len(starts) - 1)
            self._bring(range(max(0, bisect_right(starts, ranges[0][0]) - 1), end))
        for offset, buffer in ranges:
            self.read_into(offset, buffer)

    def _bring(self, numbers: range) -> None:
        """Keep those frames that nobody keeps or brings."""
        base, cache = self._base, self._cache
        ours = [n for n in numbers if cache.get(base + n) is None and cache.claim(base + n) is None]
        try:
            missing = [n for n in ours if cache.get(base + n) is None]  # put before it was ours
            for first, last in self._requests(missing):
                for number, stored in enumerate(self._stored(first, last), first):
                    self._keep(number, stored)
        finally:
            for number in ours:
                cache.settle(base + number)

    def _frame(self, number: int) -> memoryview:
        """Return a frame that is kept, or that another thread brings; else it is brought now."""
        key = self._base + number
        while (frame := self._cache.get(key)) is None:
            coming = self._cache.claim(key)
            if coming is None:
                try:
                    frame = self._cache.get(key)  # it may have been put before it was ours
                    return frame or self._keep(number, *self._stored(number, number))
                finally:
                    self._cache.settle(key)
            if not coming.wait(_PATIENCE_S):
                self._cache.settle(key)  # as after ^C between two steps; else it is read twice
        return frame

    def _read_frames(
        self, numbers: range, offset: int, buffer: memoryview, *, may_cut: bool
    ) -> None:
        """Fill `buffer` with several frames, of which the first and the last may be cut."""
        starts, missing = self._table.starts, []
        for number in numbers:
            frame = self._cache.get(self._base + number)
            if frame is None:
                missing.append(number)
            else:
                self._place(frame, number, offset, buffer)
        for first, last in self._requests(missing):
            for number, stored in enumerate(self._stored(first, last), first):
                start = starts[number] - offset
                stop = starts[number + 1] - offset
                cut = stop > len(buffer)
                if start < 0 or (cut and (not may_cut or self._cache.goes_on(self._base + number))):
                    self._place(self._keep(number, stored), number, offset, buffer)
                elif not self._decode_into(number, stored, buffer[start:stop]):
                    self._place(self._decode(number, stored), number, offset, buffer)

    def _place(
        self, frame: bytes | memoryview, number: int, offset: int, buffer: memoryview
    ) -> None:
        """Copy the part of a frame that a request for `buffer` at `offset` wants."""
        start = self._table.starts[number] - offset
        skipped = max(0, -start)
        part = frame[skipped : len(buffer) - start]
        buffer[start + skipped : start + skipped + len(part)] = part

    def _requests(self, numbers: list[int]) -> Iterator[tuple[int, int]]:
        """Yield first and last of the frames that one request reads: neighbours, and not many."""
        places, ends = self._table.places, self._table.ends
        at = 0
        while at < len(numbers):
            first = last = numbers[at]
            at += 1
            while (
                at < len(numbers)
                and numbers[at] == last + 1
                and places[last + 1] == ends[last]
                and ends[last + 1] - places[first] <= _REQUEST
            ):
                last += 1
                at += 1
            yield first, last

    def _stored(self, first: int, last: int) -> list[memoryview]:
        """Return the bytes of each of some neighbouring frames as they lie in the file."""
        places, ends = self._table.places[first : last + 1], self._table.ends[first : last + 1]
        place = places[0]
        nbytes = ends[-1] - place
        data = self._inner.read_at(place, nbytes)
        if len(data) < nbytes:
            self._fail("ends in the middle of a zstd frame", first)
        view = memoryview(data)
        return [view[a - place : b - place] for a, b in zip(places, ends, strict=True)]

    def _keep(self, number: int, stored: memoryview) -> memoryview:
        frame = memoryview(self._decode(number, stored))
        self._cache.put(self._base + number, frame)
        return frame

    def _decode(self, number: int, stored: memoryview) -> bytes:
        """Return the content of a frame."""
        import zstandard

        size = self._table.starts[number + 1] - self._table.starts[number]
        try:
            told = zstandard.get_frame_parameters(stored)
            if told.content_size not in {size, zstandard.CONTENTSIZE_UNKNOWN}:
                self._fail(f"has a frame of {told.content_size:,} bytes, not {size:,}", number)
            content = _decompressor().decompress(
                stored, max_output_size=size, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            self._fail(f"has a damaged zstd frame ({error})", number)
        if len(content) != size:
            self._fail(f"has a frame of {len(content):,} bytes, not {size:,}", number)
        if self._table.checksums is not None:
            # The same checksum ends the frame, where it has one, and the library has compared it.
            checksum: bytes | memoryview = stored[-4:]
            if not told.has_checksum:
                checksum = content_checksum(memoryview(content)).to_bytes(4, "little")
            if checksum != self._table.checksums[number]:
                self._fail("has a frame of other content than its table says", number)
        return content

    def _decode_into(self, number: int, stored: memoryview, buffer: memoryview) -> bool:
        """Decode a frame to where it is wanted, if that proves it as well; says whether it did.

        The table has the same checksum as a frame that ends with one: a frame that begins and ends
        as it should, and whose content the library has compared with its end, is whole. Of a frame
        that ends behind the buffer no more is decoded, and so its content is not compared.
        """
        import zstandard

        checksums = self._table.checksums
        size = self._table.starts[number + 1] - self._table.starts[number]
        try:
            told = zstandard.get_frame_parameters(stored)
            fits = told.content_size == size and told.has_checksum and told.dict_id == 0
            if checksums is None or not fits or stored[-4:] != checksums[number]:
                return False
            reader = _decompressor().stream_reader(stored, read_across_frames=False)
            with reader:
                return bool(reader.readinto(buffer) == len(buffer))
        except zstandard.ZstdError:
            return False  # the other way says what is wrong

    def advise(self, offset: int, size: int) -> None:
        """Hint that these bytes will be read soon."""
        starts = self._table.starts
        first = bisect_right(starts, max(0, offset)) - 1
        last = bisect_left(starts, min(offset + size, self.size)) - 1
        if 0 <= first <= last < len(starts) - 1:
            place = self._table.places[first]
            self._inner.advise(place, self._table.ends[last] - place)

    def close(self) -> None:
        """Give back what the shard holds open; more than once is fine."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CompressedShard({self._name!r}, {self.size:,} bytes)"

    def _fail(self, fact: str, number: int) -> NoReturn:
        raise ShardError(
            f"the shard {fact}",
            way_out=_WAY_OUT,
            shard=self._name,
            offset=self._table.places[number],
        )


def open_shard(
    url: str | os.PathLike[str],
    *,
    cache: FrameCache | None = None,
    folder: Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Storage:
    """Open a shard by its path or URL as a plain tar, whether it is compressed or not.

    `cache` keeps decoded frames, and may be shared by shards; `folder` keeps what must be inflated
    (default: fastfeed's cache folder). Raises StorageError if the shard cannot be opened, and
    ShardError if it is compressed and damaged.
    """
    storage = open_storage(url, storage_options=storage_options)
    try:
        return wrap(storage, str(url), cache=cache, folder=folder)
    except BaseException:
        storage.close()
        raise


def wrap(
    storage: Storage,
    name: str,
    *,
    entry: ShardEntry | None = None,
    cache: FrameCache | None = None,
    folder: Path | None = None,
    budget: int | None = None,
) -> Storage:
    """Return the tar in an open shard: the shard itself unless its first bytes say otherwise.

    What must be inflated goes to `folder` (default: fastfeed's cache folder), which then takes at
    most `budget` bytes (default: those of an `ff.Cache`). What is returned holds `storage`, or has
    closed it. Compressions that are not read are left to whoever walks the tar, which names them.
    Raises IndexMismatchError for a compressed file that is not the one of its `entry`.
    """
    kind = kind_of(storage)
    if entry is not None and entry.stored_bytes not in {None, storage.size}:
        fact = (
            f"the compressed shard has {storage.size:,} bytes, but {entry.stored_bytes:,} in the "
            "manifest"
        )
        raise IndexMismatchError(fact, way_out=_CHANGED, shard=shown(name))
    if kind is None:
        return storage
    if kind == "zstd":
        table = read_table(storage, name)
        if table is None and entry is not None and entry.frame_bytes is not None:
            fact = "the compressed shard does not end with the table of its frames that it had"
            raise IndexMismatchError(fact, way_out=_CHANGED, shard=shown(name))
        if table is not None and table.largest <= _LARGEST_FRAME:
            return CompressedShard(storage, table, name=shown(name), cache=cache)
    inflated = open_inflated(
        storage,
        name=name,
        kind=kind,
        cache=cache_folder() if folder is None else folder,
        budget=parse_size(CACHE_SIZE, name="size") if budget is None else budget,
    )
    storage.close()
    return inflated


def read_table(storage: Storage, name: str) -> SeekTable | None:
    """Return the table of a file of zstd frames, None if it has none."""
    size = storage.size
    tail = storage.read_at(max(0, size - _TAIL), min(size, _TAIL))
    nbytes = table_bytes(tail[-FOOTER_BYTES:], size, shard=shown(name))
    if nbytes is None:
        return None
    table = tail[-nbytes:] if nbytes <= len(tail) else storage.read_at(size - nbytes, nbytes)
    return load_table(table, size, shard=shown(name))
