"""A shard that is read in order, or sample by sample, with few requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fastfeed.storage.urls import is_remote

if TYPE_CHECKING:
    from fastfeed.storage.open import Storage

# What who reads a shard in order reads at a time; from far away it comes in parallel parts.
_NEAR, _FAR = 4 << 20, 32 << 20
_MORE = 4 << 10


def ahead_of(path: str) -> int:
    """Return how much to read at a time of a shard that is read in order."""
    return _FAR if is_remote(path) else _NEAR


class Reader:
    """A shard read in order: what is asked for and a piece beyond it come in one request."""

    def __init__(self, storage: Storage, *, ahead: int) -> None:
        self._storage = storage
        self._ahead = ahead
        self._start = 0
        self._window = b""

    @property
    def size(self) -> int:
        """Bytes in the shard."""
        return self._storage.size

    def want(self, start: int, stop: int) -> None:
        """Have these bytes at hand, unless they are many."""
        end = self._start + len(self._window)
        if stop - start <= _FAR and not self._start <= start <= stop <= end:
            self._start = start
            # Beyond a sample a little, where whoever reads its header looks as well.
            self._window = self._storage.read_at(start, max(self._ahead, stop - start + _MORE))

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`; fewer only if the shard ends before."""
        size = max(0, min(size, self.size - offset))
        if self._ahead:
            self.want(offset, offset + size)
        at = offset - self._start
        if at >= 0 and at + size <= len(self._window):
            return self._window[at : at + size]
        return self._storage.read_at(offset, size)

    def read_into(self, offset: int, buffer: memoryview, /) -> None:
        """Fill all of `buffer` with the bytes at `offset`, or raise StorageError."""
        if self._ahead:
            self.want(offset, offset + len(buffer))
        at = offset - self._start
        if at >= 0 and at + len(buffer) <= len(self._window):
            buffer[:] = self._window[at : at + len(buffer)]
        else:
            self._storage.read_into(offset, buffer)

    def advise(self, offset: int, size: int) -> None:
        """Pass the hint on."""
        self._storage.advise(offset, size)

    def close(self) -> None:
        """Let the bytes at hand go, and close the shard."""
        self._window = b""
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
