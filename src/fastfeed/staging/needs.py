"""What each process will read next, told to all who share the shelf.

A process writes its order once an epoch and moves a number as it gets on, in a file of its own that
it keeps locked; without its owner the file is litter. Whoever makes room reads them all.

    "ffneed01" | place u64 | zone u64 | count u64 | per shard: key (16 bytes), size (u64)
"""

from __future__ import annotations

import os
import secrets
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from fastfeed.errors import StorageError
from fastfeed.staging.eviction import Upcoming
from fastfeed.staging.folder import PATIENCE_S, alone
from fastfeed.staging.locks import lock_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fastfeed.staging.source import Source

_MAGIC = b"ffneed01"
_HEAD = struct.Struct("<8sQQQ")
_PLACE = struct.Struct("<QQ")
_ENTRY = struct.Struct("<16sQ")
LONGEST = 16_384
"""Shards told ahead; what lies further is never needed, as far as others know."""


class Need:
    """One process's order on a shelf, until it is closed or the process ends."""

    def __init__(self, folder: Path, sources: Sequence[Source], *, zone: int) -> None:
        self._path = folder / f"{secrets.token_hex(8)}.need"
        told = sources[:LONGEST]
        entries = (_ENTRY.pack(bytes.fromhex(one.key), one.size) for one in told)
        content = _HEAD.pack(_MAGIC, 0, zone, len(told)) + b"".join(entries)
        try:
            with alone(folder):  # nobody sees it before it is locked and whole
                self._lock = lock_within(str(self._path), seconds=PATIENCE_S, create=True)
                written = os.write(self._lock.descriptor, content)
        except OSError as error:
            raise StorageError(f"cannot write {str(self._path)!r}: {error.strerror}") from error
        if written < len(content):
            self.close()
            raise StorageError(f"cannot write {str(self._path)!r}: the disk is full")

    def move(self, place: int, *, zone: int) -> None:
        """Tell that all before `place` is done, and that the `zone` shards from there come soon."""
        with suppress(OSError):
            os.pwrite(self._lock.descriptor, _PLACE.pack(place, zone), len(_MAGIC))

    def close(self) -> None:
        """Need nothing any more."""
        if self._lock.descriptor >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._lock.close()


def read_all(folder: Path, names: Iterable[str]) -> list[Upcoming]:
    """Return what the processes behind these files will read; unreadable ones are left out."""
    found = []
    for name in names:
        with suppress(OSError, ValueError, struct.error):
            found.append(parse((folder / name).read_bytes()))
    return found


def parse(content: bytes) -> Upcoming:
    """Return what a file says; ValueError or struct.error if it is none."""
    magic, place, zone, count = _HEAD.unpack_from(content)
    if magic != _MAGIC or len(content) < _HEAD.size + count * _ENTRY.size:
        raise ValueError("not whole")
    names = tuple(
        f"{key.hex()}-{size}"
        for key, size in _ENTRY.iter_unpack(
            memoryview(content)[_HEAD.size : _HEAD.size + count * _ENTRY.size]
        )
    )
    return Upcoming(names[place:], zone)
