"""What is said of a loader's work, as values: one delivery, and all of them at a moment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fastfeed.stats.depth import Depth
from fastfeed.stats.histogram import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed.stats.decoded import DecodedFacts

# Of the document that `to_json` makes; a name that is there stays and keeps its meaning.
_VERSION = 1


class Times(NamedTuple):
    """When a worker made a batch, and what it spent beside making batches.

    Moments are of `time.perf_counter`, which all processes of a machine share.
    """

    began: float = 0.0
    blocked_in_s: float = 0.0
    """It waited for this job."""
    blocked_out_s: float = 0.0
    """It waited for room to send the result before."""
    slots_s: float = 0.0
    """Laying out the batch in shared memory."""


class StageTimes(NamedTuple):
    """When the stage moved a batch to the device, and what it waited for since the one before."""

    began: float
    busy_s: float
    blocked_in_s: float
    """No batch was there."""
    blocked_out_s: float
    """Enough batches were on the device."""
    copying_s: float
    """Copies were under way, and no more are given to the link at a time."""
    lane: int = 0
    """Which of the threads it was that do this side by side."""


class Delivery(NamedTuple):
    """One batch that the loop was given."""

    asked: float
    """When the loop asked for it."""
    got: float
    """When it had it."""
    number: int
    samples: int
    nbytes: int
    copied: bool
    worker: int
    """Who made it, -1 for the trainer itself."""
    busy_s: float
    times: Times | tuple[float, ...] = Times()
    steps_s: Mapping[str, float] | None = None
    """Time by step, where the data set reports it."""
    stage: StageTimes | None = None

    @property
    def ready(self) -> float:
        """When it could be had."""
        if self.stage is not None:
            return self.stage.began + self.stage.busy_s
        return self.times[0] + self.busy_s


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What one worker did for the batches that the loop was given."""

    worker: int
    nbytes: int
    busy: Spread
    """Making batches."""
    blocked_in_s: float
    """Waiting for jobs: the loop had enough batches of it under way."""
    blocked_out_s: float
    """Waiting until the trainer took results in."""

    @property
    def batches(self) -> int:
        """How many batches it made."""
        return self.busy.count

    def since(self, before: WorkerFacts) -> WorkerFacts:
        """Return what came after an earlier look."""
        return WorkerFacts(
            worker=self.worker,
            nbytes=self.nbytes - before.nbytes,
            busy=self.busy.since(before.busy),
            blocked_in_s=self.blocked_in_s - before.blocked_in_s,
            blocked_out_s=self.blocked_out_s - before.blocked_out_s,
        )


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What the threads that move batches to the device did; in seconds, of all together."""

    batches: int
    busy_s: float
    blocked_in_s: float
    """No batch was there to be moved."""
    blocked_out_s: float
    """As many batches as may be were on the device, and the loop had yet to take one."""
    copying_s: float
    """It waited for copies under way."""

    def since(self, before: StageFacts) -> StageFacts:
        """Return what came after an earlier look."""
        return StageFacts(
            batches=self.batches - before.batches,
            busy_s=self.busy_s - before.busy_s,
            blocked_in_s=self.blocked_in_s - before.blocked_in_s,
            blocked_out_s=self.blocked_out_s - before.blocked_out_s,
            copying_s=self.copying_s - before.copying_s,
        )


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """How a loader uses its device."""

    name: str
    decoder: str | None
    """Which library decodes pictures there, None if none does."""
    rejected: tuple[tuple[str, str], ...]
    """Decoders that cannot be used, each with the reason."""
    share: float
    """Share of each batch that is left to it now."""
    pinned_nbytes: int
    unpinned_why: str | None
    """Why not all batches are copied from pinned memory, if so."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a loader did so far; times in seconds.

    `elapsed_s` runs from the first request for a batch to the last delivery, epochs' gaps
    included. `busy_s` is the time workers spent on the delivered batches, all workers together,
    and `steps_s` splits it by the steps of the path, `steps` says how each is spread over batches.
    Of pictures that were to be decoded on the device, `deferred` were, `refused` are of kinds that
    it does not do, and at `failed` of the deferred its decoder failed; the CPU made those.
    """

    batches: int
    samples: int
    nbytes: int
    copied: int
    elapsed_s: float
    waited_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wait_max_s: float
    busy_s: float
    steps_s: dict[str, float] = field(default_factory=dict)
    deferred: int = 0
    refused: int = 0
    failed: int = 0
    device: DeviceFacts | None = None
    wait: Spread = field(default_factory=Spread)
    """The loop's waits for a batch."""
    steps: dict[str, Spread] = field(default_factory=dict)
    blocked_in: Spread = field(default_factory=Spread)
    """The workers' waits for a job."""
    blocked_out: Spread = field(default_factory=Spread)
    """The time they took to send a batch."""
    workers: tuple[WorkerFacts, ...] = ()
    depth: Depth = field(default_factory=Depth)
    stage: StageFacts | None = None
    decoded: DecodedFacts | None = None
    """Of the cache of decoded samples, if there is one."""

    @property
    def samples_per_s(self) -> float:
        """Samples delivered in a second of the loop, waiting and training together."""
        return self.samples / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def waited_share(self) -> float:
        """Part of its time that the loop waited."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def blocked_in_s(self) -> float:
        """Time that workers waited for jobs, all workers together."""
        return self.blocked_in.total_s

    @property
    def blocked_out_s(self) -> float:
        """Time that workers waited until results were taken in, all workers together."""
        return self.blocked_out.total_s

    def since(self, before: Snapshot) -> Snapshot:
        """Return what came after an earlier look; what is known of the device is of now."""
        was = {worker.worker: worker for worker in before.workers}
        wait = self.wait.since(before.wait)
        steps = {
            name: spread.since(before.steps.get(name, Spread()))
            for name, spread in self.steps.items()
        }
        stage = self.stage
        if stage is not None and before.stage is not None:
            stage = stage.since(before.stage)
        decoded = self.decoded
        if decoded is not None and before.decoded is not None:
            decoded = decoded.since(before.decoded)
        counted = ("batches", "samples", "nbytes", "copied", "elapsed_s", "busy_s")
        numbers = {
            name: getattr(self, name) - getattr(before, name)
            for name in (*counted, "deferred", "refused", "failed")
        }
        return replace(
            self,
            **numbers,
            **waits_of(wait),
            blocked_in=self.blocked_in.since(before.blocked_in),
            blocked_out=self.blocked_out.since(before.blocked_out),
            steps=steps,
            steps_s={n: s - before.steps_s.get(n, 0.0) for n, s in self.steps_s.items()},
            workers=tuple(
                one.since(was[one.worker]) if one.worker in was else one for one in self.workers
            ),
            depth=self.depth.since(before.depth),
            stage=stage,
            decoded=decoded,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all of it in plain containers and numbers."""
        derived = ("samples_per_s", "waited_share", "blocked_in_s", "blocked_out_s")
        document = {"version": _VERSION, **asdict(self), **{n: getattr(self, n) for n in derived}}
        for worker, facts in zip(document["workers"], self.workers, strict=True):
            worker["batches"] = facts.batches
        if self.decoded is not None:
            document["decoded"]["saved_s"] = self.decoded.saved_s
        return document

    def to_json(self) -> str:
        """Return all of it as one JSON object; names that are there stay in later versions."""
        return json.dumps(self.as_dict())


def waits_of(wait: Spread) -> dict[str, Any]:
    """Return the fields of a snapshot that say what the loop's waits say."""
    return {
        "wait": wait,
        "waited_s": wait.total_s,
        "wait_p50_s": wait.p50_s,
        "wait_p95_s": wait.p95_s,
        "wait_p99_s": wait.p99_s,
        "wait_max_s": wait.max_s,
    }
