"""Usable cores and memory, from recorded trees of /proc and /sys."""

from __future__ import annotations

import os

import pytest

from fastfeed.topology import cgroup_quota, memory_limit, usable_cores


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/job/step\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/job\n9:memory:/job\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (V2 | {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (V2 | {"sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        (V2 | {"sys/fs/cgroup/job/step/cpu.max": "50000 100000"}, 0.5),
        (
            V2
            | {
                "sys/fs/cgroup/job/step/cpu.max": "800000 100000",
                "sys/fs/cgroup/job/cpu.max": "200000 100000",
            },
            2,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (V2 | {"sys/fs/cgroup/cpu.max": "rubbish"}, None),
        (V2 | {"sys/fs/cgroup/cpu.max": ""}, None),
        ({"proc/self/cgroup": "no colons\n0::/../../x\n"}, None),
    ],
)
def test_c72_quota(tmp_path, files, quota):
    """The tightest level of either cgroup version counts; garbled files are no limit."""
    assert cgroup_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("affinity", "quota", "environment", "count", "why"),
    [
        (range(16), None, {}, 16, "affinity"),
        (range(16), "400000 100000", {}, 4, "quota"),
        (range(2), "400000 100000", {}, 2, "affinity"),
        (range(16), "50000 100000", {}, 1, "quota"),
        (range(16), "250000 100000", {}, 3, "quota"),
        (range(64), None, {"SLURM_CPUS_PER_TASK": "6"}, 6, "SLURM"),
        (range(64), None, {"LOCAL_WORLD_SIZE": "8"}, 8, "8 local ranks"),
        (range(64), None, {"LOCAL_WORLD_SIZE": "8", "SLURM_CPUS_PER_TASK": "6"}, 6, "SLURM"),
        (range(2), None, {"LOCAL_WORLD_SIZE": "8"}, 1, "local ranks"),
        (range(4), None, {"SLURM_CPUS_PER_TASK": "junk", "LOCAL_WORLD_SIZE": "0"}, 4, "affinity"),
    ],
)
def test_c72_usable_cores(tmp_path, affinity, quota, environment, count, why):
    """The least of affinity, quota and job counts, divided by the ranks of the node."""
    files = V2 | ({"sys/fs/cgroup/cpu.max": quota} if quota else {})
    cores = usable_cores(environment=environment, affinity=affinity, root=tree(tmp_path, files))
    assert cores.count == count
    assert why in cores.why


def test_real_machine():
    """On the machine at hand the answer lies within its affinity."""
    cores = usable_cores(environment={})
    assert 1 <= cores.count <= len(os.sched_getaffinity(0))


def test_memory_limit(tmp_path):
    """The least of MemAvailable and what the cgroup leaves."""
    meminfo = {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 80 kB\n"}
    assert memory_limit(tree(tmp_path / "a", meminfo)) == 80 * 1024
    limited = (
        V2
        | meminfo
        | {
            "sys/fs/cgroup/job/memory.max": "50000",
            "sys/fs/cgroup/job/memory.current": "20000",
            "sys/fs/cgroup/memory.max": "max",
        }
    )
    assert memory_limit(tree(tmp_path / "b", limited)) == 30000
    assert memory_limit(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("cgroup", "folder", "names", "prefix"),
    [
        (V2, "sys/fs/cgroup/job", ("memory.max", "memory.current"), ""),
        (
            V1,
            "sys/fs/cgroup/memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            "total_",
        ),
    ],
)
def test_files_in_memory_are_room(tmp_path, cgroup, folder, names, prefix):
    """A container whose memory is full of files that were read is not full."""
    files = cgroup | {
        f"{folder}/{names[0]}": "50000",
        f"{folder}/{names[1]}": "50000",
        f"{folder}/memory.stat": f"{prefix}inactive_file 30000\n{prefix}active_file 9000\nanon 1\n",
    }
    assert memory_limit(tree(tmp_path, files)) == 39000
