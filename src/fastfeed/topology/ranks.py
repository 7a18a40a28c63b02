"""Which rank of this machine the process is, as its launcher says in the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastfeed.topology.files import integer, positive

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LocalRank:
    """This process among the ranks that share the machine."""

    rank: int | None
    """From 0 below `size`; None if the launcher names only the size."""
    size: int
    """How many ranks of the job run on this machine; 1 if nobody says."""
    bound: bool
    """The launcher gave each rank cores of its own: the mask is not to be divided again."""
    why: str
    """Which variables said so."""


def local_rank(environment: Mapping[str, str]) -> LocalRank:
    """Return the local rank that torchrun, Open MPI or Slurm tells; alone if none does.

    The first that tells a size counts, from the innermost out: mpirun inside a Slurm job starts one
    Slurm task a machine, and torchrun inside either starts the ranks itself.
    """
    bound = _bound_by_slurm(environment) or "OMPI_MCA_orte_bound_at_launch" in environment
    size = positive(environment.get("LOCAL_WORLD_SIZE"))
    if size is not None:
        # Ranks that torchrun starts inherit one mask; otherwise a script copied Slurm's numbers.
        own = bound and "TORCHELASTIC_RUN_ID" not in environment
        return _checked(environment, "LOCAL_RANK", size, own=own, source="LOCAL_WORLD_SIZE")
    name = "OMPI_COMM_WORLD_LOCAL_SIZE"
    size = positive(environment.get(name))
    if size is not None:
        return _checked(environment, "OMPI_COMM_WORLD_LOCAL_RANK", size, own=bound, source=name)
    size = _slurm_tasks(environment)
    if size is not None:
        return _checked(environment, "SLURM_LOCALID", size, own=bound, source="Slurm's tasks")
    return LocalRank(0, 1, bound=False, why="no launcher named local ranks")


def _checked(
    environment: Mapping[str, str], variable: str, size: int, *, own: bool, source: str
) -> LocalRank:
    rank = integer(environment.get(variable))
    if rank is None or not 0 <= rank < size:
        return LocalRank(None, size, bound=own, why=f"{source} {size}, no valid {variable}")
    return LocalRank(rank, size, bound=own, why=f"{variable} {rank} of {source} {size}")


def _slurm_tasks(environment: Mapping[str, str]) -> int | None:
    """Return the tasks of this Slurm step on this machine.

    The step's own list, such as "4(x2),3", is exact. Without it a process inside a job is the batch
    script or a shell: alone, although SLURM_NTASKS_PER_NODE says what was asked for.
    """
    node = integer(environment.get("SLURM_NODEID")) or 0
    tasks: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is not None:
            tasks.extend([int(match[1])] * int(match[2] or 1))
    if 0 <= node < len(tasks):
        return tasks[node] or None
    if "SLURM_JOB_ID" in environment:
        return None
    return positive(environment.get("SLURM_NTASKS_PER_NODE"))


def _bound_by_slurm(environment: Mapping[str, str]) -> bool:
    """Say whether srun bound each task to a mask that differs from the others'."""
    masks = environment.get("SLURM_CPU_BIND_LIST", "").split(",")
    return len(masks) > 1 and len(set(masks)) == len(masks)
