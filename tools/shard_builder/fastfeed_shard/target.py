"""How a data set is to be written, as the arguments of a command say it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.options import parse_size
from fastfeed_shard.frames import parse_compression
from fastfeed_shard.plan import check_shard_name

if TYPE_CHECKING:
    import argparse

    from fastfeed_shard.frames import Compression

SHARD_SIZE = 256 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """What is common to all commands that write shards."""

    dest: str
    name: str
    shard_size: int
    """Bytes of a shard at most, before compression."""
    compress: Compression | None
    energon: bool
    sync: bool
    resume: bool
    jobs: int
    quiet: bool

    def describe(self) -> str:
        """Return all that the bytes of shards depend on, for the digest of a plan."""
        return f"{self.name} {self.shard_size} {self.compress!r}"


def target_of(options: argparse.Namespace) -> Target:
    """Return the target that the arguments of a command name."""
    check_shard_name(options.name)
    compress = parse_compression(options.compress, level=options.level, frame=options.frame)
    if options.energon and compress is not None:
        raise OptionError("Energon reads plain tars only", way_out="Leave out one of the two")
    size = SHARD_SIZE
    if options.shard_size is not None:
        size = parse_size(options.shard_size, name="shard size")
    return Target(
        dest=options.dest,
        name=options.name,
        shard_size=size,
        compress=compress,
        energon=options.energon,
        sync=options.sync,
        resume=options.resume,
        jobs=jobs_of(options),
        quiet=options.quiet,
    )


def jobs_of(options: argparse.Namespace) -> int:
    """Return how many processes to use."""
    if options.jobs is not None:
        return int(options.jobs)
    from fastfeed.topology import usable_cores

    return usable_cores(environment=os.environ).count
