"""Each check over recorded machines: the healthy one, and one spoiled in one way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed.doctor.gpus import GpuProcess
from fastfeed.doctor.kernels import Kernels
from fastfeed.doctor.report import examine, judge

GIB = 1 << 30
PCI = "sys/bus/pci/devices/0000:17:00.0"
JOB = 4000


def only(checks, *bad):
    """Assert that these checks and no others found something, or could not see."""
    assert {
        number: check.finding for number, check in checks.items() if check.status != "ok"
    }.keys() == set(bad)


def test_healthy_node(recorded):
    """Nothing is found on a node where nothing is wrong, and the verdict says so."""
    report = examine(recorded.look())
    assert [check.id for check in report.checks] == list(range(1, 15))
    only({check.id: check for check in report.checks})
    assert all(not check.advice for check in report.checks)
    assert report.verdict == "Nothing that was seen holds the GPU up."


def test_two_sockets_with_four_gpus(recorded):
    """Each GPU has its node and cores, and the ways between them are told."""
    check = recorded.checks()[5]
    assert "GPU 2 is on node 1 near cores 8-15" in check.finding
    assert check.evidence["GPU 0 node"] == 0
    assert check.evidence["GPU 0 to GPU 3"] == "NUMA nodes"


def test_downgraded_link(recorded):
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


@pytest.mark.parametrize(
    ("driver", "wish", "status"),
    [
        ("acpi-cpufreq", "", "bad"),
        ("intel_pstate", "balance_performance", "warn"),
        ("intel_pstate", "performance", "ok"),
    ],
)
def test_powersave(recorded, driver, wish, status):
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


def test_wrong_node_by_mask(recorded):
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


NFS = """device server:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tper-op statistics
\t        READ: {reads} {sent} 0 {reads} {bytes} 0 {wait} {wait} 0
\t     GETATTR: {names} {names} 0 1 1 0 1 1 0
\t        OPEN: {names} {names} 0 1 1 0 1 1 0"""


def nfs(reads=0, names=0, again=0, wait=0):
    counts = {"reads": reads, "sent": reads + again, "bytes": reads << 20, "wait": wait}
    return NFS.format(names=names, **counts)


@pytest.mark.parametrize(
    ("later", "status", "text"),
    [
        (nfs(300), "ok", "/data: 100 reads/s"),
        (nfs(300, names=3000), "bad", "2000 requests/s for names and attributes"),
        (nfs(1000, again=50), "bad", "50 of 1000 requests were lost"),
        (nfs(300, wait=30_000), "warn", "100 reads/s of 100 ms"),
    ],
)
def test_nfs(recorded, later, status, text):
    """Storms of names, lost requests and slow reads of NFS are told by what grew meanwhile."""
    recorded.files["proc/self/mountstats"] += f"\n{nfs()}"
    recorded.later["proc/self/mountstats"] = f"{recorded.files['proc/self/mountstats']}\n{later}"
    checks = recorded.checks()
    assert checks[13].status == status
    assert text in checks[13].finding
    only(checks, *([13] if status != "ok" else []))


def test_file_systems_that_count_nothing(recorded):
    """A network file system without counters is not known; one without the job's files is."""
    recorded.files["proc/self/mountstats"] += (
        "\ndevice a@tcp:/x mounted on /scratch with fstype lustre"
    )
    assert recorded.checks()[13].status == "ok"
    fd = recorded.root / f"proc/{JOB}/fd/7"
    fd.parent.mkdir(parents=True, exist_ok=True)
    fd.symlink_to("/scratch/train-000000.tar")
    check = recorded.checks()[13]
    assert check.status == "unknown"
    assert "/scratch is lustre" in check.finding


def test_cache_on_a_network(recorded):
    """A cache that lies on a network mount is bad: it has stopped a service."""
    recorded.files["proc/self/mountstats"] += f"\n{nfs()}".replace("/data with", "/home with")
    checks = recorded.checks()
    only(checks, 13)
    assert "the cache folder lies on /home, which is nfs4" in checks[13].finding


def test_memory_pressure(recorded, texts):
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


def test_throttled_cgroup(recorded):
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


@pytest.mark.parametrize(
    ("later", "status", "text"),
    [
        ({"reads": 4000, "read_ms": 90_500, "kilobytes": 136}, "bad", "of 11 KiB, 30.0 ms each"),
        ({"reads": 4000, "read_ms": 1000, "busy": 2990}, "warn", "in use 100%"),
        ({"reads": 1000, "read_ms": 500}, "ok", "no disk was read"),
    ],
)
def test_disks(recorded, texts, later, status, text):
    """Slow reads and a disk at its limit are told; reading nothing is no fault."""
    recorded.files["proc/diskstats"] = texts.disk(1000, 500)
    recorded.later["proc/diskstats"] = texts.disk(**later)
    check = recorded.checks()[7]
    assert check.status == status
    assert text in check.finding


def test_stalls_of_io(recorded, texts):
    """Pressure and idle cores that wait for I/O are told without naming a disk."""
    recorded.later["proc/pressure/io"] = texts.psi(2_000_000)
    check = recorded.checks()[7]
    assert check.status == "warn"
    assert "tasks waited for I/O in 67%" in check.finding


def test_small_reads_and_faults(recorded, texts):
    """Many small read calls and faults from disk are told, with the job's children counted."""
    child = 4001
    recorded.files[f"proc/{child}/stat"] = texts.stat(child, parent=JOB)
    recorded.files[f"proc/{child}/io"] = "rchar: 0\nsyscr: 0\nread_bytes: 0"
    recorded.later[f"proc/{child}/stat"] = texts.stat(child, parent=JOB, major=900)
    recorded.later[f"proc/{child}/io"] = f"rchar: {90_000 << 11}\nsyscr: 90000\nread_bytes: 0"
    check = recorded.checks()[8]
    assert check.status == "warn"
    assert "31000 read calls/s of 35.0 KiB" in check.finding
    assert "300 pages/s of mapped files" in check.finding


def test_a_child_does_not_stand_for_the_job(recorded, texts):
    """What the job itself reads is not known because a child's reads are shown."""
    child = 4001
    for files in (recorded.files, recorded.later):
        files[f"proc/{child}/stat"] = texts.stat(child, parent=JOB)
    recorded.later |= {f"proc/{child}/io": f"rchar: {900 << 20}\nsyscr: 900\nread_bytes: 0"}
    recorded.files |= {f"proc/{child}/io": "rchar: 0\nsyscr: 0\nread_bytes: 0"}
    recorded.without(f"proc/{JOB}/io")
    check = recorded.checks()[8]
    assert check.status == "unknown"
    assert "what 1 of the job's 2 processes read is not shown" in check.finding


def test_files_opened_and_closed(recorded):
    """Open files that are all others than before point to one file a sample."""
    folder = recorded.root / f"proc/{JOB}/fd"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / str(number)).symlink_to(f"/data/{number}.jpg")
    machine = recorded.machine()
    change = machine.clock.change

    def reopen():
        change()
        for number in range(40):
            path = folder / str(number)
            path.unlink()
            path.symlink_to(f"/data/{number + int(machine.clock.time * 100)}.jpg")

    machine.clock.change = reopen
    check = {check.id: check for check in examine(machine.look()).checks}[8]
    assert check.status == "warn"
    assert "40 of the 40 files open" in check.finding


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


def test_c74_mig(recorded):
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


def test_container_without_sys(recorded):
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
