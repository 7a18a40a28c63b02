"""Temporary folders that do not outlive their run for long, however that ends.

A run that is killed cannot clean up. So each folder holds a file that the kernel locks for as long
as the run lives, and every new run removes the folders whose locks are free.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "fastfeed-shard-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_LOCK = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder in the temporary folder of this machine (TMPDIR)."""
    try:
        place = Path(tempfile.gettempdir())
        _sweep(place)
        root, lock = _make(place)
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary folder: {error.strerror}",
            way_out="Set TMPDIR to a folder that can be written to",
        ) from error
    try:
        yield root / "files"
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)


def _make(place: Path) -> tuple[Path, int]:
    """Return a new folder and its lock, held."""
    while True:
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        with suppress(FileNotFoundError):  # another run took it for one that was left behind
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (root / _LOCK).exists():
                (root / "files").mkdir()
                return root, lock
            os.close(lock)


def _sweep(place: Path) -> None:
    """Remove what runs that were killed have left."""
    for root in place.glob(f"{_PREFIX}*"):
        if not _OURS.fullmatch(root.name) or root.is_symlink():
            continue
        with suppress(OSError):  # not ours, gone meanwhile, or in use
            try:
                lock = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                root.rmdir()  # its run was killed before it could lock it; nothing is in it yet
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)
            finally:
                os.close(lock)
