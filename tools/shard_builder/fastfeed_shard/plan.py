"""The plan of a build: which sample goes into which shard, settled before anything is written.

The plan depends on keys and sizes alone, so neither the order of a folder nor the number of jobs
can change a byte of the shards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import OptionError
from fastfeed.shardfile.header import BLOCK, padded
from fastfeed_shard.packing import END_BYTES
from fastfeed_shard.samples import DataPart, FilePart, MadePart

if TYPE_CHECKING:
    from fastfeed_shard.samples import Sample, Source

_NAME = re.compile(r"[A-Za-z0-9_-]+")
# Six digits; a seventh would upset the order of the names.
_SHARD_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard to write: the samples from `start` to before `stop`, and the size of its file."""

    name: str
    start: int
    stop: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All samples in their order, cut into shards."""

    samples: list[Sample]
    shards: list[PlannedShard]

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)


def plan_shards(source: Source, *, name: str, shard_size: int, seed: int | None = None) -> Plan:
    """Order the samples by key, or shuffled by `seed`, and cut them into shards.

    A shard is at most `shard_size` bytes large, unless one sample alone is larger. Raises
    OptionError if a key is there twice.
    """
    check_shard_name(name)
    samples = sorted(source.samples, key=attrgetter("key"))
    for one, other in pairwise(samples):
        if one.key == other.key:
            way_out = "Keys must be unique over the data set: give one of the two another"
            raise OptionError("two samples have this key", way_out=way_out, key=one.key)
    if seed is not None:
        samples.sort(key=lambda sample: xxhash.xxh3_128_digest(sample.key.encode(), seed=seed))
    shards: list[PlannedShard] = []
    start, nbytes = 0, END_BYTES
    for place, sample in enumerate(samples):
        size = packed_size([part.size for part in sample.parts])
        if nbytes + size > shard_size and place > start:
            shards.append(PlannedShard(shard_name(name, len(shards)), start, place, nbytes))
            start, nbytes = place, END_BYTES
        nbytes += size
    if samples:
        shards.append(PlannedShard(shard_name(name, len(shards)), start, len(samples), nbytes))
    return Plan(samples, shards)


def packed_size(sizes: list[int]) -> int:
    """Return the bytes that a sample with fields of these sizes takes in a shard."""
    return sum(BLOCK + padded(size) for size in sizes)


def shard_name(name: str, number: int) -> str:
    """Return the file name of a shard: `train-000000.tar`."""
    if number >= _SHARD_LIMIT:
        raise OptionError(
            f"this makes more than {_SHARD_LIMIT:,} shards", way_out="Use a larger shard size"
        )
    return f"{name}-{number:06d}.tar"


def check_shard_name(name: str) -> None:
    """Refuse names for shards that some reader would misread; dots are harmful to DALI."""
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{name!r} is no name for shards",
            way_out="Use letters, digits, '-' and '_', such as train",
        )


def digest_plan(plan: Plan) -> str:
    """Return a digest of all that the bytes of the shards depend on, times of files included."""
    state = xxhash.xxh3_128()
    for shard in plan.shards:
        state.update(f"{shard.name} {shard.stop}\n".encode())
    for sample in plan.samples:
        for part in sample.parts:
            match part:
                case FilePart():
                    line = f"{sample.key}.{part.field} {part.size} {part.changed}\n"
                case MadePart():
                    source = f"{part.source.field} {part.source.size} {part.changed}"
                    line = f"{sample.key}.{part.field} {part.size} {source} {part.recipe!r}\n"
                case DataPart():
                    line = f"{sample.key}.{part.field} {part.data!r}\n"
            state.update(line.encode())
    return state.hexdigest()
