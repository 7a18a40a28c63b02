"""From what the rounds measured to evidence; pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from fastfeed.diagnosis.code import code_of
from fastfeed.diagnosis.evidence import Feed, Host, Times, Waits, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastfeed.diagnosis.counters import Counters
    from fastfeed.diagnosis.feeder import Feeder, Taken
    from fastfeed.diagnosis.rounds import Phase, Rounds, Stretches
    from fastfeed.stats import Waits as Counted

# A wake-up is rare on a quiet machine; fewer say nothing of how often it is late.
_WOKEN: Final = 20
# Standard deviations in a median deviation.
_SIGMA: Final = 1.5


def times_of(stretches: Mapping[Phase, Stretches]) -> Times:
    """Return the medians of the rounds, and how far the rounds lie apart."""
    real = stretches["real"]
    middle = statistics.median(real.seconds)
    ceiling, cached = stretches["ceiling"], stretches["cached"]
    # What is lost is a ratio of phases, each round its own; a round that was disturbed as a whole
    # does not count.
    parts = [
        [one / fed for one, fed in zip(phase.seconds, real.seconds, strict=True)]
        for phase in (ceiling, cached)
    ]
    return Times(
        ceiling_s=statistics.median(parts[0]) * middle,
        cached_s=statistics.median(parts[1]) * middle,
        real_s=middle,
        wait_s=statistics.median(real.waited),
        noise=max(map(_deviation, parts)),
    )


def _deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return _SIGMA * statistics.median(abs(value - middle) for value in values)


def waits_of(counted: Counted) -> Waits:
    """Return the percentiles of the waits."""
    p50, p95, p99 = (counted.percentile(percent) for percent in (50, 95, 99))
    return Waits(p50, p95, p99, counted.longest_s)


def feed_of(rounds: Rounds, feeder: Feeder, *, to_device: bool) -> Feed:
    """Return what the loader did in the real phase."""
    real = rounds.stretches["real"].counters
    seconds = real.get("seconds", 0.0) or 1.0
    calls, read = real.get("read calls"), real.get("read bytes")
    received = real.get("received bytes")
    others, queued = _others(rounds)
    return Feed(
        kind=feeder.kind,
        count=feeder.count,
        tuned=feeder.tuned,
        workers=workers_of(
            real, rounds.turns, count=feeder.count, seconds=seconds, in_turn=feeder.in_turn
        ),
        wait_cpu=_part_of_wait(rounds),
        other_cpu=others / seconds,
        other_queued=queued / seconds,
        bytes_per_read=read / calls if read is not None and calls else None,
        read_per_s=None if read is None else read / seconds,
        received_per_s=None if received is None else received / seconds,
        reading=_reading(real),
        waits_in=rounds.looks.parts(ours=feeder.kind != "process"),
        code=code_of(feeder.loader),
        steps=steps_of(real),
        shards=feeder.shards,
        to_device=to_device,
    )


def _others(rounds: Rounds) -> tuple[float, float]:
    """Return the seconds that other threads than the loop computed and queued in the real phase.

    Threads of the step's own are none of them: they do the same for each step of the ceiling phase.
    """
    cpu, queued = 0.0, 0.0
    real, ceiling = rounds.stretches["real"], rounds.stretches["ceiling"]
    for stretch, sign in ((real, 1.0), (ceiling, -real.steps / max(1, ceiling.steps))):
        found = stretch.counters
        loop = found.get("loop user", 0.0) + found.get("loop system", 0.0)
        cpu += sign * max(0.0, found.get("process", 0.0) - loop)
        queued += sign * max(0.0, found.get("process queued", 0.0) - found.get("loop queued", 0.0))
    return max(0.0, cpu), max(0.0, queued)


def workers_of(
    counters: Counters,
    turns: Mapping[int, Sequence[Taken]],
    *,
    count: int,
    seconds: float,
    in_turn: bool,
) -> tuple[Worker, ...]:
    """Return each worker that made batches; none if nothing tells them apart."""
    workers = []
    for number in range(count):
        waits = [one.wait_s for one in turns.get(number, ()) if not one.pause_s]
        busy, cpu, system, queued = (
            counters.get(f"worker {number} {what}") for what in ("busy", "cpu", "system", "queued")
        )
        rests = counters.get(f"worker {number} batches", 1.0) == 0
        if rests or (busy is None and cpu is None):
            continue
        workers.append(
            Worker(
                number=number,
                cpu=None if cpu is None else cpu / seconds,
                system=None if system is None else system / seconds,
                queued=None if queued is None else queued / seconds,
                busy=None if busy is None else min(1.0, busy / seconds),
                wait_s=statistics.mean(waits) if waits and in_turn else 0.0,
            )
        )
    return tuple(workers)


def steps_of(counters: Counters) -> tuple[tuple[str, float], ...]:
    """Return the part that each step of the path has in the time of all, the largest first."""
    spent = {
        name.removeprefix("step "): value
        for name, value in counters.items()
        if name.startswith("step ") and value > 0
    }
    whole = sum(spent.values())
    return tuple(
        (name, value / whole) for name, value in sorted(spent.items(), key=lambda one: -one[1])
    )


def _reading(counters: Counters) -> float | None:
    busy, read = counters.get("busy"), counters.get("step read")
    return min(1.0, read / busy) if busy and read is not None else None


def host_of(
    stretches: Mapping[Phase, Stretches],
    *,
    cores: float,
    available: float | None,
    held: float | None = None,
) -> Host:
    """Return what the machine did: the loop in the ceiling phase, the rest in the real one."""
    real, ceiling = stretches["real"], stretches["ceiling"]
    counters, alone = real.counters, ceiling.counters
    seconds = counters.get("seconds", 0.0) or 1.0
    in_ceiling = alone.get("seconds", 0.0) or 1.0
    system = alone.get("loop system", 0.0)
    at_work, at_work_alone = _at_work(counters) / seconds, _at_work(alone) / in_ceiling

    def part(name: str) -> float | None:
        return min(1.0, counters[name] / seconds) if name in counters else None

    whole = counters.get("cores")
    read = counters.get("read from disks", 0.0)
    return Host(
        cores=cores,
        loop_cpu=min(1.0, (alone.get("loop user", 0.0) + system) / in_ceiling),
        loop_system=min(1.0, system / in_ceiling),
        late=_late(real),
        late_ceiling=_late(ceiling),
        # The longest pause may have fallen into so short a time by chance.
        collecting=min(1.0, (real.probe.collecting_s - real.probe.longest_s) / seconds),
        longest_collection_s=real.probe.longest_s,
        loop_at_work=min(1.0, at_work / at_work_alone) if at_work_alone else 1.0,
        cpu_pressure=part("stalled cpu"),
        io_pressure=part("stalled io"),
        memory_pressure=max(
            (part(name) or 0.0 for name in counters if name.startswith("stalled memory")),
            default=None,
        ),
        iowait=counters["iowait"] / whole if whole and "iowait" in counters else None,
        available=available,
        held=held,
        read_again=min(1.0, counters.get("read again", 0.0) / read) if read else 0.0,
        read_again_per_s=counters.get("read again", 0.0) / seconds,
        swapped_per_s=counters.get("swapped", 0.0) / seconds,
        major_faults_per_s=counters.get("major faults", 0.0) / seconds,
        throttled=_throttled(counters),
    )


def _at_work(counters: Counters) -> float:
    return sum(counters.get(f"loop {what}", 0.0) for what in ("user", "system", "queued"))


def _late(stretch: Stretches) -> float:
    return stretch.probe.late if stretch.probe.woken >= _WOKEN else 0.0


def _throttled(counters: Counters) -> float | None:
    """Return the part of the periods in which the tightest level stopped the job."""
    parts = [
        counters.get(f"throttled {name.removeprefix('periods ')}", 0.0) / periods
        for name, periods in counters.items()
        if name.startswith("periods ") and periods
    ]
    return max(parts, default=None)


def _part_of_wait(rounds: Rounds) -> float:
    """Return for which part of the waits the waiting thread computed itself."""
    taken = [one for turns in rounds.turns.values() for one in turns if not one.pause_s]
    waited = sum(one.wait_s for one in taken)
    return min(1.0, sum(one.wait_cpu_s for one in taken) / waited) if waited else 0.0
