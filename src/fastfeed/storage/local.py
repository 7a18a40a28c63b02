"""Files of this machine, read by position and written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from fastfeed.errors import StorageError
from fastfeed.storage.descriptor import Descriptor

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


def _read_some(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Read into a buffer as much as one call gives, and return how many bytes that is."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    data = os.pread(descriptor, len(buffer), offset)  # an older macOS
    buffer[: len(data)] = data
    return len(data)


class LocalFile(Descriptor):
    """One open file. Reads carry their own position, so threads and forked processes share it."""

    def __init__(self, path: str, *, shown: str | None = None) -> None:
        self._shown = shown or path
        super().__init__(-1)
        try:
            # Without O_NONBLOCK opening a named pipe would wait for somebody to write to it.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self.descriptor = os.open(path, flags)
            status = os.fstat(self.descriptor)
        except (OSError, ValueError) as error:
            raise self._failed("open", error) from error
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{self._shown!r} is no regular file", way_out="Name a tar file")
        self._size = status.st_size

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened."""
        return self._size

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`; fewer only if the file ends before."""
        try:
            data = os.pread(self.descriptor, size, offset)
            if len(data) == size or not data:
                return data
            # One call gives less than 2 GiB, and less again on some network file systems.
            parts = [data]
            while data and (size := size - len(data)):
                offset += len(data)
                data = os.pread(self.descriptor, size, offset)
                parts.append(data)
            return b"".join(parts)
        except (OSError, ValueError, OverflowError) as error:
            raise self._failed("read", error) from error

    def read_into(self, offset: int, buffer: memoryview, /) -> None:
        """Fill all of `buffer` with the bytes at `offset`, or raise StorageError."""
        try:
            done = _read_some(self.descriptor, buffer, offset)
            while done < len(buffer):
                more = _read_some(self.descriptor, buffer[done:], offset + done)
                if more == 0:
                    self._end(offset, len(buffer), done)
                done += more
        except (OSError, ValueError, OverflowError) as error:
            raise self._failed("read", error) from error

    def advise(self, offset: int, size: int) -> None:
        """Ask the kernel to read a part of the file ahead; no promise, and never an error."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError, OverflowError):
                os.posix_fadvise(self.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def __repr__(self) -> str:
        return f"LocalFile({self._shown!r}, {self._size:,} bytes)"

    def _failed(self, verb: str, error: Exception) -> StorageError:
        reason = getattr(error, "strerror", None) or str(error)
        return StorageError(f"cannot {verb} {self._shown!r}: {reason}")

    def _end(self, offset: int, size: int, done: int) -> None:
        raise StorageError(
            f"{self._shown!r} ended after {done:,} of {size:,} bytes",
            way_out="It was cut while it was read: copy it again",
            offset=offset,
        )


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file under a temporary name beside it, flush it to disk, then give it its name.

    Other processes see the whole file or none, also when several write it at once or one is
    killed. Raises StorageError, and leaves nothing behind, if that fails.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write {str(path)!r}: {error.strerror}",
            way_out="Make room there" if error.errno in _FULL else None,
        ) from error
