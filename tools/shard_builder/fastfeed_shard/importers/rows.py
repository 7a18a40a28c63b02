"""What every importer gives: the rows of a foreign data set, one a sample, in their order."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastfeed.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from typing import Self

    from fastfeed.storage.open import Storage

PIECE = 4 << 20
"""What a file that is read in order is read by."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a foreign data set.

    Values are bytes, text, numbers, arrays, lists, or mappings; None is a value that is missing.
    """

    place: str
    """Where it stands, for errors: file and number, counted from 0."""
    values: Mapping[str, Any]


class Importer(Protocol):
    """Reads one data set; each call of `rows` begins anew and gives the same rows."""

    @property
    def files(self) -> Sequence[str]:
        """All files that rows come from."""
        ...

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """The names of classes, for those columns that number them."""
        ...

    def rows(self) -> Generator[Row]:
        """Yield the rows; ShardError for a damaged file, OptionError for what can't be taken."""
        ...


class StorageFile(io.RawIOBase):
    """A file or an object of a bucket, as Python's libraries read files: by reads and seeks."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._storage: Storage = open_storage(path)
        self._position = 0

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._storage.size

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it has positions."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a position and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{base + offset} is no position")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as the file goes."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self.size - self._position))
        if count:
            self._storage.read_into(self._position, view[:count])
        self._position += count
        return count

    def close(self) -> None:
        """Close the storage."""
        if not self.closed:
            self._storage.close()
        super().close()

    def __enter__(self) -> Self:
        return self
