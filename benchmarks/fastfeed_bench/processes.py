"""What processes take, as the kernel counts it: children, unshared memory, descriptors, threads."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int | None = None) -> list[int]:
    """Return the processes below this one (or below `pid`), all generations."""
    found: list[int] = []
    waiting = [pid or os.getpid()]
    while waiting:
        for task in _entries(Path(f"/proc/{waiting.pop()}/task")):
            below = [int(child) for child in _text(task / "children").split()]
            found += below
            waiting += below
    return found


def unshared_bytes(pid: int) -> int:
    """Return the bytes of a process that no other process shares; 0 if it has ended."""
    return sum(
        int(line.split()[1]) * 1024
        for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:"))
    )


def resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process without its shared memory."""
    return _resident(pid, "RssAnon", "RssFile")


def anonymous_bytes(pid: int) -> int:
    """Return the resident bytes of a process that belong to no file and are not shared."""
    return _resident(pid, "RssAnon")


def shared_bytes(pid: int) -> int:
    """Return the resident bytes of a process that are shared memory."""
    return _resident(pid, "RssShmem")


def _resident(pid: int, *kinds: str) -> int:
    lines = (line.partition(":") for line in _text(Path(f"/proc/{pid}/status")).splitlines())
    return sum(int(rest.split()[0]) * 1024 for name, _, rest in lines if name in kinds)


def minor_faults(pid: int) -> int:
    """Return how many page faults a process has had that needed no disk; 0 if it has ended."""
    # The name of the process, in parentheses, may hold anything; the fields after it are numbers.
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[7]) if fields else 0


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has open."""
    return len(_entries(Path(f"/proc/{pid}/fd")))


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(_entries(Path(f"/proc/{pid}/task")))


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
