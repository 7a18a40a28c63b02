"""Local ranks from the launcher's environment, and each rank's share of the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.topology import (
    local_rank,
    memlock_limit,
    pinned_budget,
    reserved_cores,
    usable_cores,
)

TORCHRUN = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}
MPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS_PER_NODE": "9",
    "SLURM_STEP_TASKS_PER_NODE": "8,4(x2)",
}
BOUND = {"SLURM_CPU_BIND_LIST": "0x0f,0xf0"}


@pytest.mark.parametrize(
    ("environment", "rank", "size", "bound"),
    [
        ({}, 0, 1, False),
        (TORCHRUN, 3, 8, False),
        (MPI, 1, 4, False),
        (MPI | {"OMPI_MCA_orte_bound_at_launch": "1"}, 1, 4, True),
        (SRUN, 2, 4, False),
        (SRUN | BOUND, 2, 4, True),
        # All tasks with one mask are not bound apart.
        (SRUN | {"SLURM_CPU_BIND_LIST": "0xff,0xff"}, 2, 4, False),
        (SRUN | {"SLURM_NODEID": "9"}, 0, 1, False),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "rubbish"}, 0, 1, False),
        ({"SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}, 1, 2, False),
        # The script of a job is alone, however many tasks the job may start.
        ({"SLURM_JOB_ID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "8"}, 0, 1, False),
        # The innermost launcher counts.
        (SRUN | TORCHRUN, 3, 8, False),
        (SRUN | BOUND | TORCHRUN, 3, 8, False),
        (SRUN | MPI, 1, 4, False),
        # A script that copies Slurm's numbers under torchrun's names.
        (SRUN | BOUND | {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, 2, 4, True),
        ({"LOCAL_WORLD_SIZE": "8"}, None, 8, False),
        ({"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"}, None, 8, False),
        ({"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "8"}, None, 8, False),
        ({"LOCAL_RANK": "junk", "LOCAL_WORLD_SIZE": "8"}, None, 8, False),
        ({"LOCAL_RANK": "1"}, 0, 1, False),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"}, 0, 1, False),
    ],
)
def test_local_ranks(environment, rank, size, bound):
    """Each launcher's own variables are read, and numbers that make no sense are none."""
    found = local_rank(environment)
    assert (found.rank, found.size, found.bound) == (rank, size, bound)
    assert found.why


NAMES = [*TORCHRUN, *MPI, *SRUN, *BOUND]
VALUES = st.one_of(st.text(max_size=6), st.integers(-2, 9).map(str), st.just("2(x3),1"))


@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_any_environment_has_a_rank(environment):
    """No environment raises, and a rank always lies below its size."""
    found = local_rank(environment)
    assert found.size >= 1
    assert found.rank is None or 0 <= found.rank < found.size
    assert usable_cores(environment=environment, affinity=range(16)).count >= 1


@pytest.mark.parametrize(
    ("environment", "count", "why"),
    [
        (MPI, 16, "4 local ranks"),
        (MPI | {"OMPI_MCA_orte_bound_at_launch": "1"}, 64, "affinity 64"),
        (SRUN, 16, "4 local ranks"),
        (SRUN | BOUND, 64, "affinity 64"),
        (SRUN | {"SLURM_CPUS_PER_TASK": "12"}, 12, "SLURM_CPUS_PER_TASK 12"),
        # torchrun as the one task of a job starts ranks that share the task's cores.
        (TORCHRUN | {"SLURM_CPUS_PER_TASK": "32"}, 4, "SLURM_CPUS_PER_TASK 32 over 8"),
        # What is left of the machine for each rank counts, not only what its task asked for.
        (TORCHRUN | {"SLURM_CPUS_PER_TASK": "640"}, 8, "affinity 64 over 8"),
    ],
)
def test_c72_cores_of_one_rank(tmp_path, environment, count, why):
    """Cores are divided among the ranks of every launcher, once."""
    cores = usable_cores(environment=environment, affinity=range(64), root=tmp_path)
    assert cores.count == count
    assert why in cores.why


@pytest.mark.parametrize(("cores", "reserved"), [(1, 0), (2, 0), (3, 1), (4, 2), (64, 2)])
def test_cores_left_to_the_trainer(cores, reserved):
    """The trainer keeps up to two cores, and workers always at least one."""
    assert reserved_cores(cores) == reserved


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "memlock", "ranks", "asked", "nbytes", "why"),
    [
        (16 * GIB, None, 1, None, 4 * GIB, "a quarter of 16 GiB free"),
        (16 * GIB, None, 4, None, GIB, "over 4 local ranks"),
        (512 * GIB, None, 1, None, 8 * GIB, "8 GiB, the most, of 512 GiB free"),
        (512 * GIB, None, 8, None, GIB, "over 8 local ranks"),
        (None, None, 1, None, GIB, "not known"),
        (None, None, 2, None, GIB // 2, "not known"),
        (0, None, 1, None, 0, "a quarter of 0 bytes free"),
        (16 * GIB, 8 << 20, 1, None, 4 * GIB, "RLIMIT_MEMLOCK is 8 MiB"),
        (16 * GIB, 4 * GIB, 1, None, 4 * GIB, "a quarter of 16 GiB free"),
        (16 * GIB, None, 4, 2 * GIB, 2 * GIB, "2 GiB as asked for"),
        (16 * GIB, None, 4, 8 * GIB, 8 * GIB, "more than the 16 GiB there is for 4"),
        (None, 65536, 1, 8 * GIB, 8 * GIB, "RLIMIT_MEMLOCK is 64 KiB"),
    ],
)
def test_pinned_budget(limit, memlock, ranks, asked, nbytes, why):
    """A quarter of what is free, at most 8 GiB, over the ranks; a user's number always wins."""
    budget = pinned_budget(limit=limit, rlimit_memlock=memlock, local_ranks=ranks, asked=asked)
    assert budget.nbytes == nbytes
    assert why in budget.why
    assert ("RLIMIT" in budget.why) == (memlock is not None and memlock < nbytes)


def test_memlock_of_this_process():
    """The limit of the process at hand is a number of bytes, or none."""
    limit = memlock_limit()
    assert limit is None or limit >= 0
