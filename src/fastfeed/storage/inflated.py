"""Compressed shards that cannot be read by position, inflated once into plain tars."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import StorageError
from fastfeed.storage.local import LocalFile
from fastfeed.storage.open import local_path
from fastfeed.storage.streams import inflate
from fastfeed.storage.urls import is_remote, shown, unsigned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

# Left free on the disk, whatever a shard unpacks to.
_SPARE = 64 << 20
_END = 64 << 10


def open_inflated(storage: Storage, *, name: str, kind: str, folder: Path) -> LocalFile:
    """Return the content of a compressed shard as a plain file, made in `folder` if need be.

    The file is kept there under a name made of the shard's name, size, time and both its ends.
    Raises ShardError if the shard is damaged or cut, StorageError if there is no room for it.
    """
    try:
        final = folder / f"{_identity(storage, name)}.tar"
    except OSError as error:
        raise StorageError(f"cannot open {shown(name)!r}: {error.strerror}") from error
    if not final.exists():
        log.warning(
            "%s is compressed without a table of its frames: it is inflated once, to %s. "
            "`fastfeed-shard convert` makes a shard that is read where it lies",
            shown(name),
            final,
        )
        try:
            _publish(storage, final, name=shown(name), kind=kind)
        except OSError as error:
            raise StorageError(
                f"cannot inflate {shown(name)!r} to {str(final)!r}: {error.strerror}",
                way_out="Make room in the cache folder (XDG_CACHE_HOME), or convert the shard",
            ) from error
    return LocalFile(str(final), shown=shown(name))


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


def _publish(storage: Storage, final: Path, *, name: str, kind: str) -> None:
    """Inflate a shard under a temporary name, then give it its own."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _sweep(final.parent)
    room = shutil.disk_usage(final.parent).free - _SPARE
    written = 0
    with _temporary(final) as file:
        for piece in inflate(storage.read_at, storage.size, kind=kind, shard=name):
            written += len(piece)
            if written > room:
                raise StorageError(
                    f"{name!r} unpacks to more than the {max(0, room):,} bytes that are free for "
                    f"it in {str(final.parent)!r}",
                    way_out="Make room there, set XDG_CACHE_HOME, or convert the shard",
                )
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _temporary(final: Path) -> Iterator[BinaryIO]:
    """Give a new file to write, which gets its name at the end, or is gone after an error."""
    path = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp")
    try:
        with path.open("xb") as file:
            # A lock says that its writer lives, however that ends.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            path.replace(final)
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    for path in folder.glob(".*.tar.*.tmp"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
