"""How many cores one rank may really use, after affinity, cgroup quota, job and local ranks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.topology.files import cgroup_folders, positive, text_of
from fastfeed.topology.ranks import local_rank

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


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

    Affinity is shared among the local ranks unless the launcher bound each to cores of its own.
    """
    ranks = local_rank(environment)
    allowed = len(own_affinity() if affinity is None else affinity) or 1
    limits = [_shared(float(allowed), f"affinity {allowed}", 1 if ranks.bound else ranks.size)]
    quota = cgroup_quota(root)
    if quota is not None:
        limits.append(_shared(quota, f"cgroup quota {quota:g}", ranks.size))
    job = positive(environment.get("SLURM_CPUS_PER_TASK"))
    if job is not None:
        # Slurm counts cores for each task, that is, for each rank, unless torchrun is the task.
        inside = ranks.size if "TORCHELASTIC_RUN_ID" in environment else 1
        limits.append(_shared(float(job), f"SLURM_CPUS_PER_TASK {job}", inside))
    return min(limits, key=lambda cores: cores.count)


def reserved_cores(cores: int) -> int:
    """Return how many of a rank's cores stay with a trainer that decodes on the GPU.

    Two, for its own thread and the one that feeds the GPU, from four cores on; on three one, and on
    fewer none, since there the workers mostly wait for the same cores anyway.
    """
    return 2 if cores >= 4 else 1 if cores == 3 else 0


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Return the cores that the tightest cgroup level allows, or None without a quota."""
    quotas = [
        quota
        for folder in cgroup_folders(root, "cpu")
        if (quota := _quota_v2(folder / "cpu.max") or _quota_v1(folder)) is not None
    ]
    return min(quotas, default=None)


def own_affinity() -> Collection[int]:
    """Return the cores this process may run on; a container's cpuset is among what decides."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _shared(cores: float, why: str, ranks: int) -> Cores:
    if ranks == 1:
        return Cores(max(1, math.ceil(cores)), why)
    return Cores(max(1, int(cores / ranks)), f"{why} over {ranks} local ranks")


def _quota_v2(path: Path) -> float | None:
    words = text_of(path).split()
    quota = positive(words[0]) if words else None
    period = positive(words[1]) if len(words) > 1 else None
    return quota / period if quota and period else None


def _quota_v1(folder: Path) -> float | None:
    quota = positive(text_of(folder / "cpu.cfs_quota_us"))
    period = positive(text_of(folder / "cpu.cfs_period_us"))
    return quota / period if quota and period else None
