"""The shelf: staged shards on a local disk under a budget of bytes, shared by a whole node.

What lies in the folder is all the state there is, so nothing can disagree with it:

    <key>-<bytes>.shard           a whole shard, its digest compared; readers hold a shared lock
    <key>-<bytes>.<16 digits>.part    one being brought; its writer holds the lock
    fastfeed-shelf-1              the marker; whoever adds, removes or renames locks it

A part takes its whole size at once, so the budget counts it and a full disk is met before the
bytes are paid for. It gets its name when the bytes lie on the disk and have the right digest.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from fastfeed.errors import StorageError
from fastfeed.staging import needs
from fastfeed.staging.check import check_content
from fastfeed.staging.eviction import Kept, next_uses, order_of_eviction
from fastfeed.staging.folder import (
    NEED,
    PART,
    PATIENCE_S,
    SHARD,
    alone,
    claim,
    names_in,
    sweep,
    take_room,
)
from fastfeed.staging.locks import Lock, lock_now, lock_within
from fastfeed.storage.inflated import drop_inflated, inflated_bytes
from fastfeed.storage.local import LocalFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from fastfeed.staging.source import Source

log = logging.getLogger("fastfeed")

# A full disk, a full quota, and a file system on which nothing may be written.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG))
_TOO_MANY = frozenset((errno.EMFILE, errno.ENFILE))


class StagedFile(LocalFile):
    """A shard on the shelf, open and under a shared lock: it is not evicted before it closes."""

    def __init__(self, path: str, *, shown: str) -> None:
        super().__init__(path, shown=shown)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise StorageError(f"{shown!r} is leaving the shelf") from error

    def is_removed(self) -> bool:
        """Say whether it was evicted between its opening and its lock, or lost with its disk."""
        try:
            return os.fstat(self.descriptor).st_nlink == 0
        except OSError:
            return True


class Refusal(Enum):
    """Why a shard gets no room now."""

    THERE = "it is on the shelf, or somebody brings it"
    NO_ROOM = "all that is there is needed sooner, or being read"
    TOO_LARGE = "it is larger than the whole shelf"
    DISK_FULL = "the disk is full"


class Shelf:
    """A folder of staged shards that takes at most `budget` bytes."""

    def __init__(
        self, folder: str | os.PathLike[str], budget: int, *, apart_from: Iterable[str] = ()
    ) -> None:
        self.folder = claim(folder, apart_from=apart_from)
        self.budget = budget
        self._stay: set[str] = set()
        """Bad copies that could not be removed, which the log has said of each."""
        with alone(self.folder):
            sweep(self.folder)

    def get(self, source: Source) -> StagedFile | None:
        """Open a shard that is on the shelf; None if it is not. Takes no lock on the shelf.

        Raises StorageError if no more files can be opened: it may well be there.
        """
        path = str(self._path(source))
        try:
            file = StagedFile(path, shown=path)
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _TOO_MANY:
                error.way_out = "Raise the limit of open files (`ulimit -n`)"
                raise
            return None
        if file.is_removed():
            return None
        if file.size != source.size:
            self.discard(source)
            return None
        with suppress(OSError):
            os.utime(path)  # who was used last, for those that no plan needs
        return file

    def __contains__(self, source: Source) -> bool:
        return os.path.exists(self._path(source))  # noqa: PTH110 - of a failing disk: it is not

    def shards(self) -> set[str]:
        """Return the names (key and size) of the shards that are on the shelf."""
        return {match[1] for match in filter(None, map(SHARD.fullmatch, names_in(self.folder)))}

    def nbytes(self) -> int:
        """Return how many bytes lie on the shelf, parts at their full size."""
        return _nbytes(names_in(self.folder))

    def reserve(self, source: Source, *, keep: Collection[str] = ()) -> Reservation | Refusal:
        """Make room for a shard and return its part, or say why there is no room.

        Evicts by the plans of all who registered theirs, never what somebody reads, and nothing
        unless that makes enough room.
        """
        if source.size > self.budget:
            return Refusal.TOO_LARGE
        with alone(self.folder):
            names = sweep(self.folder)
            if source in self or any(name == source.name for name, _ in _parts(names)):
                return Refusal.THERE
            wanted = _nbytes(names) + inflated_bytes(self.folder) + source.size - self.budget
            if wanted > 0 and not self._evict(source, wanted, names=names, keep=keep):
                return Refusal.NO_ROOM
            return self._begin(source)

    def discard(self, source: Source) -> None:
        """Take a shard off that is not what it should be; who reads it keeps it open.

        On a disk that lets nobody do that it stays, which is told: it can be read from afar.
        """
        try:
            with alone(self.folder):
                self._path(source).unlink(missing_ok=True)
        except (OSError, StorageError) as error:
            if source.name not in self._stay:  # every read meets it
                self._stay.add(source.name)
                log.warning("a bad copy stays in the cache: %s", error)

    def part_path(self, name: str) -> Path:
        """Return the path of a part, by its name in the folder."""
        return self.folder / name

    def parts(self) -> list[tuple[str, str]]:
        """Return (key and size, name in the folder) of all parts."""
        return _parts(names_in(self.folder))

    def under_way(self) -> list[int]:
        """Return the size of each shard that somebody brings now."""
        sizes = []
        for name, file in self.parts():
            with suppress(OSError):
                lock = lock_now(str(self.part_path(file)), shared=True)
                if lock is None:
                    sizes.append(int(name.rpartition("-")[2]))
                else:  # its writer is dead, or has just ended
                    lock.close()
        return sizes

    def _path(self, source: Source) -> Path:
        return self.folder / f"{source.name}.shard"

    def _kept(self, names: Iterable[str]) -> list[Kept]:
        kept = []
        for match in filter(None, map(SHARD.fullmatch, names)):
            with suppress(OSError):  # gone meanwhile
                status = (self.folder / match[0]).stat()
                kept.append(Kept(match[1], status.st_size, status.st_mtime_ns))
        return kept

    def _evict(
        self, source: Source, wanted: int, *, names: Iterable[str], keep: Collection[str]
    ) -> bool:
        """Remove files of `wanted` bytes, or none at all; say which of the two.

        Inflated shards first: they are copies of what is here or afar, compressed.
        """
        registered = needs.read_all(self.folder, filter(NEED.fullmatch, names))
        order = order_of_eviction(
            self._kept(names),
            next_uses(registered),
            incoming=source.name,
            keep=keep,
        )
        leaving: list[tuple[str, Lock, int]] = []
        room = 0
        try:
            for one in order:
                if room >= wanted:
                    break
                path = str(self.folder / f"{one.name}.shard")
                with suppress(OSError):
                    lock = lock_now(path)
                    if lock is not None:  # else somebody reads it
                        leaving.append((path, lock, one.nbytes))
                        room += one.nbytes
            wanted -= drop_inflated(self.folder, wanted, at_least=wanted - room)
            if wanted > room:
                return False
            for path, _, nbytes in leaving:
                if wanted <= 0:
                    break
                try:
                    os.unlink(path)  # noqa: PTH108
                except OSError as error:
                    raise StorageError(f"cannot remove {path!r}: {error.strerror}") from error
                wanted -= nbytes
        finally:
            for _, lock, _ in leaving:
                lock.close()
        return True

    def _begin(self, source: Source) -> Reservation | Refusal:
        path = self.folder / f"{source.name}.{secrets.token_hex(8)}.part"
        try:
            # Whoever waits for a part may look at it before we have it, for a moment.
            lock = lock_within(str(path), seconds=PATIENCE_S, create=True)
            reservation = Reservation(self, source, path, lock)
            try:
                take_room(lock.descriptor, source.size)
            except BaseException:
                reservation.discard()
                raise
        except OSError as error:
            if error.errno in _FULL:
                return Refusal.DISK_FULL
            # Not by the part's name, which is another at each try: who tries says it once.
            fact = f"cannot write to {str(self.folder)!r}: {error.strerror}"
            raise StorageError(fact) from error
        return reservation


def _parts(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(match[1], match[0]) for match in filter(None, map(PART.fullmatch, names))]


def _nbytes(names: Iterable[str]) -> int:
    found = (SHARD.fullmatch(name) or PART.fullmatch(name) for name in names)
    return sum(int(match[3]) for match in filter(None, found))


class Reservation:
    """Room for one shard: a part to write to, until it is published or discarded."""

    def __init__(self, shelf: Shelf, source: Source, path: Path, lock: Lock) -> None:
        self.source = source
        self.path = path
        self._shelf = shelf
        self._lock = lock

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes at their place; any thread, any order. OSError if the disk fails."""
        while data:
            done = os.pwrite(self._lock.descriptor, data, offset)
            data, offset = data[done:], offset + done

    def publish(self) -> None:
        """Compare size and digest, flush to the disk, and put the shard on the shelf.

        Raises ShardError or StorageError, and leaves nothing behind, if any of it fails.
        """
        final = self._shelf.folder / f"{self.source.name}.shard"
        try:
            check_content(self._lock.descriptor, self.source)
            os.fsync(self._lock.descriptor)
            with alone(self._shelf.folder):
                # Readers may lock it together with us from the moment it has its name.
                fcntl.flock(self._lock.descriptor, fcntl.LOCK_SH)
                self.path.replace(final)
        except OSError as error:
            raise StorageError(f"cannot write {str(self.path)!r}: {error.strerror}") from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the part, if it has not been published; more than once is fine."""
        if self._lock.descriptor >= 0:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()
