"""One file that several processes want and one of them makes, while the others wait for it."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

LOOK_S: Final = 0.05
"""Seconds between two looks at what another process does."""
# Who makes what others wait for has hung if it adds nothing for so long; then they make it too.
_HANGS_S = 60.0


def is_there(final: Path) -> bool:
    """Say whether a file has been made, and may be read."""
    return os.access(final, os.R_OK)


@contextmanager
def turn_for(final: Path) -> Iterator[tuple[BinaryIO | None, Path]]:
    """Give an empty file to write and its name; it is gone at the end unless it was renamed.

    All who want the file take the same name in turn, so that one of them makes it: a lock says that
    its writer lives, however that ends. None is given once the file is there.
    """
    path = _part(final, "0" * 16)
    size, since = -1, time.monotonic()
    while not is_there(final):
        try:
            part = _open_part(path)
        except PermissionError:  # another user's
            path = _part(final, secrets.token_hex(8))
            part = _open_part(path)
        with part as file:
            if _is_ours(file, path):
                try:
                    # It may have come between the look at it and the lock.
                    yield None if is_there(final) else file, path
                finally:
                    if _has_name(file, path):
                        path.unlink()
                return
            grown = os.fstat(file.fileno()).st_size
        if grown != size:
            size, since = grown, time.monotonic()
        elif time.monotonic() - since >= _HANGS_S:
            path = _part(final, secrets.token_hex(8))
        time.sleep(LOOK_S)
    yield None, path


def _part(final: Path, token: str) -> Path:
    return final.with_name(f".{final.name}.{token}.tmp")


def _open_part(path: Path) -> BinaryIO:
    """Open the file to write, made if need be; what is in it stays, for others may write it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), "r+b")


def _is_ours(file: BinaryIO, path: Path) -> bool:
    """Lock and empty a file; False if another has it, or it was swept before it was locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not _has_name(file, path):
        return False
    file.truncate(0)
    return True


def _has_name(file: BinaryIO, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    return False
