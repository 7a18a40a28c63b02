"""Whole reports and the checks of cores and memory: the healthy machine, spoiled in one way."""

from __future__ import annotations

import pytest

from fastfeed.doctor.report import examine, judge

GIB = 1 << 30
JOB = 4000


def test_healthy_node(recorded, only):
    """Nothing is found on a node where nothing is wrong, and the verdict says so."""
    report = examine(recorded.look())
    assert [check.id for check in report.checks] == list(range(1, 15))
    only({check.id: check for check in report.checks})
    assert all(not check.advice for check in report.checks)
    assert report.verdict == "Nothing that was seen holds the GPU up."


@pytest.mark.parametrize(
    ("driver", "wish", "status"),
    [
        ("acpi-cpufreq", "", "bad"),
        ("intel_pstate", "balance_performance", "warn"),
        ("intel_pstate", "performance", "ok"),
    ],
)
def test_powersave(recorded, only, driver, wish, status):
    """Powersave is bad where it holds the lowest clock, and doubtful where the driver raises it."""
    for name in [name for name in recorded.files if name.endswith("scaling_governor")]:
        folder = name.rpartition("/")[0]
        recorded.files[name] = "powersave"
        recorded.files[f"{folder}/scaling_driver"] = driver
        recorded.files[f"{folder}/energy_performance_preference"] = wish
    checks = recorded.checks()
    assert checks[9].status == status
    assert checks[9].evidence["cores governed by powersave"] == 16
    only(checks, *([9] if status != "ok" else []))


def test_wrong_node_by_mask(recorded, only):
    """A job that may only run on the other socket is bad, as is memory from there only."""
    recorded.files[f"proc/{JOB}/status"] = "Cpus_allowed_list:\t8-15\nMems_allowed_list:\t1"
    checks = recorded.checks()
    only(checks, 10)
    assert "may only use cores 8-15, all far from its GPU (near are 0-7)" in checks[10].finding
    assert "memory only of nodes 1, its GPU is on 0" in checks[10].finding


def test_wrong_node_by_what_it_does(recorded, texts):
    """A job that may run anywhere is judged by where its time and memory went."""
    recorded.files[f"proc/{JOB}/status"] = "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1"
    assert recorded.checks()[10].status == "ok"
    recorded.later |= texts.job(300, 20, 12, 4000)
    recorded.later[f"proc/{JOB}/numa_maps"] = "7f00 default N0=1000 N1=3000 kernelpagesize_kB=4"
    check = recorded.checks()[10]
    assert check.status == "warn"
    assert "100% of the job's CPU time" in check.finding
    assert check.evidence["job's memory far from its GPU"] == 0.75


def test_one_node_is_near(recorded):
    """With one NUMA node there is no wrong one, job or not."""
    recorded.files["sys/devices/system/node/has_cpu"] = "0"
    recorded.gpu(processes=())
    assert recorded.checks()[10].status == "ok"


def test_memory_pressure(recorded, only, texts):
    """Little memory, stalls, swapping, a full disk queue and locked memory are all told."""
    recorded.later |= {
        "proc/meminfo": texts.meminfo(5, dirty=40, locked=100),
        "proc/pressure/memory": texts.psi(900_000),
        "sys/fs/cgroup/job/memory.pressure": texts.psi(600_000),
        "sys/fs/cgroup/job/memory.events": "max 500\noom_kill 1",
        "proc/vmstat": "pswpin 0\npswpout 9000\noom_kill 0",
    }
    checks = recorded.checks()
    only(checks, 14)
    assert checks[14].status == "bad"
    for text in (
        "5.0 of 256.0 GiB are available (2%)",
        "tasks of the machine waited for memory in 30%",
        "tasks of the container waited for memory in 20%",
        "9000 pages were swapped",
        "killed 1 processes",
        "hit its memory limit 500 times",
        "40.0 GiB wait to be written",
        "100.0 of 256.0 GiB are locked",
    ):
        assert text in checks[14].finding


def test_small_shared_memory_and_memlock(recorded):
    """The 64 MB of containers is told; a low RLIMIT_MEMLOCK is a figure, since drivers pass it."""
    recorded.shm = 64 << 20
    limits = "Max locked memory         8388608              8388608              bytes"
    recorded.files[f"proc/{JOB}/limits"] = limits
    check = recorded.checks()[14]
    assert check.status == "warn"
    assert check.evidence["may be locked, MiB"] == 8
    assert "RLIMIT_MEMLOCK is 8 MiB" in check.evidence["pinned budget of a rank"]


def test_throttled_cgroup(recorded, only):
    """Periods in which the quota stopped the job are counted while we look."""
    recorded.files["sys/fs/cgroup/job/cpu.max"] = "400000 100000"
    recorded.later["sys/fs/cgroup/job/cpu.stat"] = "nr_periods 130\nnr_throttled 15"
    checks = recorded.checks()
    only(checks, 6)
    assert checks[6].status == "bad"
    assert "quota of 4 cores stopped it in 50% of the periods" in checks[6].finding


@pytest.mark.parametrize(
    ("busy", "pattern", "text"),
    [
        ([1.0] + [0.05] * 15, "one core", "cpu0 is 100% busy"),
        ([0.97] * 16, "all cores", "all 8 cores are busy"),
        ([0.05] * 16, "idle", ""),
    ],
)
def test_hot_cores(recorded, texts, busy, pattern, text):
    """One hot core and all hot cores are different findings; only cores of the job count."""
    recorded.later["proc/stat"] = texts.cpu(busy, 300)
    checks = recorded.checks()
    assert checks[6].evidence["pattern"] == pattern
    assert text in checks[6].finding
    assert checks[6].status == ("warn" if text else "ok")
    assert "GC" in " ".join(checks[6].evidence)


@pytest.mark.parametrize(
    ("user", "system", "pattern"), [(390, 20, "computing"), (250, 160, "launching")]
)
def test_hot_thread(recorded, texts, user, system, pattern):
    """A thread that fills a core launches if the driver takes much of it, and computes if not."""
    recorded.later |= texts.job(user, system, 2, 4000)
    check = recorded.checks()[6]
    assert check.status == "warn"
    assert check.evidence["job's busiest thread pattern"] == pattern


def test_queue_stolen_time_and_interrupts(recorded, texts):
    """Threads that wait for cores, a host that takes them, and interrupts on one are told."""
    recorded.later["proc/pressure/cpu"] = texts.psi(1_500_000)
    lines = texts.cpu([0.2] * 16, 300).splitlines()
    lines[1] = "cpu0 1010 0 1010 9100 0 60 120 0 0 0"
    lines[2] = "cpu1 1010 0 1010 9100 0 0 0 180 0 0"
    recorded.later["proc/stat"] = "\n".join(lines)
    check = recorded.checks()[6]
    assert check.status == "warn"
    assert "in 50% of the time threads waited" in check.finding
    assert "interrupts take 60% of cpu0" in check.finding
    assert "the host takes 8%" in check.finding


def test_container_without_sys(recorded, only):
    """Without /sys and NVML what hangs on them is unknown, each with its reason; the rest works."""
    recorded.without("sys/")
    recorded.facts, recorded.rounds, recorded.kernels = (), [()], None
    report = examine(recorded.look())
    checks = {check.id: check for check in report.checks}
    only(checks, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12)
    assert all(check.finding for check in report.checks)
    assert "Not seen (10 of 14)" in report.verdict
    assert checks[6].status == checks[7].status == checks[14].status == "ok"


def test_nothing_at_all(recorded):
    """On a machine that shows nothing, nothing passes but what is not there to be slow."""
    recorded.files, recorded.later = {}, {}
    recorded.facts, recorded.rounds, recorded.kernels = (), [()], None
    recorded.root.mkdir()
    checks = recorded.checks()
    assert {check.status for check in checks.values()} == {"unknown"}
    assert judge(list(checks.values())) == "Nothing could be seen, so nothing is known."
