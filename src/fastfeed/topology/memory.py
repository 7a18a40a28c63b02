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


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes this process may still take: MemAvailable within the cgroup's limits."""
    limits = [
        number * 1024
        for line in text_of(root / "proc/meminfo").splitlines()
        if line.startswith("MemAvailable:") and (number := positive(line.split()[1]))
    ]
    for folder in cgroup_folders(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most = positive(text_of(folder / limit))
            used = positive(text_of(folder / usage)) or 0
            if most is not None and most < 1 << 60:  # v1 writes "no limit" as a huge number
                limits.append(max(0, most - used))
    return min(limits, default=None)


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
