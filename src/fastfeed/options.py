"""Defaults in one place, the values users write for sizes, and the environment, read once here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from fastfeed.errors import OptionError

# Samples are shuffled among all shards of one window; a window this large mixes well (16 shards of
# the builder's default size) and still fits the page cache of a training node.
SHUFFLE_WINDOW: Final = "4GiB"
# A sample of a compressed shard costs a whole frame unless that was kept. So neighbours stay
# together in blocks of at least two frames, and the frames of a group fit into what a process keeps
# (FRAME_CACHE): 64 MiB, and one for each block, since blocks know nothing of frames and cut them.
SHUFFLE_BLOCK: Final = 2 << 20
SHUFFLE_GROUP: Final = 64 << 20
# What copies on a local disk take: staged shards, and what had to be inflated.
CACHE_SIZE: Final = "500GB"
# Names of bad samples kept for the report; the counts go on beyond it.
BAD_SAMPLES_KEPT: Final = 1000
# A substitute may be bad as well; after this many tries the data set itself is the problem.
SUBSTITUTE_TRIES: Final = 16
# A decoded cache holds some pictures at the least.
_LEAST_DECODED: Final = 1 << 20

_UNITS: Final = {"": 1, "b": 1}
_UNITS.update({f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)})
_UNITS.update({f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)})


class AutoWorkers(int):
    """A number of workers that fastfeed chose; an int, so that torch and trainers accept it.

    It prints as what the user wrote: which number it is `int` says, or a format such as `d`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "AUTO"


AUTO: Final = AutoWorkers(1)
"""Ask for workers: at first as many as there are cores to use, then as many as the loop needs."""


def parse_size(size: int | str, *, name: str) -> int:
    """Return a number of bytes from an int or a text such as "256MiB"; `name` is for the error."""
    if isinstance(size, int) and not isinstance(size, bool):
        count = size
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(size).lower())
        if match is None or match[2] not in _UNITS:
            raise OptionError(
                f"{name}={size!r} is not a size",
                way_out="Write a number of bytes, or a text such as '256MiB' or '4GB'",
            )
        count = int(Fraction(match[1]) * _UNITS[match[2]])
    if not 0 < count < 1 << 63:
        raise OptionError(f"{name}={str(size)[:40]!r} must lie between nothing and 8 EiB")
    return count


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder on a local disk for copies of remote shards, shared by all jobs of the node.

    It takes at most `size` bytes; what the plans of the jobs need last leaves first. The folder is
    new, empty, or one that fastfeed made.
    """

    folder: str | os.PathLike[str]
    size: int | str = CACHE_SIZE

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise OptionError(
                f"folder={self.folder!r} names no folder", way_out="Name one on a local disk"
            )
        _ = self.nbytes  # an error belongs to the call that made it

    @property
    def nbytes(self) -> int:
        """The size as a number of bytes."""
        return parse_size(self.size, name="size")


@dataclass(frozen=True, slots=True)
class DecodedCache:
    """A bounded cache of decoded pictures, masks and unpacked arrays; for decodes that are dear.

    It takes at most `size` bytes: of memory that the workers of a loader share, or of a `folder` on
    a local disk, which survives the job and serves all jobs and ranks of the node (in /dev/shm it
    is memory that ranks share). What is kept stays; once it is full, the rest is decoded each time.
    """

    size: int | str
    folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        named = isinstance(self.folder, str | os.PathLike) and os.fspath(self.folder)
        if self.folder is not None and not named:
            raise OptionError(
                f"folder={self.folder!r} names no folder", way_out="Name one on a local disk"
            )
        if self.nbytes < _LEAST_DECODED:
            raise OptionError(f"size={self.size!r} is too small for a decoded cache")

    @property
    def nbytes(self) -> int:
        """The size as a number of bytes."""
        return parse_size(self.size, name="size")


def resolve_workers(num_workers: int, *, on_device: bool = False) -> int:
    """Return `num_workers` as asked for, or the number for this process if it is `AUTO`.

    `on_device` says that the process moves batches to a device too, which takes a second core.
    """
    if not isinstance(num_workers, AutoWorkers):
        return num_workers
    from fastfeed.topology import reserved_cores, usable_cores

    cores = usable_cores(environment=os.environ).count
    if on_device:
        return AutoWorkers(max(1, cores - reserved_cores(cores)))
    # From three cores on one is left to the training process; it mostly waits on fewer.
    return AutoWorkers(max(1, cores - 1 if cores > 2 else cores))


def cache_folder() -> Path:
    """Return the folder for indexes of shards that lie in folders we may not write."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fastfeed"
