"""What was measured of a job: the only thing that the verdicts are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["none", "process", "thread"]


@dataclass(frozen=True, slots=True)
class Times:
    """How long one step took in each phase, in seconds; medians over the rounds."""

    ceiling_s: float
    """The step on one batch that is already there."""
    cached_s: float
    """The step on batches kept in memory."""
    real_s: float
    """The step on batches from the loader, the wait for them included."""
    wait_s: float
    """The part of `real_s` in which the loop waited for a batch."""
    noise: float
    """By how much the rounds differed from one another, as a part of `real_s`."""

    @property
    def au(self) -> float:
        """The rate with the loader over the rate without: accelerator utilisation as fed."""
        return min(1.0, self.ceiling_s / self.real_s)


@dataclass(frozen=True, slots=True)
class Waits:
    """The loop's waits for a batch, in seconds."""

    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker while the loop was fed for real; parts of the time."""

    number: int
    cpu: float | None
    """It computed, in user and system time; in cores."""
    system: float | None
    """The part of `cpu` that the system took."""
    queued: float | None
    """It could have run, but no core was free."""
    busy: float | None
    """It worked on batches, as the loader says; None where the loader does not say."""
    wait_s: float
    """How long the loop waited on average when it was this worker's turn."""


@dataclass(frozen=True, slots=True)
class Feed:
    """The loader while the loop was fed for real."""

    kind: Kind
    count: int
    """Workers that the loader has."""
    workers: tuple[Worker, ...] = ()
    """One by one, where they can be told apart."""
    wait_cpu: float = 0.0
    """Part of the wait in which the waiting thread itself computed, or queued for a core to."""
    other_cpu: float = 0.0
    """Cores that other threads of the trainer's process used."""
    other_queued: float = 0.0
    """And those that they queued for."""
    bytes_per_read: float | None = None
    read_per_s: float | None = None
    """Bytes read in a second, from whatever file or pipe."""
    received_per_s: float | None = None
    """Bytes that came over the machine's network in a second, its own included."""
    reading: float | None = None
    """Part of the makers' time that the loader's own reads took; None where it reads nothing."""
    waits_in: tuple[tuple[str, float], ...] = ()
    """What the makers waited in while they were off the cores, as parts of the looks at them."""
    code: str = ""
    """The user's functions that make samples, with file and line."""
    steps: tuple[tuple[str, float], ...] = ()
    """The parts that the steps of the path have in the workers' time, where the loader says so."""
    tuned: bool = False
    """Whether the loader finds the number of workers itself."""
    shards: bool = False
    """Whether its samples are those of a `ShardDataset`."""
    to_device: bool = False
    """Whether the loader brings batches to the device itself."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine while the loop was fed for real; parts of the time where nothing else is said."""

    cores: float
    """Cores that the process may use."""
    loop_cpu: float
    """The training thread computed, in the ceiling phase."""
    loop_system: float
    """The part of `loop_cpu` that system and driver took."""
    late: float = 0.0
    """Of the times that a thread of ours wanted to go on, how often it was held up for long."""
    late_ceiling: float = 0.0
    """The same in the ceiling phase."""
    collecting: float = 0.0
    """Python's garbage collector stopped the process, the longest pause left out."""
    longest_collection_s: float = 0.0
    loop_at_work: float = 1.0
    """Time in which the loop computed, or queued for a core to, over that in the ceiling phase."""
    cpu_pressure: float | None = None
    io_pressure: float | None = None
    memory_pressure: float | None = None
    """Time in which tasks stood still for want of memory, the machine's or the container's."""
    iowait: float | None = None
    available: float | None = None
    """What is left of the memory, the machine's or the container's, as a part of it."""
    held: float | None = None
    """What the loader's batches that lie ready may take, as a part of the same memory."""
    read_again: float = 0.0
    """Bytes read from disks that had been in memory before, as a part of all that were read."""
    read_again_per_s: float = 0.0
    swapped_per_s: float = 0.0
    """Pages swapped."""
    major_faults_per_s: float = 0.0
    """Pages that the job had to wait for from disk."""
    throttled: float | None = None
    """Periods in which the container's quota stopped its processes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step gets, and how its time follows the size of that."""

    samples: int
    fixed: float | None = None
    """Part of the step's time that stays when the batch has half or twice the size."""
    how: str = ""
    """How `fixed` was measured, or why it was not."""


@dataclass(frozen=True, slots=True)
class Ops:
    """The operators that the host ran in a step of the ceiling phase."""

    a_step: float
    median_us: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU in the ceiling phase, and the copies to it in the real one."""

    name: str
    kernels_a_step: float
    median_us: float
    gap_us: float
    busy: float
    """Part of the step in which a kernel ran."""
    sync_gaps: float
    """Part of the gaps before which the host was waiting for the GPU, by length."""
    syncs_a_step: float
    sync_names: tuple[str, ...] = ()
    filled: float = 1.0
    """How much of the GPU's processors the kernels had blocks for, on average over their time."""
    copies_a_step: float = 0.0
    copied_bytes: float = 0.0
    """To the device, a step."""
    copy_s: float = 0.0
    """Time that these copies took, a step."""
    pageable: float = 0.0
    """Part of those bytes that came from memory that is not pinned."""
    memory_used: float = 0.0
    """Most of the device's memory that tensors took, as a part of all."""
    dram: float | None = None
    """Traffic of the device's memory over its most; None where it is not counted."""
    tensor: float | None = None
    """Use of the tensor cores; likewise."""
    uncounted: str = ""
    """Why neither is counted."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was measured of one job."""

    times: Times
    waits: Waits
    feed: Feed
    host: Host
    batch: Batch
    ops: Ops | None = None
    gpu: Gpu | None = None
    rounds: int = 0
    steps: int = 0
    """Steps of all phases that were measured."""
    restarts_s: float = 0.0
    """Time that the beginnings of epochs took; no part of the times."""
    unseen: tuple[str, ...] = ()
    """What could not be looked at, each with the reason."""
