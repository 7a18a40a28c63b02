"""Why the loop waits for its input: the loss to the loader, given to its causes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastfeed.diagnosis.finding import (
    Verdict,
    copy_words,
    gain,
    least_share,
    ms,
    percent,
    stall_words,
)
from fastfeed.diagnosis.working import faulting_part, work_or_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.diagnosis.evidence import Evidence, Host

# Cores that must be at work beside the loop for its step to be slowed by that. What threads of the
# step take differs by a quarter of a core between its phases.
_AT_WORK: Final = 0.4
_PRESSED: Final = 0.1
_SWAPPING_PER_S: Final = 200.0
_FULL: Final = 0.03
_FAULTS_PER_S: Final = 100.0
# Bytes that are read from disks again and again, as a part of all that are read, and a second.
_AGAIN: Final = 0.5
_AGAIN_PER_S: Final = 5e6
_HELD: Final = 0.05
# A worker counts as slow if it is that busy, and the others are busy for so little of its time.
_SLOW_BUSY: Final = 0.7
_OTHERS_BUSY: Final = 0.6
_LATE: Final = 0.3
# All threads that need the GIL get one core together; some of their work does not need it.
_ONE_CORE: Final = 1.35
_COPYING: Final = 0.7


@dataclass(slots=True)
class _Split:
    """What is lost to the loader, as parts of the time, while causes take their parts of it."""

    waiting: float
    """The loop waits for batches."""
    slowed: float
    """The step takes longer while it is fed than from memory."""

    @property
    def whole(self) -> float:
        return self.waiting + self.slowed


def feed_losses(evidence: Evidence) -> Iterator[Verdict]:
    """Yield what the wait for input is lost to."""
    times = evidence.times
    lost = max(0.0, 1 - times.cached_s / times.real_s)
    waiting = min(lost, times.wait_s / times.real_s)
    # A step is slowed by those who work beside it; where nobody does, it is the machine's noise.
    beside = evidence.feed.other_cpu + sum(one.cpu or 0.0 for one in evidence.feed.workers)
    split = _Split(waiting=waiting, slowed=lost - waiting if beside >= _AT_WORK else 0.0)
    if split.whole < least_share(evidence):
        return
    for cause in (_memory, _copies, _slow_worker, _gil):
        verdict = cause(evidence, split)
        if verdict is not None:
            yield verdict
    yield from work_or_wait(evidence, waiting=split.waiting, slowed=split.slowed)


def _memory(evidence: Evidence, split: _Split) -> Verdict | None:
    host = evidence.host
    pressure = host.memory_pressure or 0.0
    full = host.available is not None and host.available < _FULL
    thrashing = host.swapped_per_s >= _SWAPPING_PER_S or (
        full and host.major_faults_per_s >= _FAULTS_PER_S
    )
    # Others of the machine stall as well: no more is ours than those who make batches may lack.
    faulting = faulting_part(evidence) * split.waiting
    pressure = min(pressure, faulting + split.slowed)
    if host.read_again >= _AGAIN and host.read_again_per_s >= _AGAIN_PER_S:
        # What would not be waited for if memory had kept what was read.
        pressure = max(pressure, host.read_again * faulting)
    if pressure < _PRESSED and not thrashing:
        return None
    share = split.whole if thrashing else min(split.whole, pressure)
    part = share / split.whole
    split.waiting, split.slowed = split.waiting * (1 - part), split.slowed * (1 - part)
    return Verdict(
        name="memory pressure",
        share_of_time_lost=share,
        why=tuple(_memory_words(evidence)),
        advice=_memory_advice(host),
        expected_gain=gain(share),
    )


def _memory_words(evidence: Evidence) -> Iterator[str]:
    host = evidence.host
    yield stall_words(evidence)
    yield (
        f"Tasks stood still for memory in {percent(host.memory_pressure or 0.0)} of the time; "
        f"{host.swapped_per_s:.0f} pages were swapped and {host.major_faults_per_s:.0f} read "
        "back a second."
    )
    if host.read_again_per_s >= _AGAIN_PER_S:
        yield (
            f"{host.read_again_per_s / 1e6:.0f} MB/s were read from disks again, "
            f"{percent(host.read_again)} of all: they had been in memory and were thrown out."
        )
    if host.available is not None:
        yield f"{percent(host.available)} of the memory is free, or filled with files."
    if host.held is not None:
        yield f"Batches that lie ready in the loader may take {percent(host.held)} of it."


def _memory_advice(host: Host) -> tuple[str, ...]:
    less = "Use fewer workers or a smaller prefetch_factor, and pin less (pinned_budget=)."
    more = "Give the job more memory: shards are fast while the page cache can hold them."
    # What the loader hardly takes it cannot give back.
    return (more, less) if host.held is not None and host.held < _HELD else (less, more)


def _copies(evidence: Evidence, split: _Split) -> Verdict | None:
    """The loader copies to the device itself, and the copies take the whole step."""
    gpu, times = evidence.gpu, evidence.times
    if gpu is None or not evidence.feed.to_device or gpu.copy_s < _COPYING * times.real_s:
        return None
    share, split.waiting = split.waiting, 0.0
    return Verdict(
        name="transfer-bound",
        share_of_time_lost=share,
        why=(
            stall_words(evidence),
            (
                f"Copies to the device run for {percent(gpu.copy_s / times.real_s)} of it: "
                f"{copy_words(gpu)}."
            ),
        ),
        advice=(
            "Send uint8 and normalise on the GPU, one copy a batch, from pinned memory.",
            "Look at the link: `fastfeed doctor`, checks 3 and 4.",
        ),
        expected_gain=gain(share),
    )


def _slow_worker(evidence: Evidence, split: _Split) -> Verdict | None:
    workers = evidence.feed.workers
    told = "busy"
    shares = [one.busy for one in workers if one.busy is not None]
    if len(shares) < len(workers):
        told = "computing"
        shares = [one.cpu for one in workers if one.cpu is not None]
    if len(shares) < 2 or len(shares) < len(workers):
        return None
    worst = max(range(len(shares)), key=shares.__getitem__)
    others = statistics.median(share for number, share in enumerate(shares) if number != worst)
    if shares[worst] < _SLOW_BUSY or others > _OTHERS_BUSY * shares[worst]:
        return None
    share = split.waiting * (1 - others / shares[worst])
    number = workers[worst].number
    split.waiting -= share
    return Verdict(
        name="one slow worker",
        share_of_time_lost=share,
        why=(
            stall_words(evidence),
            (
                f"Worker {number} is {told} for {percent(shares[worst])} of the time, the others "
                f"for {percent(others)} (median): they wait for it, since batches come in order."
            ),
            f"The loop waits {ms(workers[worst].wait_s)} when it is worker {number}'s turn.",
        ),
        advice=(
            (
                f"Look at what worker {number} does that the others don't: its part of the data, "
                "the core it is pinned to, a file on another disk."
            ),
            "If order does not matter, in_order=False lets the others go ahead.",
        ),
        expected_gain=gain(share),
    )


def _gil(evidence: Evidence, split: _Split) -> Verdict | None:
    feed, host = evidence.feed, evidence.host
    # The loop itself holds the GIL as in the ceiling phase while it is at work. While it waits it
    # does not, be it for a batch or, its step drawn out by that, for the GIL.
    times = evidence.times
    by_loop = host.late_ceiling * min(host.loop_at_work, 1 - times.wait_s / times.real_s)
    held_up = host.late >= max(_LATE, by_loop + _LATE / 2)
    if not held_up or feed.other_cpu > _ONE_CORE:
        return None
    if feed.kind == "thread":
        share, split.waiting, split.slowed = split.whole, 0.0, 0.0
        who = f"{feed.count} worker threads"
    elif split.slowed and feed.other_cpu >= _LATE:
        share, split.slowed = split.slowed, 0.0
        who = "threads beside the training loop"
    else:
        return None
    return Verdict(
        name="GIL",
        share_of_time_lost=share,
        why=(
            stall_words(evidence),
            (
                f"The {who} use {feed.other_cpu:.1f} cores together, and another thread that wants "
                f"to go on is held up {percent(host.late)} of the times "
                f"({percent(host.late_ceiling)} while they rest): Python runs one at a time."
            ),
        ),
        advice=(
            'Make the workers processes: worker_kind="process" (the default).'
            if feed.kind == "thread"
            else "Move that work to worker processes.",
            "Or do it in calls that release the GIL (numpy, decoders, torch), in larger pieces.",
        ),
        expected_gain=gain(share),
    )
