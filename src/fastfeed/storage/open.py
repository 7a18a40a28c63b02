"""Open a shard by its path or URL, and the one interface that reading knows."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from fastfeed.errors import OptionError
from fastfeed.storage.local import LocalFile

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


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


def open_storage(url: str | os.PathLike[str]) -> Storage:
    """Open a shard; StorageError if that fails, OptionError if the URL is not of this machine."""
    shown = os.fspath(url)
    return LocalFile(local_path(shown), shown=shown)


def local_path(url: str) -> str:
    """Return the path that a path or `file://` URL means on this machine."""
    if url.startswith("file://"):
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"}:
            raise OptionError(f"{url!r} names another machine", way_out="Write file:///path")
        return unquote(parts.path)
    if _SCHEME.match(url):
        raise OptionError(
            f"{url!r}: remote storage is not in this version of fastfeed",
            way_out="Copy the shards to a local disk first",
        )
    return url
