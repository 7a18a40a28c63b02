"""Everything one look at the machine saw: the only thing that the checks are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed.doctor.gpus import GpuFacts, GpuSample
    from fastfeed.doctor.kernels import Kernels
    from fastfeed.doctor.texts import Texts
    from fastfeed.topology import Cores, Locality


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen at one moment."""

    at: float
    """Seconds since the first round."""
    texts: Texts
    """What changes fast; the first and the last round hold everything else too."""
    gpus: tuple[GpuSample, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """The process whose feeding is looked at."""

    pid: int
    why: str
    """How it was chosen."""
    family: tuple[int, ...]
    """Itself first, then what it started, as far as they were looked at."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a machine."""

    rounds: tuple[Round, ...]
    gpus: tuple[GpuFacts, ...]
    no_gpus: str
    """Why NVML told of no GPU; empty if it did."""
    places: Mapping[str, Locality]
    """By PCI address: the GPUs of NVML, and without it those of sysfs."""
    job: Job | None
    no_job: str
    """Why no job was looked at; empty if one was."""
    cores: Cores
    """What this process, or the job, may use."""
    quota: float | None
    memory_left: int | None
    """Bytes that may still be taken here; None if the machine does not say."""
    local_ranks: int
    shm: int | None
    """Bytes that /dev/shm may hold."""
    cache: str
    """The folder of indexes and staged shards; empty if none is known."""
    kernels: Kernels | None
    """What a trace of the training step showed, if one was given."""

    @property
    def first(self) -> Texts:
        """What files said at first, those that do not change included."""
        return self.rounds[0].texts

    @property
    def last(self) -> Texts:
        """What files said in the end."""
        return self.rounds[-1].texts

    @property
    def seconds(self) -> float:
        """How long the look took."""
        return self.rounds[-1].at

    @property
    def who(self) -> str:
        """The folder of /proc of the job, or of this process without one."""
        return f"proc/{self.job.pid}" if self.job else "proc/self"

    def samples(self, index: int) -> list[GpuSample]:
        """Return what one GPU did in each round."""
        return [gpu for one in self.rounds for gpu in one.gpus if gpu.index == index]

    def busy(self, index: int) -> float | None:
        """Return the mean use of a GPU in per cent; None if it does not tell."""
        told = [gpu.busy for gpu in self.samples(index) if gpu.busy is not None]
        return sum(told) / len(told) if told else None
