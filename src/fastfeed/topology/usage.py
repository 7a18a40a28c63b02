"""What running workers take of the machine: their time on cores, and room for more of them.

A worker that waits for storage takes no core, so cores bound only those that compute; memory and
descriptors bound all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.topology.files import integer, text_of
from fastfeed.topology.memory import memory_limit

if TYPE_CHECKING:
    from collections.abc import Collection

# Of the memory and the descriptors that are left, more workers may take this part.
_PART = 2
# Descriptors that the trainer keeps for a worker, at the most.
_DESCRIPTORS = 8
_UNLIMITED = 1 << 20


def runnable_s(tasks: Collection[Path]) -> float | None:
    """Return the seconds for which threads have had a core or stood in line for one, in all.

    `tasks` are their folders in /proc. None if there are none, or the kernel does not tell.
    """
    total = 0
    if not tasks:
        return None
    for task in tasks:
        words = text_of(task / "schedstat").split()
        running = integer(words[0]) if words else None
        waiting = integer(words[1]) if len(words) > 1 else None
        if running is None or waiting is None:
            return None
        total += running + waiting
    return total / 1e9


def threads_of(pid: int, root: Path = Path("/")) -> list[Path]:
    """Return the folders of a process's threads in /proc; none if it has ended."""
    try:
        return list((root / f"proc/{pid}/task").iterdir())
    except OSError:
        return []


def room_for(pid: int, root: Path = Path("/")) -> int:
    """Return how many more workers such as `pid` memory and descriptors have room for.

    Nothing is said to have none.
    """
    left, own = memory_limit(root), _own_bytes(pid, root)
    if left is None or not own:
        return 0
    return min(left // _PART // own, _free_descriptors(root) // _PART // _DESCRIPTORS)


def _own_bytes(pid: int, root: Path) -> int:
    """Return the bytes that are there because of a process: unshared, or shared with the trainer.

    What a fork shares with its parent is the parent's; of what lies in shared memory the kernel
    counts a part for each process that maps it, and two do.
    """
    sizes = {"Private_Clean": 1, "Private_Dirty": 1, "Pss_Shmem": 2}
    total = 0
    for line in text_of(root / f"proc/{pid}/smaps_rollup").splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            total += sizes[name] * 1024 * (integer(rest.split()[0]) or 0)
    return total


def _free_descriptors(root: Path) -> int:
    try:
        used = sum(1 for _ in (root / "proc/self/fd").iterdir())
    except OSError:
        return 0
    for line in text_of(root / "proc/self/limits").splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            most = integer(soft)
            return _UNLIMITED if most is None else max(0, most - used)
    return 0
