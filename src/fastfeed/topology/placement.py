"""Which cores the workers of one rank run on: near its GPU, within the mask, shared out to ranks.

Pages of shared memory are taken from the node of the core that first touches them, so a worker near
the GPU also fills memory near the GPU. Locking pages touches them too: whoever pins a region before
a worker has written to it decides its node, and should run on these cores while it does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.topology.cores import own_affinity
from fastfeed.topology.lists import core_text
from fastfeed.topology.numa import Locality, gpu_addresses, gpu_locality, sibling_cores
from fastfeed.topology.ranks import local_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores for the workers of one rank, and how they were found."""

    cores: tuple[int, ...]
    """In rising order, always of the process's own mask, never empty unless that is."""
    node: int | None
    """The NUMA node of the rank's GPU; None if the machine does not say."""
    why: str
    notes: tuple[str, ...]
    """What the machine left out or refused, in sentences for the user."""


def place_workers(
    address: str,
    *,
    environment: Mapping[str, str],
    peers: Sequence[str] = (),
    affinity: Collection[int] | None = None,
    root: Path = Path("/"),
) -> Placement:
    """Read the machine, and return the cores for the workers of the GPU at a PCI address.

    `peers` are the addresses of the GPUs that CUDA shows to this process. They are used if there is
    one for each local rank; if not, so are all that sysfs shows.
    """
    allowed = frozenset(own_affinity() if affinity is None else affinity)
    ranks = local_rank(environment)
    rank, size = (0, 1) if ranks.bound else (ranks.rank, ranks.size)
    addresses = next((a for a in (peers, gpu_addresses(root)) if len(a) == size), ())
    return plan_cores(
        allowed=allowed,
        local=gpu_locality(address, root),
        rank=rank,
        local_ranks=size,
        peers=[gpu_locality(peer, root) for peer in addresses],
        siblings=sibling_cores(allowed, root),
    )


def plan_cores(
    *,
    allowed: Collection[int],
    local: Locality,
    rank: int | None,
    local_ranks: int,
    peers: Sequence[Locality] = (),
    siblings: Iterable[Collection[int]] = (),
) -> Placement:
    """Return this rank's cores: those of `allowed` near its GPU, shared with the ranks there.

    `peers` are the GPUs of all local ranks, this one's included, in an order that all ranks agree
    on; ranks that plan with the same mask and peers then get shares that do not overlap. Without
    them every local rank is taken to be near the same cores. A rank that is not known takes no
    share but all of its cores, which is what it has without pinning.
    """
    mask = frozenset(allowed)
    notes = list(local.notes)
    if local.cores and not local.cores & mask:
        notes.append(
            f"the cores near GPU {local.address} ({core_text(local.cores)}) are none of this "
            f"process's ({core_text(mask)}), so its workers stay on those"
        )
    pool, index, count = _near(local, mask), rank, local_ranks
    addresses = sorted({peer.address for peer in peers})
    if local_ranks > 1 and len(addresses) == local_ranks and local.address in addresses:
        ordered = sorted(peers, key=lambda peer: peer.address)
        pool, members = _company([_near(peer, mask) for peer in ordered], local.address, addresses)
        index, count = members.index(local.address), len(members)
    elif local_ranks > 1 and rank is not None:
        notes.append(
            f"which GPUs the other {local_ranks - 1} local ranks use is not known, so the cores "
            "near this one are shared with all of them"
        )
    if index is None and count > 1:
        notes.append(f"which of {count} local ranks this is is not known, so none has its share")
        index, count = 0, 1
    cores, torn = _share(pool, siblings, index or 0, count)
    if torn:
        notes.append(f"{len(pool)} cores do not go round {count} ranks, so ranks share cores")
    return Placement(cores, local.node, _reason(cores, local, mask, count), tuple(notes))


def pin_to(cores: Collection[int]) -> str | None:
    """Pin the calling thread, and those it starts later, to those of `cores` that it may use.

    Called first in a worker, that is the whole process. Returns a note for the user if the system
    refuses, as containers may; nothing is pinned then, and nothing ever runs on more cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    mask = os.sched_getaffinity(0)
    wanted = mask & frozenset(cores)
    if not wanted:
        return f"not pinned: cores {core_text(cores)} are none of this process's {core_text(mask)}"
    if wanted == mask:
        return None
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        return f"not pinned to cores {core_text(wanted)}: {error.strerror or error}"
    return None


def _near(gpu: Locality, mask: frozenset[int]) -> frozenset[int]:
    return gpu.cores & mask or mask


def _company(
    pools: Sequence[frozenset[int]], address: str, addresses: Sequence[str]
) -> tuple[frozenset[int], list[str]]:
    """Return the cores that one GPU's rank shares, and the GPUs of the ranks that share them.

    Pools overlap in part when some GPU has no core in the mask and takes all of it; then all that
    are reached by overlaps share, as each would otherwise give the same cores away.
    """
    named = dict(zip(addresses, pools, strict=True))
    pool, before = named[address], frozenset[int]()
    while pool != before:
        before = pool
        pool = pool.union(*(other for other in pools if other & pool))
    return pool, [name for name in addresses if named[name] & pool or name == address]


def _share(
    pool: frozenset[int], siblings: Iterable[Collection[int]], index: int, count: int
) -> tuple[tuple[int, ...], bool]:
    """Return share `index` of `count` in a pool, and whether shares must overlap.

    Physical cores are kept whole, unless there are fewer of them than ranks.
    """
    left = set(pool)
    groups: list[list[int]] = []
    for group in sorted(siblings, key=lambda group: min(group, default=0)):
        taken = left.intersection(group)
        left -= taken
        groups.append(sorted(taken))
    groups = sorted([*(group for group in groups if group), *([core] for core in left)])
    if len(groups) < count:
        groups = [[core] for group in groups for core in group]
    size = len(groups)
    if 0 < size < count:
        return tuple(groups[index % size]), True
    mine = groups[index * size // count : (index + 1) * size // count]
    return tuple(sorted(core for group in mine for core in group)), False


def _reason(cores: Sequence[int], local: Locality, mask: frozenset[int], count: int) -> str:
    place = "of the process's mask"
    if local.cores & mask:
        place = f"near GPU {local.address}"
        if local.node is not None:
            place += f" on NUMA node {local.node}"
    shared = f", one of {count} shares" if count > 1 else ""
    return f"cores {core_text(cores)} {place}{shared}"
