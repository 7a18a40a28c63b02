"""Where decoded samples are kept: memory that the workers of a loader share, or a folder."""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastfeed.decoding.kept_file import HEADER_BYTES, KeptFile, begin, is_valid
from fastfeed.errors import OptionError, StorageError
from fastfeed.staging.disk import file_system_of, kind_of
from fastfeed.staging.folder import PATIENCE_S, check_apart
from fastfeed.staging.locks import lock_now, lock_within
from fastfeed.topology import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastfeed.options import DecodedCache
    from fastfeed.staging.locks import Lock

log = logging.getLogger("fastfeed")

FILE: Final = "fastfeed-decoded-1"
_TRIES: Final = 100
# A file with less room than this part of itself left is taken for full.
_SPARE_PART: Final = 16


def open_place(
    cache: DecodedCache, *, owner: int, apart_from: Iterable[str] = ()
) -> KeptMemory | KeptFolder:
    """Return the place that a cache describes; `owner` is the number of the data set.

    Raises OptionError or StorageError if it cannot be one.
    """
    if cache.folder is None:
        return KeptMemory.fresh(cache.nbytes)
    folder = Path(cache.folder).expanduser()
    check_apart(folder, apart_from)
    return KeptFolder(str(folder), cache.nbytes, owner)


class KeptMemory:
    """Memory without a name, taken as it fills; gone with the last process that has it.

    It goes to forked and spawned workers. A copy made in any other way begins empty.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self.file = KeptFile(descriptor)

    @classmethod
    def fresh(cls, budget: int) -> KeptMemory:
        """Return empty memory of at most `budget` bytes."""
        there = memory_limit()
        if there is not None and budget > there:
            raise OptionError(
                f"a decoded cache of {budget:,} bytes is more than the {there:,} bytes of memory "
                "that this process may still take",
                way_out="Make it smaller, or give it a folder on a local disk",
            )
        descriptor = _anonymous()
        try:
            begin(descriptor, budget)
            return cls(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise OptionError(
                f"cannot reserve {budget:,} bytes for a decoded cache: {error.strerror}",
                way_out="Make it smaller, or raise the limits of the process (`ulimit -f`)",
            ) from error

    @property
    def descriptor(self) -> int:
        """Of the file in memory."""
        return self._descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptMemory.fresh, (self.file.budget,)


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fastfeed-decoded", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="fastfeed-")
    os.unlink(path)  # noqa: PTH108
    return descriptor


def _sent(memory: KeptMemory) -> tuple[Any, ...]:
    """Say how a process that is being started gets the memory: a descriptor of its own."""
    return _arrived, (reduction.DupFd(memory.descriptor),)


def _arrived(descriptor: Any) -> KeptMemory:
    return KeptMemory(descriptor.detach())


# What is registered here travels beside the pickle of a data set (`parcel.py`), not in it.
reduction.register(KeptMemory, _sent)


class KeptFolder:
    """A folder with one file, which survives the job and may be used by several at a time.

    The folder is new, empty, or has that file. The file is begun anew by whoever finds that it was
    not made to its end or has another size, or that it is full of other data; never while anybody
    has it open, which a shared lock says.
    """

    def __init__(self, folder: str, budget: int, owner: int) -> None:
        self._made_of = (folder, budget, owner)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            names = {one.name for one in path.iterdir()}
            if names and FILE not in names:
                raise OptionError(
                    f"the folder {folder!r} of the decoded cache holds files that are not its own",
                    way_out="Name an empty folder, or one that does not exist yet",
                )
            descriptor = _open(str(path / FILE), budget, owner)
            weakref.finalize(self, os.close, descriptor)
            self.file = KeptFile(descriptor)
            self.file.add_owner(owner)
        except OSError as error:
            raise StorageError(
                f"cannot make a decoded cache in {folder!r}: {error.strerror}",
                way_out="Name a folder on a local disk that may be written to, or a smaller size",
            ) from error
        self._warn(path, budget)

    def _warn(self, path: Path, budget: int) -> None:
        text = ""
        with suppress(OSError):
            text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        system = file_system_of(text, str(path.resolve()))
        if kind_of(system) in {"network", "overlay"}:
            log.warning("decoded cache: %s lies on %s; name a local disk", path, system)
        status = os.statvfs(path)
        free = status.f_bavail * status.f_frsize + self.file.nbytes
        if free < budget:
            log.warning(
                "decoded cache: %s has room for %s of the %s bytes",
                path,
                f"{free:,}",
                f"{budget:,}",
            )
        if self.file.budget != budget:
            log.warning(
                "decoded cache: another job uses %s at %s bytes, and so does this one",
                path,
                f"{self.file.budget:,}",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptFolder, self._made_of


def _open(path: str, budget: int, owner: int) -> int:
    """Return a descriptor of the file at `path`, under a shared lock, begun anew if need be."""
    for _ in range(_TRIES):
        lock = lock_now(path, create=True)
        if lock is not None:
            with lock:
                if not _is_of_use(lock.descriptor, budget, owner):
                    begin(lock.descriptor, budget)
        with lock_within(path, seconds=PATIENCE_S, create=True, shared=True) as shared:
            if _is_whole(shared):
                return os.dup(shared.descriptor)  # the lock is of both, and ends with the last
    raise StorageError(f"{path!r} is begun anew again and again", way_out="Delete it")


def _is_whole(lock: Lock) -> bool:
    """Say whether a file was made to its end, and still has its name."""
    return is_valid(os.pread(lock.descriptor, HEADER_BYTES, 0)) and not lock.is_removed()


def _is_of_use(descriptor: int, budget: int, owner: int) -> bool:
    """Say whether a file that nobody uses is worth keeping for a data set."""
    if not is_valid(os.pread(descriptor, HEADER_BYTES, 0)):
        return False
    file = KeptFile(descriptor)
    if file.budget != budget or os.fstat(descriptor).st_size != budget:
        return False
    return file.nbytes < budget - budget // _SPARE_PART or owner in file.owners()
