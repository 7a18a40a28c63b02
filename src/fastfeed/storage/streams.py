"""Decompress a file from its first byte to its last, believing nothing.

Libraries read a cut file as a shorter one, stop after the first of several frames, and ignore what
follows the last. Here every frame is read, and a file that does not end where a frame ends is an
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from fastfeed.errors import ShardError
from fastfeed.shardfile.header import BLOCK, compression_of, is_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastfeed.storage.open import Storage

_KINDS = ("zstd", "gzip", "bzip2", "xz")

_READ = 1 << 20
# What little input can grow to is bounded by the formats: here to 128 MiB, of zeros.
_FEED = 4 << 10
# Zeros may follow an xz or gzip stream: padding, as tapes have it.
_PADDED = frozenset(("gzip", "xz"))
_XZ_MEMORY = 256 << 20
_WAY_OUT = "Copy or make the file again"


class _Stream(Protocol):
    """One frame being read; what zlib, bz2, lzma and zstandard have in common."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def kind_of(storage: Storage) -> str | None:
    """Return how a shard is compressed, of what can be read; None for a tar, or anything else."""
    start = storage.read_at(0, BLOCK)
    kind = compression_of(start)
    # A tar may begin with a name that looks like the start of another file.
    is_tar = len(start) == BLOCK and is_header(start)
    return kind if kind in _KINDS and not is_tar else None


def inflate(
    read_at: Callable[[int, int], bytes], size: int, *, kind: str, shard: str
) -> Iterator[bytes]:
    """Yield the content of a file of `size` bytes, piece by piece.

    Raises ShardError for one that is damaged, cut, or followed by anything else, at the latest
    after its last piece: only when this ends by itself is the content whole.
    """
    begin, errors = _library(kind)
    stream: _Stream | None = None
    position, whole = 0, False
    while position < size:
        data = read_at(position, min(_READ, size - position))
        if not data:
            _fail("ended while it was read", kind, shard, position)
        for start in range(0, len(data), _FEED):
            piece = data[start : start + _FEED]
            while piece := _unpadded(piece, kind, padding=whole and stream is None):
                stream = stream or begin()
                try:
                    content = stream.decompress(piece)
                except errors as error:
                    _fail(f"is damaged ({error})", kind, shard, position + start)
                if content:
                    yield content
                piece = b""
                if stream.eof:
                    piece, stream, whole = stream.unused_data, None, True
        position += len(data)
    if stream is not None or not whole:
        _fail("is cut, or something follows its end", kind, shard, size)


def _unpadded(piece: bytes, kind: str, *, padding: bool) -> bytes:
    return piece.lstrip(b"\0") if padding and kind in _PADDED else piece


def _library(kind: str) -> tuple[Callable[[], _Stream], tuple[type[Exception], ...]]:
    """Return what begins a frame, and what it raises for damaged data."""
    if kind == "zstd":
        import zstandard

        # With the library's own limit on the window: 128 MiB, as that of `zstd -d`.
        return zstandard.ZstdDecompressor().decompressobj, (zstandard.ZstdError,)
    if kind == "gzip":
        import zlib

        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), (zlib.error,)
    if kind == "bzip2":
        import bz2

        return bz2.BZ2Decompressor, (OSError, ValueError)
    import lzma

    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY), (lzma.LZMAError,)


def _fail(fact: str, kind: str, shard: str, offset: int) -> NoReturn:
    raise ShardError(f"the {kind} file {fact}", way_out=_WAY_OUT, shard=shard, offset=offset)
