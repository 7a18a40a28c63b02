"""Recorded machines: small trees of /proc and /sys that change while time passes, and GPUs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fastfeed.doctor.gpus import GpuFacts, GpuProcess, GpuSample
from fastfeed.doctor.kernels import Kernels
from fastfeed.doctor.machine import Machine
from fastfeed.doctor.report import examine

GIB = 1 << 30
ADDRESSES = ("0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0")
JOB = 4000
LISTS = ("0-7", "8-15")


class RecordedClock:
    """Time that passes only when one sleeps; then the tree changes, as if the machine went on."""

    def __init__(self, change=lambda: None):
        self.time = 100.0
        self.change = change

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds
        self.change()


class RecordedGpus:
    """GPUs that repeat the samples they were given."""

    def __init__(self, facts, samples):
        self._facts = facts
        self._rounds = itertools.cycle(samples)

    def facts(self):
        return self._facts

    def sample(self):
        return next(self._rounds)


def cpu_lines(busy, ticks, system=0.25):
    """/proc/stat of cores that were busy for these parts of `ticks` ticks."""
    lines = []
    for core, part in enumerate(busy):
        work = int(part * ticks)
        kernel = int(work * system)
        lines.append(
            f"cpu{core} {1000 + work - kernel} 0 {1000 + kernel} {9000 + ticks - work} 0 0 0 0 0 0"
        )
    total = [sum(int(line.split()[i]) for line in lines) for i in range(1, 11)]
    return "\n".join([f"cpu  {' '.join(map(str, total))}", *lines, "ctxt 1", "processes 2"])


def psi(total):
    half = f"avg10=0.00 avg60=0.00 avg300=0.00 total={total}"
    return f"some {half}\nfull {half}"


def stat_line(pid, *, parent=1, name="python", user=100, system=10, core=2, minor=0, major=0):
    before = f"{parent} {pid} {pid} 0 -1 4194304 {minor} 0 {major} 0 {user} {system} 0 0 20 0 8 0"
    return f"{pid} ({name}) S {before} 100 1000 100 1844 {' '.join(['0'] * 13)} {core} 0 0 0 0"


def disk_line(reads, read_ms, *, kilobytes=512, busy=0):
    sectors = reads * kilobytes * 2
    return f" 259 0 nvme0n1 {reads} 0 {sectors} {read_ms} 10 0 80 5 0 {busy} {read_ms} 0 0 0 0"


def meminfo(available, *, dirty=0, locked=0):
    return (
        f"MemTotal: {256 << 20} kB\nMemFree: 1000 kB\nMemAvailable: {available * (1 << 20)} kB\n"
        f"Dirty: {dirty << 20} kB\nWriteback: 0 kB\nMlocked: {locked << 20} kB\n"
        f"Unevictable: {locked << 20} kB"
    )


def job_files(user, system, core, calls):
    return {
        f"proc/{JOB}/stat": stat_line(JOB, user=user, system=system, core=core),
        f"proc/{JOB}/task/{JOB}/stat": stat_line(JOB, user=user, system=system, core=core),
        f"proc/{JOB}/io": f"rchar: {calls << 20}\nwchar: 5\nsyscr: {calls}\nsyscw: 1\n"
        f"read_bytes: {calls << 20}\nwrite_bytes: 0\ncancelled_write_bytes: 0",
    }


def healthy_files():
    """Two sockets of eight cores, four GPUs, a job on the first node that reads a MiB a call."""
    files = {
        "proc/stat": cpu_lines([0.0] * 16, 0),
        "proc/loadavg": "1.00 1.00 1.00 3/900 12345",
        "proc/diskstats": disk_line(1000, 500),
        "proc/meminfo": meminfo(200),
        "proc/pressure/cpu": psi(0),
        "proc/pressure/io": psi(0),
        "proc/pressure/memory": psi(0),
        "proc/interrupts": "  CPU0 CPU1\n 24: 100 100 IR-PCI-MSI nvme0q0\nLOC: 5 5 timers",
        "proc/vmstat": "pswpin 0\npswpout 0\noom_kill 0",
        "proc/self/mountstats": "device /dev/nvme0n1 mounted on / with fstype ext4\n"
        "device tmpfs mounted on /dev/shm with fstype tmpfs",
        "proc/self/limits": "Max locked memory         unlimited            unlimited      bytes",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1",
        "proc/self/cgroup": "0::/job",
        "proc/cpuinfo": "processor: 0\nmodel name\t: A CPU of 16 cores",
        "proc/sys/kernel/osrelease": "6.1.0",
        "proc/sys/vm/dirty_ratio": "20",
        "sys/devices/system/node/has_cpu": "0-1",
        "sys/devices/system/node/online": "0-1",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 1\nnr_periods 100\nnr_throttled 0",
        "sys/fs/cgroup/job/cpu.max": "max 100000",
        "sys/fs/cgroup/job/memory.pressure": psi(0),
        "sys/fs/cgroup/job/memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
        "sys/fs/cgroup/job/memory.max": "max",
        f"proc/{JOB}/status": "Name:\tpython\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1",
        f"proc/{JOB}/cgroup": "0::/job",
        f"proc/{JOB}/numa_maps": "7f00 default anon=1000 dirty=1000 N0=1000 kernelpagesize_kB=4",
        "dev/shm/.keep": "",
    }
    files |= job_files(100, 10, 2, 1000)
    for node, cores in enumerate(LISTS):
        files[f"sys/devices/system/node/node{node}/cpulist"] = cores
    for core in range(16):
        folder = f"sys/devices/system/cpu/cpu{core}/cpufreq"
        files[f"{folder}/scaling_governor"] = "performance"
        files[f"{folder}/scaling_driver"] = "acpi-cpufreq"
        files[f"{folder}/scaling_cur_freq"] = "3000000"
        files[f"{folder}/cpuinfo_max_freq"] = "3000000"
    for i, address in enumerate(ADDRESSES):
        for name, text in {
            "vendor": "0x10de",
            "class": "0x030200",
            "numa_node": i // 2,
            "local_cpulist": LISTS[i // 2],
            "current_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
            "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0",
        }.items():
            files[f"sys/bus/pci/devices/{address}/{name}"] = str(text)
    return files


def healthy_later():
    """What three seconds change on that machine."""
    return {
        "proc/stat": cpu_lines([0.4] * 16, 300),
        "proc/diskstats": disk_line(4000, 2000, busy=500),
        "proc/interrupts": "  CPU0 CPU1\n 24: 200 190 IR-PCI-MSI nvme0q0\nLOC: 50 50 timers",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nnr_periods 130\nnr_throttled 0",
        **job_files(200, 20, 2, 4000),
    }


def healthy_gpus():
    """Four GPUs that compute nine tenths of the time, the first for the job."""
    facts = tuple(
        GpuFacts(
            i,
            "NVIDIA H200",
            address,
            driver="575.1",
            memory=141 * GIB,
            generation_most=5,
            generation_able=5,
            width_most=16,
            clock_most=1980,
            clock_asked=1980,
            power_limit=700.0,
            power_default=700.0,
            mig=False,
            persistent=True,
            others=tuple((j, "NUMA nodes") for j in range(4) if j != i),
        )
        for i, address in enumerate(ADDRESSES)
    )
    samples = tuple(
        GpuSample(
            i,
            busy=93,
            memory_busy=50,
            memory_used=80 * GIB,
            clock=1900,
            power=550.0,
            temperature=60,
            state=0,
            reasons=0,
            generation=5,
            width=16,
            replays=0,
            received=1 << 30,
            sent=1 << 20,
            processes=(GpuProcess(JOB, 80 * GIB, 93),) if i == 0 else (),
        )
        for i in range(4)
    )
    return facts, samples


KERNELS = Kernels(4000, 10, 80.0, 0.97, 2.0)


class Recorded:
    """A machine of a recorded tree; without changes it is the healthy one of four GPUs."""

    def __init__(self, root):
        self.root = root
        self.files = healthy_files()
        self.later = healthy_later()
        self.facts, samples = healthy_gpus()
        self.rounds = [samples]
        self.kernels = KERNELS
        self.shm = 64 * GIB
        self.cache = "/home/someone/.cache/fastfeed"
        self._written = {}

    def without(self, *starts):
        """Take files away."""
        for files in (self.files, self.later):
            for name in [name for name in files if name.startswith(starts)]:
                del files[name]

    def gpu(self, **changes):
        """Change what the first GPU does, in all rounds."""
        self.rounds = [(replace(gpus[0], **changes), *gpus[1:]) for gpus in self.rounds]

    def gpu_facts(self, **changes):
        """Change what the first GPU is."""
        self.facts = (replace(self.facts[0], **changes), *self.facts[1:])

    def write(self, files):
        """Write those files that are not there already."""
        for name, text in files.items():
            if self._written.get(name) != text:
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
                self._written[name] = text

    def machine(self):
        self.write(self.files)
        return Machine(
            root=self.root,
            gpus=RecordedGpus(self.facts, self.rounds) if self.facts else None,
            no_gpus="NVML does not answer",
            clock=RecordedClock(lambda: self.write(self.later)),
            cache=self.cache,
            capacity=lambda path: self.shm,
        )

    def look(self, **options):
        return self.machine().look(**{"kernels": self.kernels} | options)

    def checks(self, **options):
        """Return the checks by number."""
        return {check.id: check for check in examine(self.look(**options)).checks}


@pytest.fixture
def recorded(tmp_path):
    """The healthy node, to be spoiled."""
    return Recorded(tmp_path / "machine")


@pytest.fixture
def only():
    """Assert that of some checks these and no others found something, or could not see."""

    def check_only(checks, *bad):
        found = {number: one.finding for number, one in checks.items() if one.status != "ok"}
        assert found.keys() == set(bad), found

    return check_only


@pytest.fixture
def texts():
    """Functions that write files of /proc as the kernel does."""
    import types

    return types.SimpleNamespace(
        cpu=cpu_lines, psi=psi, stat=stat_line, disk=disk_line, meminfo=meminfo, job=job_files
    )
