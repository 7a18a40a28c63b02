"""Walk the members of a tar file, believing nothing: ustar, v7, GNU and pax headers.

A stock reader takes "this is not a header" for the end of the archive, so that a damaged shard
reads as a shorter one. Here an archive is complete only if two zero blocks end it and nothing but
zeros follows; all else is a `TarError` with the offset and the last good member. So is a file of
zeros alone, as a power cut leaves it, unless it is as small as an empty archive. Positions are
Python integers and never wrap. Memory is bounded: data is never read, and extension records are
refused beyond `EXTENSION_LIMIT` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from fastfeed.errors import OptionError, TarError
from fastfeed.shardfile.header import (
    BLOCK,
    compression_of,
    header_name,
    is_header,
    padded,
    parse_size,
    text,
)
from fastfeed.shardfile.pax import Overrides, parse_records

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTENSION_LIMIT = 1 << 20
# Headers of small members lie close together and are read many at a time; between large members
# a window this size would mostly hold data that nobody asked for.
_WINDOW, _SMALL_WINDOW = 64 << 10, 4 << 10
_ZEROS = bytes(BLOCK)
_OCTAL_LIMIT = 8**11
# What writers make of an archive without members: end blocks, padded to a record of 20 blocks.
_EMPTY = 20 * BLOCK

Kind = Literal["file", "dir", "symlink", "hardlink", "sparse", "other"]

_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"3": "other",
    b"4": "other",
    b"5": "dir",
    b"6": "other",
    b"S": "sparse",
}
# Links, devices, folders and pipes: whatever their size field says, no data follows them.
_HEADER_ONLY = frozenset(b"123456")
# GNU long name and long link; pax, pax as Solaris marks it, and pax for all members to come.
_PAX = frozenset((b"x", b"X"))
_EXTENSIONS = _PAX | {b"L", b"K", b"g"}


class ReadAt(Protocol):
    """Reads `size` bytes at `offset`; fewer only at the end of the file."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Return the bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar file, as its headers describe it. The name is data, never a path."""

    name: str
    kind: Kind
    header: int
    """Offset of its first header block, extension headers included."""
    offset: int
    """Offset of its data."""
    size: int
    """Bytes of data as stored; for a sparse member, without its holes."""
    link: str
    """Name of the member that a link points to, or empty."""


def walk(read_at: ReadAt, size: int, *, shard: str) -> Iterator[Member]:
    """Yield every member of the tar file of `size` bytes that `read_at` reads.

    Raises TarError for a tar that is damaged, cut short, compressed or not a tar at all, also
    after the last member was yielded: only a walk that ends by itself proves completeness.
    """
    reader = _Reader(read_at, size, shard=shard)
    position = 0
    while True:
        member, position = reader.member(position)
        if member is None:
            reader.expect_zeros(position)
            if position == 0:
                reader.expect_small()
            return
        yield member


def read_member(read_at: ReadAt, size: int, *, header: int, shard: str) -> Member:
    """Return the one member whose first header block lies at `header`."""
    member, _ = _Reader(read_at, size, shard=shard).member(header)
    if member is None:
        raise TarError("there is no member here", shard=shard, offset=header)
    return member


class _Reader:
    """Decodes headers through a window of the file, and remembers the last good member."""

    def __init__(self, read_at: ReadAt, size: int, *, shard: str) -> None:
        self._read_at = read_at
        self._size = size
        self._shard = shard
        self._window = b""
        self._start = 0
        self._last: str | None = None
        self._common = Overrides()

    def member(self, position: int) -> tuple[Member | None, int]:
        """Return the member at `position` (None at the end blocks) and where the next begins."""
        first = position
        # Most members have no extension headers; then only what holds for all counts.
        own = self._common
        while True:
            block = self._block(position)
            if block == _ZEROS:
                if own is not self._common:
                    self._fail("extension headers without a member", first)
                return None, position
            size = self._size_in(block, position)
            flag = block[156:157]
            if flag not in _EXTENSIONS:
                return self._finish(block, first, position + BLOCK, size=size, own=own)
            if flag in _PAX or (flag != b"g" and own is self._common):
                # Of several pax headers before a member the last counts alone, as in GNU tar.
                own = Overrides()
            self._extend(flag, self._extension(position, size), position, own=own)
            position += BLOCK + padded(size)

    def _extend(self, flag: bytes, body: bytes, position: int, *, own: Overrides) -> None:
        """Add one extension header to what is known of the member to come."""
        if flag == b"L":
            own.name = text(body.split(b"\0", 1)[0])
        elif flag == b"K":
            own.link = text(body.split(b"\0", 1)[0])
        else:
            try:
                parse_records(body, into=self._common if flag == b"g" else own)
            except ValueError as error:
                self._fail(f"malformed pax record: {error}", position)

    def _finish(
        self, block: bytes, first: int, position: int, *, size: int, own: Overrides
    ) -> tuple[Member, int]:
        """Build the member from its own header block and what extensions say of it."""
        over = own if own is self._common else own.over(self._common)
        flag = block[156]
        kind = _KINDS.get(block[156:157], "other")
        name = over.name if over.name is not None else header_name(block)
        link = over.link if over.link is not None else text(block[157:257].split(b"\0", 1)[0])
        if over.size is not None:
            size = over.size
        if over.sparse and kind == "file":
            kind = "sparse"
        elif kind == "file" and flag == 0 and name.endswith("/"):
            kind = "dir"  # as v7 wrote folders
        if flag in _HEADER_ONLY:
            size = 0
        elif block[156:157] == b"S":
            position = self._skip_sparse_map(block, position)
        if position + size > self._size:
            fact = f"the data of {name!r} ends at {position + size:,}, beyond the end of the file"
            self._fail(fact, first)
        self._last = name
        return Member(name, kind, first, position, size, link), position + padded(size)

    def expect_zeros(self, position: int) -> None:
        """Make sure that the end blocks are two and that only zeros follow."""
        if position + 2 * BLOCK > self._size:
            self._fail("the archive has only one of its two end blocks", position)
        while position < self._size:
            chunk = self._read_at(position, min(1 << 20, self._size - position))
            if not chunk:
                self._fail("the file is shorter than it was when it was opened", position)
            if chunk.count(0) != len(chunk):
                at = position + len(chunk) - len(chunk.lstrip(b"\0"))
                self._fail(
                    "data follows a block of zeros: a header was overwritten, or archives were "
                    "put one after the other",
                    at // BLOCK * BLOCK,
                )
            position += len(chunk)

    def expect_small(self) -> None:
        """Make sure that an archive without members is no larger than an empty one."""
        if self._size > _EMPTY:
            raise TarError(
                f"the shard is nothing but {self._size:,} bytes of zeros: it was cut by a crash, "
                "or never written",
                way_out="Copy or build the shard again",
                shard=self._shard,
            )

    def _block(self, position: int) -> bytes:
        start = position - self._start
        block = self._window[start : start + BLOCK] if start >= 0 else b""
        if len(block) == BLOCK:
            return block
        if position >= self._size:
            self._fail("the archive has no end blocks: it was cut, or never closed", position)
        near = 0 <= start < len(self._window) + _WINDOW
        self._window = self._read_at(position, _WINDOW if near else _SMALL_WINDOW)
        self._start = position
        block = self._window[:BLOCK]
        if len(block) < BLOCK:
            self._refuse_compressed(block, position)
            self._fail("the archive is cut inside a header", position)
        return block

    def _refuse_compressed(self, block: bytes, position: int) -> None:
        """Name the compression of what is no tar, if it is one that people use."""
        compression = compression_of(block) if position == 0 else None
        if compression is not None:
            raise TarError(
                f"the shard is compressed with {compression}, which this version does not read",
                way_out="Decompress it first; shards are plain tar files",
                shard=self._shard,
            )

    def _size_in(self, block: bytes, position: int) -> int:
        """Return the size that a header gives, once its checksum is found right."""
        if not is_header(block):
            self._refuse_compressed(block, position)
            self._fail("this is not a tar header: its checksum is wrong", position)
        try:
            return parse_size(block)
        except ValueError as error:
            self._fail(str(error), position)

    def _extension(self, position: int, size: int) -> bytes:
        if size > EXTENSION_LIMIT:
            self._fail(f"an extension header of {size:,} bytes is too large", position)
        body = self._read_at(position + BLOCK, size)
        if len(body) < size:
            self._fail("the archive is cut inside an extension header", position)
        return body

    def _skip_sparse_map(self, block: bytes, position: int) -> int:
        """Return where the data begins: after the blocks that continue an old GNU sparse map."""
        more = block[482]
        while more:
            more = self._block(position)[504]
            position += BLOCK
        return position

    def _fail(self, fact: str, offset: int) -> NoReturn:
        last = "no good member before it" if self._last is None else f"last good: {self._last!r}"
        raise TarError(
            f"{fact} ({last})",
            way_out="Copy or build the shard again",
            shard=self._shard,
            offset=offset,
        )


def ustar_header(name: str, size: int) -> bytes:
    """Return the one header block of a regular file, the same bytes for the same arguments.

    Read-only, without times and owners. A name beyond 100 bytes is split at a slash into prefix
    and name, as ustar allows; one that cannot be split so is an OptionError. A size of 8 GiB or
    more is written in base 256.
    """
    prefix, base = _split_for_ustar(name)
    octal = size < _OCTAL_LIMIT
    block = bytearray(BLOCK)
    for start, value in (
        (0, base),
        (100, b"0000444\0" + b"0000000\0" * 2),  # mode, user, group
        (124, b"%011o\0" % size if octal else b"\x80" + size.to_bytes(11, "big")),
        (136, b"00000000000\0"),  # time
        (148, b" " * 8),  # the checksum counts itself as spaces
        (156, b"0"),
        (257, b"ustar\x0000"),
        (265, b"fastfeed"),
        (297, b"fastfeed"),
        (329, b"0000000\0" * 2),  # device
        (345, prefix),
    ):
        block[start : start + len(value)] = value
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _split_for_ustar(name: str) -> tuple[bytes, bytes]:
    encoded = name.encode("utf-8", "surrogateescape")
    if not encoded or b"\0" in encoded or encoded.endswith(b"/"):
        raise OptionError(f"{name!r} cannot be the name of a file in a tar")
    if len(encoded) <= 100:
        return b"", encoded
    cut = encoded.find(b"/", len(encoded) - 101)
    if not 0 < cut <= 155:
        raise OptionError(
            f"the member name {name!r} does not fit the header of a tar (100 bytes, or 155 more "
            "for its folders)",
            way_out="Use shorter keys",
        )
    return encoded[:cut], encoded[cut + 1 :]
