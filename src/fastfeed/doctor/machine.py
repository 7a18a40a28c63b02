"""The machine as the doctor looks at it: files under a root, GPUs, a clock; all is read only."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastfeed.doctor.parse import cgroup_levels, named_lists, task_stat
from fastfeed.doctor.seen import Job, Round, Seen
from fastfeed.doctor.texts import listed, numbers, read_texts
from fastfeed.errors import OptionError
from fastfeed.topology import (
    cgroup_quota,
    gpu_addresses,
    gpu_locality,
    local_rank,
    memory_limit,
    parse_cores,
    usable_cores,
)
from fastfeed.topology.numa import DEVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fastfeed.doctor.gpus import GpuSample, GpuSource
    from fastfeed.doctor.kernels import Kernels

LOOK_S = 3.0
"""How long one look takes, the reading itself apart."""
ROUND_S = 0.5

# A job of thousands of processes is told by its first ones; each costs a few reads.
_FAMILY = 256
_TASKS = 512
_DESCRIPTORS = 1024

_FAST = (
    "proc/stat",
    "proc/loadavg",
    "proc/diskstats",
    "proc/meminfo",
    "proc/pressure/cpu",
    "proc/pressure/io",
    "proc/pressure/memory",
)
_SLOW = ("proc/interrupts", "proc/vmstat", "proc/self/mountstats", "proc/self/limits")
_ONCE = (
    "proc/cpuinfo",
    "proc/sys/kernel/osrelease",
    "proc/sys/vm/dirty_ratio",
    "sys/devices/system/node/has_cpu",
    "sys/devices/system/node/online",
    "proc/self/status",
)
_CGROUP = {
    "cpu": ("cpu.stat", "cpu.max"),
    "memory": ("memory.pressure", "memory.events", "memory.current", "memory.max"),
}
_LINK = ("current_link_speed", "current_link_width")
_ABLE = ("max_link_speed", "max_link_width", "aer_dev_correctable")
_CORES = "sys/devices/system/cpu"
_FREQUENCY = (
    "scaling_governor",
    "scaling_driver",
    "energy_performance_preference",
    "scaling_cur_freq",
    "cpuinfo_max_freq",
)


class Clock(Protocol):
    """Time, so that a recorded machine needs none."""

    def now(self) -> float:
        """Return seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class SystemClock:
    """The time that passes."""

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


def filesystem_bytes(path: Path) -> int | None:
    """Return how many bytes the file system at a path may hold; None if there is none."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return facts.f_frsize * facts.f_blocks


@dataclass(frozen=True, slots=True)
class Machine:
    """Where to look."""

    root: Path = Path("/")
    gpus: GpuSource | None = None
    no_gpus: str = "NVML was not asked"
    """Why there is no source of GPUs."""
    clock: Clock = field(default_factory=SystemClock)
    environment: Mapping[str, str] = field(default_factory=dict)
    cache: str = ""
    capacity: Callable[[Path], int | None] = filesystem_bytes

    def look(
        self, *, pid: int | None = None, seconds: float = LOOK_S, kernels: Kernels | None = None
    ) -> Seen:
        """Look for some seconds; OptionError if there is no process `pid`.

        Without a `pid` the job is the process that holds most memory on a GPU.
        """
        facts = tuple(self.gpus.facts()) if self.gpus else ()
        samples = tuple(self.gpus.sample()) if self.gpus else ()
        job, no_job = self._job(pid, samples)
        # The others on the GPUs are only asked whether they are shown here.
        others = [f"proc/{one.pid}/stat" for gpu in samples for one in gpu.processes]
        addresses = tuple(gpu.address for gpu in facts if gpu.address) or gpu_addresses(self.root)
        rounds = self._rounds(seconds, [*self._names(job, addresses), *others], addresses)
        who = f"proc/{job.pid}" if job else "proc/self"
        status = named_lists(rounds[0].texts.of(f"{who}/status"))
        return Seen(
            rounds=rounds,
            gpus=facts,
            no_gpus="" if facts else self.no_gpus,
            places={address: gpu_locality(address, self.root) for address in addresses},
            job=job,
            no_job=no_job,
            cores=usable_cores(
                environment={},
                affinity=parse_cores(status.get("Cpus_allowed_list", "")) or {0},
                root=self.root,
            ),
            quota=cgroup_quota(self.root),
            memory_left=memory_limit(self.root),
            local_ranks=local_rank(self.environment).size,
            shm=self.capacity(self.root / "dev/shm"),
            cache=self.cache,
            kernels=kernels,
        )

    def _rounds(
        self, seconds: float, names: Sequence[str], addresses: Sequence[str]
    ) -> tuple[Round, ...]:
        """Read everything at first and in the end, and in between what changes fast."""
        fast = [*_FAST, *(f"{DEVICES}/{gpu}/{name}" for gpu in addresses for name in _LINK)]
        begin = self.clock.now()
        rounds: list[Round] = []
        while True:
            at = self.clock.now() - begin
            final = at >= seconds and len(rounds) > 0
            texts = read_texts(self.root, [*names, *fast] if final or not rounds else fast)
            samples = tuple(self.gpus.sample()) if self.gpus else ()
            rounds.append(Round(at, texts, samples))
            if final:
                return tuple(rounds)
            self.clock.sleep(min(ROUND_S, max(0.01, seconds - (self.clock.now() - begin))))

    def _job(self, pid: int | None, samples: Sequence[GpuSample]) -> tuple[Job | None, str]:
        """Return the job to look at, or why there is none."""
        if pid is not None:
            if not (self.root / f"proc/{pid}").is_dir():
                raise OptionError(
                    f"there is no process {pid}",
                    way_out="Give the number that `ps` shows here, of the training process",
                )
            return Job(pid, f"process {pid} as asked for", tuple(self._family(pid))), ""
        processes = [process for gpu in samples for process in gpu.processes]
        here = [one for one in processes if (self.root / f"proc/{one.pid}").is_dir()]
        if here:
            most = max(here, key=lambda one: one.memory or 0).pid
            why = f"process {most} holds the most memory on a GPU"
            return Job(most, why, tuple(self._family(most))), ""
        if processes:
            return None, "the processes on the GPUs are not shown here (a container's own numbers)"
        return None, "no process is shown to use a GPU (a container may hide them)"

    def _family(self, pid: int) -> Iterator[int]:
        """Yield a process and what it started, a limited number."""
        children: dict[int, list[int]] = {}
        everyone = [f"proc/{number}/stat" for number in numbers(self.root / "proc")]
        for name, text in read_texts(self.root, everyone).found.items():
            if stat := task_stat(text):
                children.setdefault(stat.parent, []).append(int(name.split("/")[1]))
        family, known = [pid], {pid}
        for member in family:
            if len(family) < _FAMILY:
                new = [child for child in children.get(member, []) if child not in known]
                family += new
                known.update(new)
        yield from family[:_FAMILY]

    def _names(self, job: Job | None, addresses: Sequence[str]) -> list[str]:
        """Return the files to read at first and in the end."""
        names = [*_SLOW, *_ONCE]
        who = f"proc/{job.pid}" if job else "proc/self"
        names.append(f"{who}/cgroup")
        cgroup = read_texts(self.root, [f"{who}/cgroup"]).of(f"{who}/cgroup")
        for controller, files in _CGROUP.items():
            for folder in cgroup_levels(cgroup, controller):
                names += [f"{folder}/{file}" for file in files]
        for address in addresses:
            names += [f"{DEVICES}/{address}/{name}" for name in _ABLE]
        cores = [name for name in listed(self.root / _CORES) if name[:3] == "cpu"]
        names += [
            f"{_CORES}/{core}/cpufreq/{name}"
            for core in cores
            if core[3:].isdigit()
            for name in _FREQUENCY
        ]
        return [*names, *self._of_job(job)] if job else names

    def _of_job(self, job: Job) -> Iterator[str]:
        folder = f"proc/{job.pid}"
        for name in ("status", "limits", "numa_maps", "mountstats"):
            yield f"{folder}/{name}"
        for task in numbers(self.root / folder / "task")[:_TASKS]:
            yield f"{folder}/task/{task}/stat"
        for member in job.family:
            yield f"proc/{member}/stat"
            yield f"proc/{member}/io"
        for member in job.family[:16]:
            for descriptor in numbers(self.root / f"proc/{member}/fd")[:_DESCRIPTORS]:
                yield f"proc/{member}/fd/{descriptor}"
