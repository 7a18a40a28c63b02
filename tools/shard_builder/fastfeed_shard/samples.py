"""What a source hands to the planner: keys, and parts that are files, bytes, or yet to be made."""

from __future__ import annotations

import io
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from fastfeed.errors import DecodeError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A field whose data is a file, as it was when the build was planned."""

    field: str
    path: str
    size: int
    changed: int
    """Time of its last change in nanoseconds."""

    def open(self) -> io.FileIO:
        """Return the open file; StorageError if it is not as it was when the build was planned."""
        try:
            # Without O_NONBLOCK a pipe put in its place would be waited for.
            file = io.FileIO(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            status = os.fstat(file.fileno())
        except OSError as error:
            raise cannot_read(self.path, error) from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.changed):
            file.close()
            raise StorageError(
                f"the file {self.path!r} has changed since the build began",
                way_out="Start again when nobody writes to the source",
            )
        return file


@dataclass(frozen=True, slots=True)
class DataPart:
    """A field whose data is at hand."""

    field: str
    data: bytes

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return len(self.data)

    def open(self) -> io.BytesIO:
        """Return the data as an open file."""
        return io.BytesIO(self.data)


class Recipe(Protocol):
    """How the data of a field are made of a file. Its `repr` says all that they depend on."""

    def make(self, data: bytes) -> bytes:
        """Return the data for the bytes of a file; DecodeError if they are no good."""
        ...


@dataclass(frozen=True, slots=True)
class MadePart:
    """A field whose data are made of a file while the shard is written, of a size known before."""

    field: str
    source: FilePart
    size: int
    recipe: Recipe

    @property
    def changed(self) -> int:
        """Time of the file's last change in nanoseconds."""
        return self.source.changed

    def open(self) -> io.BytesIO:
        """Return the data as an open file; DecodeError with the file's name if it is no good."""
        data = make_of(self.source, self.recipe.make)
        if len(data) != self.size:
            raise StorageError(
                f"{self.source.path!r} made {len(data):,} bytes, not {self.size:,} as planned",
                way_out="Mend the file, or take it out of the source",
            )
        return io.BytesIO(data)


Part = FilePart | DataPart | MadePart


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample to pack; its parts are sorted by field."""

    key: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Everything that one source holds, in no particular order."""

    samples: list[Sample]
    classes: list[str] | None = None
    """Names of the classes whose numbers are the field `cls`, in the order of these numbers."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Files that are no parts of samples, counted by reason."""


def file_part(name: str, path: str, status: os.stat_result | None = None) -> FilePart:
    """Return the part for a file; StorageError if it is missing or no regular file."""
    try:
        status = status or os.stat(path)  # noqa: PTH116 - called for every file of the data set
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path!r} is no regular file", way_out="Remove it from the source")
    return FilePart(name, path, status.st_size, status.st_mtime_ns)


def make_of(part: FilePart, make: Callable[[bytes], T]) -> T:
    """Return what `make` makes of the bytes of a file; its DecodeError gets the file's name."""
    data = read_head(part, part.size)
    try:
        return make(data)
    except DecodeError as error:
        raise DecodeError(
            f"{part.path!r}: {error.fact}",
            way_out="Mend the file, or take it out of the source",
            field=part.field,
        ) from error


def read_head(part: FilePart, size: int) -> bytes:
    """Return the first `size` bytes of a file, or all that it has."""
    with io.BufferedReader(part.open()) as file:
        try:
            return file.read(size)
        except OSError as error:
            raise cannot_read(part.path, error) from error


def cannot_read(path: str, error: Exception) -> StorageError:
    """Return the error for a file of the source that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error)
    return StorageError(f"cannot read {path!r}: {reason}", way_out="Mend the source and try again")
