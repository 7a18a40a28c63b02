"""How much memory this process may take, and how much of it one rank may pin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastfeed.topology.files import cgroup_folders, positive, text_of

# Pinned memory cannot be swapped, reclaimed or moved; a whole fleet has died of too much of it.
PINNED_PART = 4
PINNED_MOST = 8 << 30
# What a machine that does not tell its memory is taken to spare.
PINNED_UNKNOWN = 1 << 30


@dataclass(frozen=True, slots=True)
class Budget:
    """How many bytes one rank may pin, and how that number was found."""

    nbytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Room:
    """What may still be taken of some memory, and all of it, in bytes."""

    left: int
    whole: int


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes this process may still take: MemAvailable within the cgroup's limits."""
    return min((room.left for room in memory_rooms(root)), default=None)


def memory_rooms(root: Path = Path("/")) -> list[Room]:
    """Return what is left of the machine's memory, and of each cgroup level's that has a limit."""
    facts = _numbers(text_of(root / "proc/meminfo"))
    left, whole = facts.get("MemAvailable:"), facts.get("MemTotal:")
    rooms = [] if not left else [Room(left * 1024, max(left, whole or 0) * 1024)]
    for folder in cgroup_folders(root, "memory"):
        for limit, usage, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            most = positive(text_of(folder / limit))
            if most is None or most >= 1 << 60:  # v1 writes "no limit" as a huge number
                continue
            # Files that were read fill a cgroup up to its limit; the kernel takes that back.
            stat = _numbers(text_of(folder / "memory.stat"))
            files = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
            used = (positive(text_of(folder / usage)) or 0) - files
            rooms.append(Room(min(most, max(0, most - used)), most))
    return rooms


def _numbers(text: str) -> dict[str, int]:
    """Return the first number of each line by its name."""
    words = (line.split() for line in text.splitlines())
    return {
        one[0]: number for one in words if len(one) > 1 and (number := positive(one[1])) is not None
    }


def memlock_limit() -> int | None:
    """Return this process's RLIMIT_MEMLOCK in bytes; None without a limit, or where none exists."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def pinned_budget(
    *,
    limit: int | None,
    rlimit_memlock: int | None,
    local_ranks: int,
    asked: int | None = None,
) -> Budget:
    """Return what one rank may pin: a quarter of `limit`, at most 8 GiB, over the local ranks.

    What the user `asked` for is for each rank already, and always wins. `rlimit_memlock` is only
    told: the CUDA driver pins past it for some processes and is refused for others, and a refusal
    is met where the pinning is done.
    """
    if asked is not None:
        nbytes, why = asked, f"{_size(asked)} as asked for"
        if limit is not None and asked * local_ranks > limit:
            why += f", more than the {_size(limit)} there is for {local_ranks} local ranks"
    else:
        if limit is None:
            nbytes, why = PINNED_UNKNOWN, f"{_size(PINNED_UNKNOWN)}: free memory is not known"
        elif limit // PINNED_PART < PINNED_MOST:
            nbytes, why = limit // PINNED_PART, f"a quarter of {_size(limit)} free"
        else:
            nbytes, why = PINNED_MOST, f"{_size(PINNED_MOST)}, the most, of {_size(limit)} free"
        if local_ranks > 1:
            nbytes, why = nbytes // local_ranks, f"{why}, over {local_ranks} local ranks"
    if rlimit_memlock is not None and rlimit_memlock < nbytes:
        why += f"; RLIMIT_MEMLOCK is {_size(rlimit_memlock)}, so pinning may be refused"
    return Budget(nbytes, why)


def _size(nbytes: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.3g} {unit}"
    return f"{nbytes} bytes"
