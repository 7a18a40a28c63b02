"""Waits and work, measured at the hand-offs between the workers and the training loop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

# Four buckets an octave from a microsecond up: a percentile is right within 19 %.
_PER_OCTAVE = 4
_FIRST_S = 1e-6
_BUCKETS = 40 * _PER_OCTAVE


class Waits:
    """Durations counted on a logarithmic scale: bounded memory however long the run."""

    __slots__ = ("_counts", "count", "longest_s", "total_s")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        bucket = 0
        if seconds > _FIRST_S:
            bucket = min(_BUCKETS - 1, int(math.log2(seconds / _FIRST_S) * _PER_OCTAVE))
        self._counts[bucket] += 1
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def percentile(self, percent: float) -> float:
        """Return the duration in seconds that `percent` of all did not exceed; 0.0 if none."""
        left = math.ceil(self.count * percent / 100)
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0 and self.count:
                upper = _FIRST_S * 2 ** ((bucket + 1) / _PER_OCTAVE)
                return min(upper, self.longest_s)
        return 0.0


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
    and `steps_s` splits it by the steps of the path where the data set reports them. Of pictures
    that were to be decoded on the device, `deferred` were, `refused` are of kinds that it does not
    do, and at `failed` of the deferred its decoder failed; the CPU made those.
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

    @property
    def samples_per_s(self) -> float:
        """Samples delivered in a second of the loop, waiting and training together."""
        return self.samples / self.elapsed_s if self.elapsed_s else 0.0


class Stats:
    """Counts one loader's deliveries; written by the consumer's thread only."""

    def __init__(self) -> None:
        self._waits = Waits()
        self._started: float | None = None
        self._last = 0.0
        self._samples = self._nbytes = self._copied = 0
        self._busy_s = 0.0
        self._steps_s: dict[str, float] = {}
        self._deferred = self._refused = self._failed = 0

    def delivered(
        self, *, wait_s: float, busy_s: float, samples: int, nbytes: int, copied: bool
    ) -> None:
        """Count a batch that was just handed to the training loop."""
        now = time.perf_counter()
        if self._started is None:
            self._started = now - wait_s
        self._last = now
        self._waits.add(wait_s)
        self._busy_s += busy_s
        self._samples += samples
        self._nbytes += nbytes
        self._copied += copied

    def spent(self, step: str, seconds: float) -> None:
        """Count time that workers spent in one step of the path."""
        self._steps_s[step] = self._steps_s.get(step, 0.0) + seconds

    def left_to_device(self, *, deferred: int, refused: int, failed: int) -> None:
        """Count samples by what became of their decoding on the device."""
        self._deferred += deferred
        self._refused += refused
        self._failed += failed

    def snapshot(self, device: DeviceFacts | None = None) -> Snapshot:
        """Return the counts so far, with what is known of the device."""
        waits = self._waits
        return Snapshot(
            batches=waits.count,
            samples=self._samples,
            nbytes=self._nbytes,
            copied=self._copied,
            elapsed_s=self._last - self._started if self._started is not None else 0.0,
            waited_s=waits.total_s,
            wait_p50_s=waits.percentile(50),
            wait_p95_s=waits.percentile(95),
            wait_p99_s=waits.percentile(99),
            wait_max_s=waits.longest_s,
            busy_s=self._busy_s,
            steps_s=dict(self._steps_s),
            deferred=self._deferred,
            refused=self._refused,
            failed=self._failed,
            device=device,
        )


def describe(snapshot: Snapshot, *, workers: int, in_use: int | None = None) -> str:
    """Return the report a person reads: rates, waits, where the time went, and what that means."""
    if not snapshot.batches:
        return "fastfeed: no batch was delivered yet"
    share = snapshot.waited_s / snapshot.elapsed_s if snapshot.elapsed_s else 0.0
    hands = f"{int(workers)} workers"
    if in_use is not None and in_use != workers:
        hands = f"{in_use} of {hands} in use (num_workers={in_use} pins that)"
    lines = [
        (
            f"fastfeed: {snapshot.samples:,} samples in {snapshot.batches:,} batches, "
            f"{snapshot.samples_per_s:,.0f} samples/s, {snapshot.nbytes / 1e6:,.1f} MB, "
            f"{hands}"
        ),
        (
            f"  wait for a batch: p50 {_ms(snapshot.wait_p50_s)}, p95 {_ms(snapshot.wait_p95_s)}, "
            f"p99 {_ms(snapshot.wait_p99_s)}, max {_ms(snapshot.wait_max_s)}"
        ),
    ]
    if snapshot.steps_s:
        total = sum(snapshot.steps_s.values()) or 1.0
        parts = ", ".join(
            f"{step} {seconds:.2f} s ({seconds / total:.0%})"
            for step, seconds in snapshot.steps_s.items()
        )
        lines.append(f"  workers' time by step: {parts}")
    elif snapshot.busy_s:
        lines.append(f"  workers' time: {snapshot.busy_s:.2f} s")
    if snapshot.device is not None:
        lines.append(f"  {_of_device(snapshot, snapshot.device)}")
    if snapshot.copied:
        lines.append(f"  {snapshot.copied:,} batches were copied because many were kept at a time")
    lines.append(f"  {_verdict(share)}")
    return "\n".join(lines)


def _of_device(snapshot: Snapshot, device: DeviceFacts) -> str:
    words = [f"{device.name}: {device.pinned_nbytes / 2**20:,.0f} MiB pinned"]
    if device.unpinned_why:
        words.append(f"no more because {device.unpinned_why}")
    if device.decoder is not None:
        words.append(
            f"{device.decoder} decoded {snapshot.deferred - snapshot.failed:,} pictures, "
            f"{device.share:.0%} of a batch now"
        )
    if snapshot.refused or snapshot.failed:
        words.append(
            f"{snapshot.refused:,} are of kinds that it does not do and it failed at "
            f"{snapshot.failed:,}: the CPU made those"
        )
    return ", ".join(words)


def _verdict(share: float) -> str:
    if share < 0.05:
        return f"The loop waited for data {share:.0%} of its time: the loader keeps up."
    if share < 0.5:
        return f"The loop waited for data {share:.0%} of its time: more workers may help."
    return f"The loop waited for data {share:.0%} of its time: loading is the bottleneck."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
