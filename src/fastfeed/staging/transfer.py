"""One shard on its way to the shelf: pieces given out, written at their places, then published."""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, StorageError
from fastfeed.storage.urls import shown

if TYPE_CHECKING:
    from fastfeed.staging.shelf import Reservation
    from fastfeed.staging.source import Source
    from fastfeed.storage.open import Storage

PIECE = 4 << 20
"""Bytes of one ranged read, and of the buffer of each thread that makes them."""


def make_buffer(size: int) -> memoryview:
    """Return memory that goes back to the system with its last view.

    An allocator would keep it: once for each thread that ever brought shards.
    """
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def ours(error: Exception, source: Source) -> FastfeedError:
    """Return an error as one of ours; what else a library raises is its storage's failure."""
    if isinstance(error, FastfeedError):
        return error
    return StorageError(f"{type(error).__name__}: {error}", shard=shown(source.url))


class Transfer:
    """Pieces of a shard, for as many threads as there are.

    It ends when the last piece is written (then the shard is published), or when one fails and
    those under way are done (then nothing of it is left). `error` says which of the two.
    """

    def __init__(self, remote: Storage, reservation: Reservation, *, piece: int = PIECE) -> None:
        self.source = reservation.source
        self.error: FastfeedError | None = None
        self._remote = remote
        self._reservation = reservation
        self._piece = piece
        self._next = 0
        self._end = max(1, self.source.size)  # a shard of no bytes has one piece of none
        self._under_way = 0
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Return the offset of a piece that nobody has; None if there are no more."""
        with self._lock:
            if self._next >= self._end:
                return None
            offset, self._next = self._next, self._next + self._piece
            self._under_way += 1
            return offset

    def carry(self, offset: int, buffer: memoryview) -> bool:
        """Bring one piece that `take` gave, and say whether that ended the transfer."""
        error: FastfeedError | None = StorageError("the transfer was interrupted")
        try:
            view = buffer[: min(self._piece, self.source.size - offset)]
            if self.error is None and view:
                self._remote.read_into(offset, view)
                self._reservation.write(offset, view)
            error = None
        except OSError as failed:
            path = str(self._reservation.path)
            error = StorageError(f"cannot write {path!r}: {failed.strerror}")
        except Exception as failed:  # noqa: BLE001 - the thread brings other shards
            error = ours(failed, self.source)
        finally:
            ended = self._done(error)
        return ended

    def abandon(self, error: FastfeedError) -> None:
        """Give out no more pieces; what was written goes when those under way are done."""
        with self._lock:
            if self._next >= self._end:
                return  # whoever has the last piece ends it
            self._under_way += 1
        self._done(error)

    def _done(self, error: FastfeedError | None) -> bool:
        with self._lock:
            if error is not None:
                self.error = self.error or error
                self._next = self._end
            self._under_way -= 1
            if self._under_way or self._next < self._end:
                return False
        try:
            with self._remote, self._reservation:
                if self.error is None:
                    self._reservation.publish()
        except Exception as failed:  # noqa: BLE001 - the thread brings other shards
            self.error = ours(failed, self.source)
        return True
