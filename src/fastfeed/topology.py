"""What this process may really use: cores after affinity, cgroup quota, job and local ranks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Cores:
    """How many cores this process may use, and how that number was found."""

    count: int
    why: str


def usable_cores(
    *,
    environment: Mapping[str, str],
    affinity: Collection[int] | None = None,
    root: Path = Path("/"),
) -> Cores:
    """Return the cores one rank may use: the least of affinity, cgroup quota and job, shared.

    `root` is where /proc and /sys are looked for, so that recorded trees can be tested.
    """
    allowed = len(_own_affinity() if affinity is None else affinity) or 1
    limits = [(float(allowed), f"affinity {allowed}")]
    quota = cgroup_quota(root)
    if quota is not None:
        limits.append((quota, f"cgroup quota {quota:g}"))
    job = _positive(environment.get("SLURM_CPUS_PER_TASK"))
    if job is not None:
        # Slurm counts cores for each task, that is, for each rank already.
        limits.append((float(job), f"SLURM_CPUS_PER_TASK {job}"))
    least, why = min(limits, key=lambda limit: limit[0])
    ranks = _positive(environment.get("LOCAL_WORLD_SIZE")) or 1
    if ranks > 1 and not why.startswith("SLURM"):
        least, why = least / ranks, f"{why} over {ranks} local ranks"
    return Cores(max(1, math.ceil(least) if ranks == 1 else int(least)), why)


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the cores that the tightest cgroup level allows, or None without a quota."""
    quotas = [
        quota
        for folder in _cgroup_folders(root, "cpu")
        if (quota := _quota_v2(folder / "cpu.max") or _quota_v1(folder)) is not None
    ]
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes this process may still take: MemAvailable within the cgroup's limits."""
    limits = [
        int(line.split()[1]) * 1024
        for line in _text(root / "proc/meminfo").splitlines()
        if line.startswith("MemAvailable:")
    ]
    for folder in _cgroup_folders(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most = _positive(_text(folder / limit).strip())
            used = _positive(_text(folder / usage).strip()) or 0
            if most is not None and most < 1 << 60:  # v1 writes "no limit" as a huge number
                limits.append(max(0, most - used))
    return min(limits, default=None)


def _own_affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup folders for a controller, from its own up to the mount."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / controllers, root / "sys/fs/cgroup" / controller]
        else:
            continue
        # In a container the path may be the host's; the mount itself is then the container's own.
        relative = Path(path.lstrip("/"))
        for mount in mounts:
            if ".." not in relative.parts:
                for parent in (relative, *relative.parents):
                    yield mount / parent


def _quota_v2(path: Path) -> float | None:
    words = _text(path).split()
    quota = _positive(words[0]) if words else None
    period = _positive(words[1]) if len(words) > 1 else None
    return quota / period if quota and period else None


def _quota_v1(folder: Path) -> float | None:
    quota = _positive(_text(folder / "cpu.cfs_quota_us").strip())
    period = _positive(_text(folder / "cpu.cfs_period_us").strip())
    return quota / period if quota and period else None


def _positive(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
