"""Checks of GPUs, their links and their work: the healthy machine, spoiled in one way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.doctor.gpus import GpuProcess
from fastfeed.doctor.kernels import Kernels
from fastfeed.doctor.report import examine

GIB = 1 << 30
PCI = "sys/bus/pci/devices/0000:17:00.0"
JOB = 4000


def test_two_sockets_with_four_gpus(recorded):
    """Each GPU has its node and cores, and the ways between them are told."""
    check = recorded.checks()[5]
    assert "GPU 2 is on node 1 near cores 8-15" in check.finding
    assert check.evidence["GPU 0 node"] == 0
    assert check.evidence["GPU 0 to GPU 3"] == "NUMA nodes"


def test_downgraded_link(recorded, only):
    """Half the lanes are bad whatever the load, and come before any advice about cores."""
    recorded.gpu(width=8)
    recorded.later["proc/stat"] = recorded.files["proc/stat"].replace(" 9000 ", " 9001 ")
    report = examine(recorded.look())
    checks = {check.id: check for check in report.checks}
    only(checks, 3, 4)
    assert checks[3].status == checks[4].status == "bad"
    assert "GPU 0 has x8 of x16 lanes" in checks[4].finding
    assert checks[3].evidence["GPU 0 link, GB/s"] == pytest.approx(31.5, abs=0.1)
    assert report.verdict.startswith("First: fix the platform before any code")


def test_downgraded_link_without_nvml(recorded):
    """Sysfs alone tells a narrow link; a slow one may only rest."""
    recorded.facts = ()
    recorded.rounds = [()]
    recorded.files[f"{PCI}/current_link_width"] = "4"
    recorded.files["sys/bus/pci/devices/0000:65:00.0/current_link_speed"] = "2.5 GT/s PCIe"
    checks = recorded.checks(pid=JOB)
    assert checks[4].status == "bad"
    assert "GPU 0000:17:00.0 has x4 of x16 lanes" in checks[4].finding
    assert "GPU 0000:65:00.0 runs at generation 1 of 5, but whether it is idle" in checks[4].finding


@pytest.mark.parametrize(("busy", "status"), [(0, "unknown"), (90, "bad")])
def test_slow_link_only_counts_under_load(recorded, busy, status):
    """An idle GPU lowers its link's speed, so nothing is known before it works."""
    recorded.gpu(generation=1, busy=busy)
    checks = recorded.checks()
    assert checks[4].status == checks[3].status == status


def test_slow_slot_and_poor_signal(recorded):
    """A slot that is older than the GPU and packets that are sent again are both told."""
    recorded.gpu_facts(generation_able=5, generation_most=4)
    recorded.gpu(generation=4)
    first = recorded.rounds[0]
    later = (replace(first[0], replays=7), *first[1:])
    recorded.rounds = [first, first, *[later] * 20]
    check = recorded.checks()[4]
    assert check.status == "warn"
    assert "can generation 5, its slot only 4" in check.finding
    assert "sent 7 packets again" in check.finding


def test_mended_errors(recorded):
    """Errors that the kernel counts as mended are told when they grow."""
    recorded.later[f"{PCI}/aer_dev_correctable"] = "RxErr 3\nTOTAL_ERR_COR 3"
    check = recorded.checks()[4]
    assert check.status == "warn"
    assert "3 link errors mended" in check.finding


@pytest.mark.parametrize(("width", "speed"), [("0", "Unknown"), ("63", ""), ("255", "x")])
def test_links_of_guests(recorded, width, speed):
    """What guests are shown in place of a link is no link."""
    recorded.facts, recorded.rounds = (), [()]
    for name in ("current_link", "max_link"):
        recorded.files[f"{PCI}/{name}_width"] = width
        recorded.files[f"{PCI}/{name}_speed"] = speed
    checks = recorded.checks()
    assert checks[3].status == checks[4].status == "unknown"


def bursts(recorded, *values):
    first = recorded.rounds[0]
    recorded.rounds = [(replace(first[0], busy=busy), *first[1:]) for busy in values]


@pytest.mark.parametrize(
    ("values", "status", "pattern"),
    [
        ((0, 100, 95, 5), "bad", "bursts"),
        ((40, 45, 42), "warn", "low"),
        ((0, 1, 0), "bad", "starved"),
        ((98, 99, 100), "ok", "full"),
    ],
)
def test_use_over_time(recorded, values, status, pattern):
    """Bursts, low and steady, nothing at all and full are told apart."""
    bursts(recorded, *values)
    check = recorded.checks()[1]
    assert (check.status, check.evidence["GPU 0 pattern"]) == (status, pattern)


def test_an_idle_gpu_is_no_pass(recorded):
    """A GPU that nobody uses proves nothing: neither its use nor its clocks."""
    recorded.gpu(busy=0, memory_used=500 << 20, processes=(), reasons=1, clock=345)
    checks = recorded.checks()
    assert checks[1].status == checks[11].status == "unknown"
    assert "look while" in checks[1].advice


def test_processes(recorded):
    """Another job on the GPU is told, and so is a job that is on none."""
    recorded.gpu(processes=(GpuProcess(JOB, GIB, 50), GpuProcess(77, GIB, 40)))
    check = recorded.checks()[2]
    assert check.status == "warn"
    assert "2 processes share GPU 0: 77, 4000" in check.finding
    recorded.files["proc/77/stat"] = "77 (other) S 1"
    recorded.gpu(processes=(GpuProcess(77, GIB, 40),))
    check = recorded.checks(pid=JOB)[2]
    assert check.status == "bad"
    assert "use no GPU; those that do: 77" in check.finding


def test_processes_of_another_container(recorded):
    """Numbers that only the host knows are no proof of anything."""
    recorded.gpu(processes=(GpuProcess(987_654, GIB, 40),))
    checks = recorded.checks()
    assert checks[2].status == "unknown"
    assert "not shown here" in checks[2].finding
    assert recorded.checks(pid=JOB)[2].status == "unknown"


@pytest.mark.parametrize(
    ("reasons", "clock", "status", "text"),
    [
        (0x40, 900, "bad", "hardware thermal slowdown, at 900 of 1980 MHz"),
        (0x80, 900, "bad", "power brake"),
        (0x4, 1200, "warn", "at its power limit, 1200 of 1980 MHz"),
        (0x4, 1800, "ok", ""),
        (0x2, 1980, "ok", ""),
        (None, None, "unknown", "does not tell what holds its clocks"),
    ],
)
def test_throttling(recorded, reasons, clock, status, text):
    """Heat and power brakes are bad, a power limit is if clocks are low, silence is unknown."""
    recorded.gpu(reasons=reasons, clock=clock)
    check = recorded.checks()[11]
    assert check.status == status
    assert text in check.finding


def test_limits_that_somebody_set(recorded):
    """A lowered power limit and application clocks are told."""
    recorded.gpu_facts(power_limit=400.0, clock_asked=1000)
    check = recorded.checks()[11]
    assert check.status == "warn"
    assert "may take 400 W, 700 W by default" in check.finding
    assert "1000 of 1980 MHz" in check.finding


def test_c74_mig(recorded, only):
    """A GPU in MIG mode tells no use: that is unknown, and its processes may share it."""
    recorded.gpu_facts(mig=True, name="NVIDIA H200 MIG 1g.18gb")
    recorded.gpu(busy=None, memory_busy=None, processes=(GpuProcess(JOB), GpuProcess(5)))
    checks = recorded.checks()
    only(checks, 1)
    assert "under MIG" in checks[1].finding
    assert checks[1].status == "unknown"


@pytest.mark.parametrize(
    ("kernels", "status", "text"),
    [
        (Kernels(40_000, 10, 3.0, 0.4, 5.0), "bad", "4000 kernels a step of 3.0 us"),
        (Kernels(400, 10, 90.0, 0.5, 900.0), "warn", "with gaps of 900 us"),
        (Kernels(400, 0, 90.0, 0.95, 1.0), "ok", "400 kernels of 90.0 us"),
        (Kernels(0, 3, 0.0, 0.0, 0.0), "unknown", "holds no kernel"),
        (None, "unknown", "no trace was given"),
    ],
)
def test_kernels(recorded, kernels, status, text):
    """Short kernels with gaps wait for launches, long ones for something else."""
    recorded.kernels = kernels
    check = recorded.checks()[12]
    assert check.status == status
    assert text in check.finding


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda r, t: r.later.update(t.job(250, 160, 2, 4000)), "bound by submission"),
        (lambda r, t: r.later.update({"proc/stat": t.cpu([0.97] * 16, 300)}), "by preprocessing"),
        (lambda r, t: r.later.update({"proc/pressure/io": t.psi(2_000_000)}), "bound by storage"),
        (lambda r, t: None, "look at synchronisation"),
    ],
)
def test_what_a_waiting_gpu_points_to(recorded, texts, spoil, cause):
    """The verdict names who the GPU waits for: launches, cores, storage, or none of them."""
    bursts(recorded, 0, 100, 95, 5)
    spoil(recorded, texts)
    assert cause in examine(recorded.look()).verdict
