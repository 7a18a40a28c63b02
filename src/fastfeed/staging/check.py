"""Whether what was brought is the shard that was asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import ChecksumError, FastfeedError, ShardError, StorageError
from fastfeed.shardfile.header import BLOCK, compression_of, is_header
from fastfeed.storage.urls import shown

if TYPE_CHECKING:
    from fastfeed.staging.source import Source

_PIECE = 1 << 20
_DIGEST = "xxh3_64:"


def is_proven(descriptor: int, source: Source) -> bool:
    """Say whether a file is the shard, to the byte: not if no digest is known of it."""
    try:
        return check_content(descriptor, source)
    except (FastfeedError, OSError):
        return False


def check_content(descriptor: int, source: Source) -> bool:
    """Compare a file with what is known of the shard: size, digest, and how a shard begins.

    Returns whether there was a digest to compare.

    A page that a proxy sent in place of the shard fails here, whatever status it came with. Raises
    ChecksumError, ShardError or StorageError.
    """
    size = os.fstat(descriptor).st_size
    if size != source.size:
        raise StorageError(
            f"{size:,} bytes came of a shard of {source.size:,}", shard=shown(source.url)
        )
    start = os.pread(descriptor, BLOCK, 0)
    if not (is_header(start.ljust(BLOCK, b"\0")) or compression_of(start) or not any(start)):
        raise ShardError(
            f"what came is no shard; it begins with {start[:16]!r}",
            shard=shown(source.url),
            way_out="See what answers at that address",
        )
    if source.digest is None or not source.digest.startswith(_DIGEST):
        return False
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(min(_PIECE, max(1, size))))
    offset = 0
    while offset < size:
        done = os.preadv(descriptor, [buffer], offset)
        if done <= 0:
            raise StorageError(f"the part ended after {offset:,} bytes", shard=shown(source.url))
        digest.update(buffer[:done])
        offset += done
    if digest.hexdigest() != source.digest.removeprefix(_DIGEST):
        raise ChecksumError(
            "the shard that came holds other bytes than were written",
            shard=shown(source.url),
            way_out="Run `fastfeed-shard verify` on the data set",
        )
    return True
