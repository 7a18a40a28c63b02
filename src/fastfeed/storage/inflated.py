"""Compressed shards that cannot be read by position, inflated once into plain tars.

They lie in the folder `inflated` of a cache, under its budget of bytes together with a shelf that
may be there too. Who was used longest ago leaves first; never what somebody reads, which a shared
lock says, and never a file of another name.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import time
from contextlib import ExitStack, suppress
from copy import copy
from typing import TYPE_CHECKING, Final

import xxhash

from fastfeed.errors import ShardError, StorageError
from fastfeed.storage.local import LocalFile
from fastfeed.storage.open import local_path
from fastfeed.storage.streams import inflate
from fastfeed.storage.turns import LOOK_S, is_there, turn_for
from fastfeed.storage.urls import is_remote, shown, unsigned

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

FOLDER: Final = "inflated"
_TAR = re.compile(r"[0-9a-f]{32}\.tar")
_PART = re.compile(r"\.[0-9a-f]{32}\.tar\.[0-9a-f]{16}\.tmp")
# What a shelf keeps beside this folder (`staging/folder.py`), and how one is known.
_SHELF = "fastfeed-shelf-1"
_SHARD = re.compile(r"[0-9a-f]{32}-[0-9]{1,19}\.shard")
_SHARD_PART = re.compile(r"[0-9a-f]{32}-[0-9]{1,19}\.[0-9a-f]{16}\.part")
# Left free on the disk, whatever a shard unpacks to.
_SPARE = 64 << 20
_END = 64 << 10
# Room is looked for this many bytes at a time, or a sixteenth of the budget if that is less.
_STEP = 64 << 20
_TRIES = 16
# The shards that this process has met: those that it has spoken of, and by name and identity those
# that proved damaged, since each batch would find that out anew.
_told: set[str] = set()
_damaged: dict[str, tuple[str, ShardError]] = {}


class InflatedFile(LocalFile):
    """An inflated shard, open and under a shared lock: it is not evicted before it closes."""

    def __init__(self, path: str, *, shown: str) -> None:
        super().__init__(path, shown=shown)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            gone = os.fstat(self.descriptor).st_nlink == 0
        except OSError:
            gone = True
        if gone:
            self.close()
            raise StorageError(f"{shown!r} is leaving the cache")


def open_inflated(
    storage: Storage, *, name: str, kind: str, cache: Path, budget: int
) -> InflatedFile:
    """Return the content of a compressed shard as a plain file, made in `cache` if need be.

    The file is kept there under a name made of the shard's name, size, time and both its ends.
    Raises ShardError if the shard is damaged or cut, StorageError if there is no room for it.
    """
    try:
        identity = _identity(storage, name)
    except OSError as error:
        raise StorageError(f"cannot open {shown(name)!r}: {error.strerror}") from error
    found, known = _damaged.get(name, ("", None))
    if known is not None and found == identity:
        raise copy(known)
    final = cache / FOLDER / f"{identity}.tar"
    try:
        for _ in range(_TRIES):
            file = _opened(final, name=shown(name)) or _publish(
                storage, final, name=shown(name), kind=kind, budget=budget
            )
            if file is not None:
                return file
        return InflatedFile(str(final), shown=shown(name))  # which says why it cannot be opened
    except ShardError as error:
        _damaged[name] = identity, copy(error)
        raise
    except OSError as error:
        raise StorageError(
            f"cannot inflate {shown(name)!r} to {str(final)!r}: {error.strerror}",
            way_out="Make room in the cache folder (ff.Cache, or XDG_CACHE_HOME), or convert the "
            "shard",
        ) from error


def forget_damage(name: str) -> None:
    """Inflate a shard again that proved damaged: its bytes are fetched anew."""
    _damaged.pop(name, None)


def _identity(storage: Storage, name: str) -> str:
    """Return a digest that changes when the shard does: its ends hold sizes and checksums."""
    about = unsigned(name)
    if not is_remote(name):
        path = os.path.abspath(local_path(name))  # noqa: PTH100 - the name is all that is wanted
        about = f"{path}\n{os.stat(path).st_mtime_ns}"  # noqa: PTH116
    state = xxhash.xxh3_128(f"{about}\n{storage.size}\n".encode("utf-8", "surrogateescape"))
    state.update(storage.read_at(0, min(_END, storage.size)))
    state.update(storage.read_at(max(0, storage.size - _END), min(_END, storage.size)))
    return state.hexdigest()


def _opened(final: Path, *, name: str) -> InflatedFile | None:
    """Open an inflated shard; None if it is not there, or about to leave."""
    if not is_there(final):
        return None
    try:
        file = InflatedFile(str(final), shown=name)
    except StorageError:
        time.sleep(LOOK_S)
        return None
    with suppress(OSError):
        os.utime(final)  # who was used last stays longest
    return file


def _publish(
    storage: Storage, final: Path, *, name: str, kind: str, budget: int
) -> InflatedFile | None:
    """Inflate a shard under a temporary name, then give it its own, and open it.

    None if another has done so meanwhile.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final.parent)
    written = limit = 0
    with turn_for(final) as (file, path):
        if file is None:
            return None
        if name not in _told:
            _told.add(name)
            log.warning(
                "%s is compressed without a table of its frames: it is inflated once, to %s. "
                "`fastfeed-shard convert` makes a shard that is read where it lies",
                name,
                final,
            )
        for piece in inflate(storage.read_at, storage.size, kind=kind, shard=name):
            if written + len(piece) > limit:
                file.flush()
                limit = written + _room(final.parent.parent, len(piece), budget=budget)
            written += len(piece)
            if written > limit:
                raise StorageError(
                    f"{name!r} unpacks to more than the {limit:,} bytes of {budget:,} that there "
                    f"are for it in {str(final.parent)!r}: others are read there, or the disk is "
                    "full",
                    way_out="Raise the size of ff.Cache, make room there, name another folder "
                    "(ff.Cache, or XDG_CACHE_HOME), or convert the shard",
                )
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        if is_there(final):
            return None  # another did not wait for us, and its file is read already
        path.rename(final)
        # Only now: a lock that becomes shared is nobody's for a moment, in which another who waits
        # would have taken the part for one that was left behind.
        fcntl.flock(file, fcntl.LOCK_SH)
        return _opened(final, name=name)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    drop_unread((path for path in _files(folder, _PART)), None)


# Room


def inflated_bytes(cache: Path) -> int:
    """Return the bytes of what is inflated in a cache, and of what is being inflated."""
    return sum(_size(path) for path in _files(cache / FOLDER, _TAR, _PART))


def drop_inflated(cache: Path, wanted: int, *, at_least: int = 0) -> int:
    """Remove inflated shards that nobody reads until `wanted` bytes are free; returns how many.

    None at all if that frees fewer than `at_least`.
    """
    return drop_unread(_files(cache / FOLDER, _TAR), wanted, at_least=at_least)


def _room(cache: Path, wanted: int, *, budget: int) -> int:
    """Return how many more bytes may be written, having made room for `wanted` or more if need be.

    Inflated shards go first, then those on the shelf that the same budget is for.
    """
    wanted = max(wanted, min(_STEP, budget // 16))
    used = inflated_bytes(cache) + sum(map(_size, _files(cache, _SHARD, _SHARD_PART)))
    room = min(budget - used, shutil.disk_usage(cache).free - _SPARE)
    if room < wanted:
        room += drop_inflated(cache, wanted - room)
    if room < wanted and (cache / _SHELF).exists():
        room += drop_unread(_files(cache, _SHARD), wanted - room)
    return max(0, room)


def drop_unread(paths: Iterable[Path], wanted: int | None, *, at_least: int = 0) -> int:
    """Remove files that nobody has locked, the longest unused first, until it is enough.

    None at all if all of them have fewer than `at_least` bytes.
    """
    leaving: list[tuple[Path, int]] = []
    found = dropped = 0
    with ExitStack() as held:
        for path in sorted(paths, key=_last_used):
            if wanted is not None and found >= wanted:
                break
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(descriptor)
                if status.st_nlink:
                    leaving.append((path, status.st_size))
                    found += status.st_size
        for path, size in leaving if found >= at_least else ():
            with suppress(OSError):
                path.unlink()
                dropped += size
    return dropped


def _files(folder: Path, *kinds: re.Pattern[str]) -> list[Path]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - most of them are not wanted
    except OSError:
        return []
    return [folder / name for name in names if any(kind.fullmatch(name) for kind in kinds)]


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # gone meanwhile
        return 0


def _last_used(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
