"""The shelf's folder: whose it is, what may be deleted in it, and the lock on changing it."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, StorageError
from fastfeed.staging.locks import lock_now, lock_within
from fastfeed.storage.open import local_path
from fastfeed.storage.urls import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARKER = "fastfeed-shelf-1"
_TEXT = b"Copies of remote shards; fastfeed may delete its own files here at any time.\n"
SHARD = re.compile(r"(([0-9a-f]{32})-([0-9]{1,19}))\.shard")
PART = re.compile(r"(([0-9a-f]{32})-([0-9]{1,19}))\.[0-9a-f]{16}\.part")
NEED = re.compile(r"[0-9a-f]{16}\.need")
STAGER = re.compile(r"[0-9a-f]{32}\.stager")
PROBE = re.compile(r"[0-9a-f]{16}\.probe")
# Locked while their owner lives; without one they are litter. A probe has its name for an instant.
_OWNED = (PART, NEED, STAGER, PROBE)

PATIENCE_S = 60.0
"""How long to wait for the folder's lock, which is held for milliseconds."""


def claim(folder: str | os.PathLike[str], *, apart_from: Iterable[str] = ()) -> Path:
    """Return a folder that is a shelf, made one if it is new or empty.

    Raises OptionError if it holds somebody else's files, or shares a branch of the file system with
    one of the shards `apart_from`: a cache must never meet the only copy of anything.
    """
    path = Path(folder).expanduser()
    check_apart(path, apart_from)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not (path / MARKER).exists() and any(path.iterdir()) and not (path / MARKER).exists():
            raise OptionError(
                f"the cache folder {str(path)!r} holds files that are not fastfeed's",
                way_out="Name an empty folder, or one that does not exist yet",
            )
        # Several may do this at once, and it does not matter who comes first.
        descriptor = os.open(path / MARKER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(descriptor).st_size == 0:
                with suppress(OSError):  # the name is what counts, and a full disk takes that
                    os.pwrite(descriptor, _TEXT, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(
            f"cannot make a cache of {str(path)!r}: {error.strerror}",
            way_out="Name a folder on a local disk that may be written to",
        ) from error
    return path.resolve()


def check_apart(folder: Path, shards: Iterable[str]) -> None:
    """Refuse a folder that is, contains or lies in the folder of a local shard."""
    cache = folder.resolve()
    folders = {os.path.dirname(local_path(url)) for url in shards if not is_remote(url)}  # noqa: PTH120
    for name in sorted(folders):
        data = Path(name).resolve()
        if data.is_relative_to(cache) or cache.is_relative_to(data):
            raise OptionError(
                f"the cache folder {str(folder)!r} and the data set's folder {name or '.'!r} "
                "lie one in the other",
                way_out="Name a cache folder apart from all data",
            )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep every other thread and process from changing what lies in the folder."""
    path = str(folder / MARKER)
    try:
        lock = lock_within(path, seconds=PATIENCE_S)
    except OSError as error:
        raise StorageError(f"cannot lock {path!r}: {error.strerror}") from error
    with lock:
        yield


def names_in(folder: Path) -> list[str]:
    """Return the names in the folder, ours and others'."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted
    except OSError as error:
        raise StorageError(f"cannot list {str(folder)!r}: {error.strerror}") from error


def sweep(folder: Path) -> list[str]:
    """Remove what dead processes left, and return the names of the rest; call it `alone`.

    A file that belongs to a process is locked by it from before others can see it until its end.
    """
    rest = []
    for name in names_in(folder):
        if not any(kind.fullmatch(name) for kind in _OWNED):
            rest.append(name)
            continue
        path = str(folder / name)
        with suppress(OSError):
            lock = lock_now(path)
            if lock is None:
                rest.append(name)
                continue
            with lock:
                os.unlink(path)  # noqa: PTH108
    return rest


def take_room(descriptor: int, size: int) -> None:
    """Give a new file its size, and the disk's room for it where the file system can."""
    if not size:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
                raise
        else:
            return
    os.ftruncate(descriptor, size)
