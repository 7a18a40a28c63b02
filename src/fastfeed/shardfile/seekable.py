"""The zstd seekable format 0.1.0: a file of frames that ends with a table of them. No I/O.

Such a file is independent zstd frames and, last, a skippable frame with the table, so that plain
`zstd -d` and `tar --zstd` read it. docs/format.md says what fastfeed adds: where frames end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import xxhash

from fastfeed.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FOOTER_BYTES = 9
"""Bytes at the end of a file that tell whether it has a table, and how long that is."""

_FRAME = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1
_HAS_CHECKSUMS, _RESERVED = 0x80, 0x7C
_FRAME_LIMIT = 0x8000000
_WAY_OUT = "Copy or build the shard again"

_ZSTD = b"\x28\xb5\x2f\xfd"
# The content fills one segment, its size takes four bytes, a checksum follows.
_RAW_DESCRIPTOR = 0xA4
_BLOCK = 128 << 10


@dataclass(frozen=True, slots=True, eq=False)
class SeekTable:
    """Where the frames of a file lie, and the bytes that they stand for; empty ones left out."""

    starts: Sequence[int]
    """Where each frame's content begins in the content of the file, and where the last one ends."""
    places: Sequence[int]
    """Where each frame begins in the file."""
    ends: Sequence[int]
    """Where each frame ends in the file."""
    checksums: Sequence[bytes] | None
    """The last four bytes of a frame with a content checksum, or None if the table has none."""

    @property
    def size(self) -> int:
        """Bytes of the content of all frames."""
        return self.starts[-1]

    @property
    def largest(self) -> int:
        """Bytes of the content of the largest frame."""
        starts = self.starts
        return max((starts[i + 1] - starts[i] for i in range(len(starts) - 1)), default=0)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as the table lists it."""

    stored: int
    """Bytes in the file."""
    size: int
    """Bytes of its content."""
    checksum: int
    """Low 32 bits of the XXH64 of its content, as the frame's own checksum has it."""


def save_table(frames: Sequence[Frame]) -> bytes:
    """Return the table of these frames, which then ends the file."""
    entries = np.array([(one.stored, one.size, one.checksum) for one in frames], "<u4").tobytes()
    head = _FRAME.pack(_SKIPPABLE, len(entries) + FOOTER_BYTES)
    return head + entries + _FOOTER.pack(len(frames), _HAS_CHECKSUMS, _SEEKABLE)


def table_bytes(footer: bytes, size: int, *, shard: str) -> int | None:
    """Return how many bytes the table takes at the end of a file of `size`; None if it has none.

    `footer` is the last `FOOTER_BYTES` of the file. Raises ShardError for a table that cannot be.
    """
    if len(footer) < FOOTER_BYTES:
        return None
    fields: tuple[int, int, int] = _FOOTER.unpack(footer[-FOOTER_BYTES:])
    count, descriptor, magic = fields
    if magic != _SEEKABLE:
        return None
    nbytes = _FRAME.size + count * _entry_bytes(descriptor) + FOOTER_BYTES
    if descriptor & _RESERVED:
        _fail("has bits set that are reserved", shard, size - FOOTER_BYTES)
    if count > _FRAME_LIMIT or nbytes > size:
        _fail(f"lists {count:,} frames, which the file cannot hold", shard, size - FOOTER_BYTES)
    return nbytes


def load_table(table: bytes, size: int, *, shard: str) -> SeekTable:
    """Return the table that ends a file of `size`, as many bytes of it as `table_bytes` said.

    Raises ShardError unless its frames fill the file exactly.
    """
    place = size - len(table)
    magic, length = _FRAME.unpack_from(table)
    if magic != _SKIPPABLE or length != len(table) - _FRAME.size:
        _fail("does not begin where its end says", shard, place)
    count, descriptor, _ = _FOOTER.unpack(table[-FOOTER_BYTES:])
    body = np.frombuffer(table, "<u4", offset=_FRAME.size, count=(len(table) - 17) // 4)
    entries = body.reshape(count, _entry_bytes(descriptor) // 4)
    ends = np.cumsum(entries[:, 0], dtype=np.int64)
    stored = int(ends[-1]) if count else 0
    if stored != place:
        _fail(f"speaks of {stored:,} bytes of frames, but {place:,} are there", shard, place)
    full = entries[:, 1] > 0
    starts = [0, *accumulate(entries[full, 1].tolist())]
    checksums = _words(entries[full, 2]) if descriptor & _HAS_CHECKSUMS else None
    places = ends - entries[:, 0]
    return SeekTable(starts, places[full].tolist(), ends[full].tolist(), checksums)


def _words(checksums: NDArray[np.uint32]) -> list[bytes]:
    return [word.to_bytes(4, "little") for word in checksums.tolist()]


def _entry_bytes(descriptor: int) -> int:
    return 12 if descriptor & _HAS_CHECKSUMS else 8


def raw_frame(content: memoryview) -> bytes:
    """Return a zstd frame that holds its content as it is: reading it is copying.

    For content that does not shrink, such as JPEGs.
    """
    parts: list[bytes | memoryview] = [
        _ZSTD,
        bytes((_RAW_DESCRIPTOR,)),
        len(content).to_bytes(4, "little"),
    ]
    for start in range(0, len(content), _BLOCK):
        piece = content[start : start + _BLOCK]
        last = start + _BLOCK >= len(content)
        parts += ((len(piece) << 3 | last).to_bytes(3, "little"), piece)
    parts.append(content_checksum(content).to_bytes(4, "little"))
    return b"".join(parts)


def content_checksum(content: memoryview) -> int:
    """Return the checksum that frame and table have of a content."""
    return xxhash.xxh64_intdigest(content) & 0xFFFFFFFF


def _fail(fact: str, shard: str, offset: int) -> NoReturn:
    raise ShardError(
        f"the table of its zstd frames {fact}", way_out=_WAY_OUT, shard=shard, offset=offset
    )
