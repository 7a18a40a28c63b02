"""Write one shard: tar, checksums and every side index in a single pass over the data.

All bytes go through one buffer: a member's data are read to where they stand in the tar, between
its header and its padding, so that a full buffer is written and digested in one piece. In a
compressed shard each such piece is a frame; how large these are to be is tried at the first bytes,
unless it was said.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from fastfeed.errors import ShardError, StorageError
from fastfeed.shardfile.header import BLOCK, padded
from fastfeed.shardfile.index import group, save_index
from fastfeed.shardfile.manifest import ShardEntry
from fastfeed.shardfile.names import index_name
from fastfeed.shardfile.tar import Member, ustar_header
from fastfeed.storage.local import write_whole
from fastfeed_shard.frames import SUFFIX, TRIAL, FrameWriter, cut_frames
from fastfeed_shard.sidecars import side_indexes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from fastfeed_shard.frames import Compression

END_BYTES = 2 * BLOCK
# Large enough that calls cost nothing, small enough to stay in the cache from read to write.
_BUFFER = 1 << 20
_NO_ROOM = "Make room or name another destination; what is finished stays"


@dataclass(frozen=True, slots=True)
class Packed:
    """A finished shard: its line of the manifest, and how many samples have each field."""

    entry: ShardEntry
    fields: Mapping[str, int]


class ShardFile:
    """Writes one shard under a temporary name; `finish` gives it and its indexes their names.

    Until then no file has a final name, so whatever ends the process leaves no half shard behind.
    With `sync` that also holds for whatever ends the machine: all is on the disk before it gets
    its name. It takes as long as the disk does. With `compress` the tar is written as zstd frames;
    its indexes are those of the tar.
    """

    def __init__(self, path: Path, *, sync: bool, compress: Compression | None = None) -> None:
        self._sync = sync
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        self._file = -1
        self._room = _BUFFER
        self._frames: FrameWriter | None = None
        self._marks: list[tuple[int, int]] | None = None
        """What is better not parted, while all is held back for the trial."""
        if compress is not None:
            self._room = compress.frame or TRIAL
            self._frames = FrameWriter(compress)
            self._marks = None if compress.frame else []
        self._buffer = memoryview(bytearray(self._room))
        self._used = 0
        self._written = 0
        self._stored = 0
        self._digest = xxhash.xxh3_64()
        self._members: list[Member] = []
        self._checksums: dict[int, int] = {}
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(self._temporary, flags, 0o644)
        except OSError as error:
            raise self._cannot(error) from error

    @property
    def nbytes(self) -> int:
        """Bytes of the tar so far, without the end blocks."""
        return self._written + self._used

    def begin(self, nbytes: int) -> None:
        """Say that a sample of `nbytes` comes next: if it fits a frame, it is not parted."""
        if self._frames is not None:
            self._keep_together(nbytes)

    def add(self, name: str, size: int, fill: Callable[[memoryview], int]) -> None:
        """Append a member of `size` bytes, which `fill` puts into the memory that it is given.

        `fill` returns how many bytes it put there, as `readinto` does; zero is a StorageError.
        """
        header = self.nbytes
        self._keep_together(BLOCK)
        self._put(ustar_header(name, size))
        offset = self.nbytes
        self._keep_together(size)
        if size <= self._room - self._used:
            start = self._used
            self._fill(size, fill, name)
            checksum = xxhash.xxh3_64_intdigest(self._buffer[start : self._used])
        else:
            checksum = self._add_large(size, fill, name)
        self._checksums[offset] = checksum
        self._put(bytes(padded(size) - size))
        self._members.append(Member(name, "file", header, offset, size, ""))

    def finish(self) -> Packed:
        """Complete the shard and its indexes, and give them their names, the shard's last."""
        end = self.nbytes
        self._keep_together(END_BYTES)
        self._put(bytes(END_BYTES))
        self._end_trial()
        self._flush()
        if self._frames is not None:
            self._write(memoryview(self._frames.table()))
        try:
            if self._sync:
                os.fsync(self._file)
        except OSError as error:
            raise self._cannot(error) from error
        shard = self._path.name
        index = group(
            self._members,
            shard=shard,
            shard_bytes=self.nbytes,
            checksum_of=lambda offset, _: self._checksums[offset],
        )
        write_file(self._path.with_name(index_name(shard)), save_index(index), sync=self._sync)
        # Readers of these know no compression: they are of the tar that `zstd -d` makes.
        plain = shard if self._frames is None else shard.removesuffix(SUFFIX)
        for name, content in side_indexes(plain, self._members, end=end).items():
            write_file(self._path.with_name(name), content, sync=self._sync)
        try:
            self._temporary.replace(self._path)
        except OSError as error:
            raise self._cannot(error) from error
        self.discard()
        digest = f"xxh3_64:{self._digest.hexdigest()}"
        kind: tuple[Any, ...] = ()
        if self._frames is not None:
            kind = ("zstd", self._stored, self._frames.largest)
        return Packed(ShardEntry(shard, self.nbytes, len(index), digest, *kind), index.counts())

    def discard(self) -> None:
        """Close the file and leave nothing under a temporary name; more than once is fine."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def _keep_together(self, nbytes: int) -> None:
        """Say that the next `nbytes` are better not parted: if they fit no more, flush."""
        if self._marks is not None:
            self._marks.append((self._used, nbytes))
        elif nbytes > self._room - self._used:
            self._flush()

    def _put(self, data: bytes) -> None:
        while data:
            piece = data[: self._make_room()]
            self._buffer[self._used : self._used + len(piece)] = piece
            self._used += len(piece)
            data = data[len(piece) :]

    def _fill(self, size: int, fill: Callable[[memoryview], int | None], name: str) -> None:
        """Let `fill` put `size` bytes at the end of the buffer."""
        end = self._used + size
        while self._used < end:
            done = fill(self._buffer[self._used : end])
            if not done:
                raise StorageError(f"the data of {name!r} ended before its size was reached")
            self._used += done

    def _add_large(self, size: int, fill: Callable[[memoryview], int | None], name: str) -> int:
        """Append data that the buffer cannot hold; returns its checksum."""
        checksum = xxhash.xxh3_64()
        while size:
            piece = min(size, self._make_room())
            start = self._used
            self._fill(piece, fill, name)
            checksum.update(self._buffer[start : self._used])
            size -= piece
        return checksum.intdigest()

    def _make_room(self) -> int:
        """Flush the buffer if it is full; returns the bytes that it can take."""
        if self._used == self._room:
            self._end_trial()
        if self._used == self._room:
            self._flush()
        return self._room - self._used

    def _end_trial(self) -> None:
        """Choose the size of frames, if it is open, and write those held back, but for the last."""
        frames, marks, self._marks = self._frames, self._marks, None
        if frames is None or marks is None:
            return
        held = self._buffer[: self._used]
        self._room = frames.choose(held, marks)
        begin = 0
        for end in cut_frames(marks, len(held), self._room):
            self._write(memoryview(frames.pack(held[begin:end])))
            begin = end
        self._buffer = memoryview(bytearray(self._room))
        self._used = len(held) - begin
        self._buffer[: self._used] = held[begin:]
        self._written += begin

    def _flush(self) -> None:
        """Write what the buffer holds, in a compressed shard as a frame."""
        waiting = self._buffer[: self._used]
        if self._frames is not None and waiting:
            self._write(memoryview(self._frames.pack(waiting)))
        else:
            self._write(waiting)
        self._written += self._used
        self._used = 0

    def _write(self, waiting: memoryview) -> None:
        """Digest and write bytes of the file."""
        if self._file < 0:
            raise ShardError("the shard is closed already", shard=self._path.name)
        self._digest.update(waiting)
        self._stored += len(waiting)
        try:
            while waiting:
                waiting = waiting[os.write(self._file, waiting) :]
        except OSError as error:
            raise self._cannot(error) from error

    def _cannot(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {str(self._path)!r}: {error.strerror}",
            way_out=_NO_ROOM,
        )


def write_file(path: Path, data: bytes, *, sync: bool) -> None:
    """Write a whole file or none; with `sync`, on the disk before it gets its name."""
    if sync:
        write_whole(path, data)
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write {str(path)!r}: {error.strerror}", way_out=_NO_ROOM
        ) from error
