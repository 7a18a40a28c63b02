"""Open a shard by its path or URL, and the one interface that reading knows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from fastfeed.errors import OptionError, StorageError
from fastfeed.storage.answers import Facts
from fastfeed.storage.local import LocalFile
from fastfeed.storage.remote import RemoteFile
from fastfeed.storage.urls import is_remote, scheme_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self


class Storage(Protocol):
    """One open shard, read by position; safe to use from several threads at once."""

    @property
    def size(self) -> int:
        """Bytes in the shard."""
        ...

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`; fewer only if the shard ends before."""
        ...

    def read_into(self, offset: int, buffer: memoryview, /) -> None:
        """Fill all of `buffer` with the bytes at `offset`, or raise StorageError."""
        ...

    def advise(self, offset: int, size: int) -> None:
        """Hint that these bytes will be read soon."""
        ...

    def close(self) -> None:
        """Give back what the shard holds open; more than once is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_storage(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Storage:
    """Open a shard by its path or URL.

    `storage_options` go to the file system of fsspec that serves the URL, and are never shown. A
    local file is opened at once, StorageError if that fails; a remote one is asked for when it is
    first used. OptionError if nothing serves such a URL.
    """
    name = os.fspath(url)
    if is_remote(name):
        return RemoteFile(name, options=storage_options)
    return LocalFile(local_path(name), shown=name)


def facts(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Facts:
    """Return what the storage says of a file now; StorageError if it is not there."""
    name = os.fspath(url)
    if is_remote(name):
        return RemoteFile(name, options=storage_options).facts
    try:
        status = os.stat(local_path(name))  # noqa: PTH116 - a path as it was written
    except (OSError, ValueError) as error:
        raise _failed("open", name, error) from error
    return Facts(status.st_size, str(status.st_mtime_ns))


def exists(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Say whether a file is there; StorageError if that cannot be found out."""
    name = os.fspath(url)
    if is_remote(name):
        return RemoteFile(name, options=storage_options).exists()
    return os.path.isfile(local_path(name))  # noqa: PTH113


def read_whole(
    url: str | os.PathLike[str],
    *,
    limit: int,
    storage_options: Mapping[str, Any] | None = None,
) -> bytes:
    """Return all of a file that is no shard: a manifest, an index.

    StorageError if it is not there, cannot be read or has more than `limit` bytes.
    """
    name = os.fspath(url)
    if is_remote(name):
        return RemoteFile(name, options=storage_options).read_all(limit)
    try:
        return _read_local(name, limit)
    except (OSError, ValueError) as error:
        raise _failed("read", name, error) from error


def read_if_there(
    url: str | os.PathLike[str],
    *,
    limit: int,
    storage_options: Mapping[str, Any] | None = None,
) -> bytes | None:
    """Return what `read_whole` returns, or None if there is no such file or we may not know.

    Storage that keeps a missing object from who may not list it answers as if it were forbidden;
    so both are None.
    """
    name = os.fspath(url)
    if is_remote(name):
        return RemoteFile(name, options=storage_options).read_if_there(limit)
    try:
        return _read_local(name, limit)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _failed("read", name, error) from error


def local_path(url: str) -> str:
    """Return the path that a path or `file://` URL means on this machine."""
    if scheme_of(url) == "file":
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise OptionError(
                f"{url!r} is no URL: {error}", way_out="Write file:///path"
            ) from error
        if parts.netloc not in {"", "localhost"}:
            raise OptionError(f"{url!r} names another machine", way_out="Write file:///path")
        return unquote(parts.path)
    if is_remote(url):
        raise OptionError(
            f"{shown(url)!r} is not on this machine, where it is needed",
            way_out="Copy the shards to a local disk first",
        )
    return url


def _read_local(name: str, limit: int) -> bytes:
    with open(local_path(name), "rb") as file:  # noqa: PTH123 - a path as it was written
        content = file.read(limit + 1)
    if len(content) > limit:
        raise StorageError(f"{name!r} has more than {limit:,} bytes", way_out="Check what it is")
    return content


def _failed(verb: str, name: str, error: Exception) -> StorageError:
    reason = getattr(error, "strerror", None) or str(error)
    return StorageError(f"cannot {verb} {name!r}: {reason}")
