"""What other readers want beside the shards: indexes for DALI and Energon, wids' list of shards.

Pure functions from what is known to the bytes of files; `docs/format.md` says who reads which.
"""

from __future__ import annotations

import json
import sys
from array import array
from itertools import groupby
from typing import TYPE_CHECKING

from fastfeed.shardfile.header import padded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastfeed.shardfile.manifest import ShardEntry
    from fastfeed.shardfile.tar import Member

WIDS_NAME = "shardindex.json"
ENERGON_FOLDER = ".nv-meta"
_ENERGON_VERSION = "7.0.0"


def dali_name(shard: str) -> str:
    """Return the name of DALI's index, which is not Energon's: `a-000.tar` has `a-000.idx`."""
    return f"{shard.removesuffix('.tar')}.idx"


def energon_name(shard: str) -> str:
    """Return the name of Energon's index: `a-000.tar` has `a-000.tar.idx`."""
    return f"{shard}.idx"


def side_indexes(shard: str, members: Sequence[Member], *, end: int) -> dict[str, bytes]:
    """Return file name -> content of the indexes of a shard whose last member ends at `end`."""
    samples = list(_samples(members))
    lines = [f"v1.2 {len(samples)}"]
    lines += (
        " ".join(f"{field} {member.offset} {member.size} {member.name}" for field, member in parts)
        for parts in samples
    )
    starts = array("Q", (parts[0][1].header for parts in samples))
    starts.append(end)
    if sys.byteorder == "big":
        starts.byteswap()
    return {
        dali_name(shard): ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"),
        energon_name(shard): starts.tobytes(),
    }


def _samples(members: Sequence[Member]) -> Iterator[list[tuple[str, Member]]]:
    """Yield the (extension, member) pairs of each sample, split as DALI and Energon do."""
    split = []
    for member in members:
        folder, slash, base = member.name.rpartition("/")
        stem, _, extension = base.partition(".")
        split.append((f"{folder}{slash}{stem}", extension, member))
    for _, parts in groupby(split, lambda part: part[0]):
        yield [(extension, member) for _, extension, member in parts]


def last_end(members: Sequence[Member]) -> int:
    """Return where the last member ends, padding included."""
    return max((member.offset + padded(member.size) for member in members), default=0)


def wids_index(shards: Sequence[ShardEntry]) -> bytes:
    """Return the list of shards as wids reads it, sorted by name."""
    shardlist = [
        {"url": shard.name, "nsamples": shard.samples, "filesize": shard.bytes}
        for shard in sorted(shards, key=lambda shard: shard.name)
    ]
    document = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shardlist}
    return _json(document)


def energon_files(shards: Sequence[ShardEntry]) -> dict[str, bytes]:
    """Return the files of Energon's folder: all shards are its `train` part."""
    counts = {shard.name: shard.samples for shard in shards}
    split = ["split_parts:", "  train:"]
    split += (f"  - {name}" for name in counts)
    split += ["  val: []", "  test: []", "exclude: []"]
    dataset = ["__module__: megatron.energon", "__class__: CrudeWebdataset"]
    return {
        ".info.json": _json({"energon_version": _ENERGON_VERSION, "shard_counts": counts}),
        "split.yaml": _lines(split),
        "dataset.yaml": _lines(dataset),
    }


def _json(document: object) -> bytes:
    return f"{json.dumps(document, indent=1)}\n".encode()


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
