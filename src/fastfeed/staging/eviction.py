"""What leaves the shelf first: what the plan needs last. Pure, no I/O.

A shard that was just read is needed next in the epoch after, whose order is known too. So of all
shards on the shelf the one needed furthest ahead goes first (Belady's rule, which nothing beats).
It is spoilt by bringing shards too early: a shelf filled with what comes next has dropped what was
worth keeping. Hence `zone`: only what is needed within it may push out others, and only those
needed after it; beyond the zone shards are brought only where there is room.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Kept:
    """One shard on the shelf."""

    name: str
    nbytes: int
    last_used: int
    """When it was last opened or published; any clock."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What one process will read: shards by name in order, the first `zone` of them soon."""

    names: tuple[str, ...]
    zone: int


def next_uses(upcoming: Sequence[Upcoming]) -> dict[str, int]:
    """Return how far ahead each shard is needed by anybody; those within a zone are 0 ahead."""
    nearest: dict[str, int] = {}
    for one in upcoming:
        for place, name in enumerate(one.names):
            ahead = max(0, place - one.zone + 1)
            if ahead < nearest.get(name, ahead + 1):
                nearest[name] = ahead
    return nearest


def order_of_eviction(
    kept: Sequence[Kept], uses: Mapping[str, int], *, incoming: str, keep: Collection[str] = ()
) -> list[Kept]:
    """Return the shards that may go for `incoming`, in the order in which they go.

    First those that nobody needs, the longest unused before others; then, if the incoming one is
    needed within a zone, those needed after it, the furthest first. Never those in `keep`.
    """
    urgent = uses.get(incoming) == 0
    may_go = [one for one in kept if one.name not in keep and one.name != incoming]
    unneeded = sorted((one for one in may_go if one.name not in uses), key=_last_used)
    later = [one for one in may_go if urgent and uses.get(one.name, 0) > 0]
    return unneeded + sorted(later, key=lambda one: (-uses[one.name], one.last_used))


def _last_used(one: Kept) -> tuple[int, str]:
    return one.last_used, one.name


def hits_at_best(accesses: Sequence[Hashable], capacity: int) -> int:
    """Return how many accesses a shelf of `capacity` equal shards serves if it knows them all."""
    places: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, shard in enumerate(accesses):
        places[shard].append(place)
    never = len(accesses)
    shelf: dict[Hashable, int] = {}
    furthest: list[tuple[int, int, Hashable]] = []
    hits = 0
    for turn, shard in enumerate(accesses):
        hits += shard in shelf
        places[shard].popleft()
        shelf[shard] = places[shard][0] if places[shard] else never
        heapq.heappush(furthest, (-shelf[shard], turn, shard))
        # The shard itself may be the one to go: it was read without being kept.
        while len(shelf) > capacity:
            use, _, candidate = heapq.heappop(furthest)
            if shelf.get(candidate) == -use:
                del shelf[candidate]
    return hits


def hits_by_recency(accesses: Sequence[Hashable], capacity: int) -> int:
    """Return how many it serves if it drops what was not read for longest, as most caches do."""
    shelf: dict[Hashable, None] = {}
    hits = 0
    for shard in accesses:
        hits += shard in shelf
        shelf.pop(shard, None)
        shelf[shard] = None
        if len(shelf) > capacity:
            del shelf[next(iter(shelf))]
    return hits
