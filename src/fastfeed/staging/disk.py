"""What kind of disk a folder lies on, and how fast it is: a cache on a network drive is none."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastfeed.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["local", "network", "memory", "overlay", "unknown"]

_NETWORK = re.compile(
    r"nfs4?|ceph|lustre|gpfs|beegfs|glusterfs|cifs|smb3?|9p|virtiofs|afs|ocfs2|gfs2|wekafs|panfs"
    r"|orangefs|fuse\.(?!ext2$).*|fuse"
)
_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs"))
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "apfs"))
_SLOW = 200e6
"""Bytes a second; below, most links to a bucket are faster than the disk."""
_PROBE = 8 << 20
_WAYS_OUT = {
    "network": "Others on that network share it, and each read goes there: name a local disk",
    "memory": "What lies there takes the machine's memory: name a local disk",
    "overlay": "That is the container's own layer, often slow and small: mount a local disk",
}


@dataclass(frozen=True, slots=True)
class Disk:
    """What was found where a folder lies."""

    folder: str
    file_system: str
    """As the kernel calls it, such as `ext4`; empty if it does not say."""
    kind: Kind
    free_bytes: int
    write_rate: float
    """Bytes a second of a short write, flush included; 0 where there is no room for one."""
    read_rate: float
    """Bytes a second of reading it again, past the page cache where that can be asked for."""

    @property
    def warning(self) -> str | None:
        """Why this is no good place for a cache, and what to do; None if it is a good one."""
        if (way_out := _WAYS_OUT.get(self.kind)) is not None:
            return f"{self.folder!r} lies on {self.file_system}. {way_out}"
        if not self.write_rate:
            return f"{self.folder!r} has no room, so nothing will be staged. Make room there"
        if self.write_rate < _SLOW:
            return (
                f"{self.folder!r} took {self.write_rate / 1e6:,.0f} MB/s of a short write. "
                "A bucket may be faster: name a faster disk"
            )
        return None

    def __str__(self) -> str:
        return (
            f"{self.folder} on {self.file_system or 'an unknown file system'} ({self.kind}), "
            f"{self.free_bytes / 1e9:,.1f} GB free, short write {self.write_rate / 1e6:,.0f} MB/s, "
            f"read {self.read_rate / 1e6:,.0f} MB/s"
        )


def inspect(
    folder: Path,
    *,
    mounts: Path = Path("/proc/self/mountinfo"),
    clock: Callable[[], float] = time.monotonic,
) -> Disk:
    """Look at the disk of a folder, and write and read 8 MiB there; nothing of it stays.

    Raises StorageError if nothing can be written.
    """
    text = ""
    with suppress(OSError):
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    file_system = file_system_of(text, str(folder.resolve()))
    try:
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
        # On a full disk what is there is still of use, so that is no error.
        written, read = _rates(folder, clock) if free > 2 * _PROBE else (0.0, 0.0)
    except OSError as error:
        raise StorageError(
            f"cannot write to the cache folder {str(folder)!r}: {error.strerror}",
            way_out="Make room there, or name another folder",
        ) from error
    return Disk(str(folder), file_system, kind_of(file_system), free, written, read)


def kind_of(file_system: str) -> Kind:
    """Return what kind of place a file system of this name is."""
    if file_system in _LOCAL:
        return "local"
    if file_system in _MEMORY:
        return "memory"
    if file_system in {"overlay", "aufs"}:
        return "overlay"
    return "network" if _NETWORK.fullmatch(file_system) else "unknown"


def file_system_of(mountinfo: str, path: str) -> str:
    """Return the file system of an absolute path, from the text of /proc/self/mountinfo."""
    best, found = "", ""
    for line in mountinfo.splitlines():
        mount, dash, system = line.partition(" - ")
        fields = mount.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later one is seen.
        if inside and len(point) >= len(best):
            best, found = point, system.split(" ")[0]
    return found


def _rates(folder: Path, clock: Callable[[], float]) -> tuple[float, float]:
    data = memoryview(bytearray(secrets.token_bytes(1 << 20)))
    path = folder / f"{secrets.token_hex(8)}.probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        path.unlink(missing_ok=True)  # it needs no name; a sweep may have been before us
        started = clock()
        for offset in range(0, _PROBE, len(data)):
            os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
        written = clock()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, _PROBE, os.POSIX_FADV_DONTNEED)
        for offset in range(0, _PROBE, len(data)):
            os.preadv(descriptor, [data], offset)
        read = clock()
    finally:
        os.close(descriptor)
    return _PROBE / max(written - started, 1e-9), _PROBE / max(read - written, 1e-9)
