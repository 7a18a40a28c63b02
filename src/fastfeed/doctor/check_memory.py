"""Check 14: memory that is left, pressure on it, and what may be pinned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.doctor.parse import cgroup_levels, counts, grown, limit_of, pressure
from fastfeed.topology import pinned_budget
from fastfeed.topology.files import positive

if TYPE_CHECKING:
    from fastfeed.doctor.seen import Seen

_LEAST: Final = 0.05
_LITTLE: Final = 0.1
_STALLED: Final = 0.02
_PINNED: Final = 0.25
# torch's own loader passes batches through it; containers get 64 MB unless told otherwise.
_SHM: Final = 1 << 30
_SHRINK = "pin less (pinned budget), use fewer workers, prefetch less; page cache feeds shards"


def check_memory(seen: Seen) -> Check:
    """Look at what is left, what stalls, and what pinning has taken or may take (14)."""
    findings = Findings(14, "memory and pinning")
    facts = counts(seen.last.of("proc/meminfo"))
    total, available = facts.get("MemTotal"), facts.get("MemAvailable")
    if total and available is not None:
        _add_left(findings, seen, total, available)
        _add_dirty(findings, seen, facts, total)
        _add_locked(findings, facts, total)
    else:
        why = seen.last.why("proc/meminfo")
        findings.add("unknown", f"what memory is left is not known ({why})")
    _add_pressure(findings, seen)
    _add_events(findings, seen)
    _add_limits(findings, seen)
    return findings.check("memory is free and nothing waits for it")


def _add_left(findings: Findings, seen: Seen, total: int, available: int) -> None:
    findings.figure("memory, GiB", total / 2**30)
    findings.figure("memory available, GiB", available / 2**30)
    findings.figure(
        "memory that may still be taken here, GiB",
        None if seen.memory_left is None else seen.memory_left / 2**30,
    )
    share = available / total
    if share < _LITTLE:
        findings.add(
            "bad" if share < _LEAST else "warn",
            f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB are available ({share:.0%})",
            _SHRINK,
        )


def _add_dirty(findings: Findings, seen: Seen, facts: dict[str, int], total: int) -> None:
    dirty = facts.get("Dirty", 0) + facts.get("Writeback", 0)
    findings.figure("waiting to be written, MiB", dirty >> 20)
    # At the kernel's ratio writers are made to wait; half of it is on the way there.
    ratio = positive(seen.first.of("proc/sys/vm/dirty_ratio")) or 20
    if dirty > total * ratio / 200:
        findings.add(
            "warn",
            f"{dirty / 2**30:.1f} GiB wait to be written, writers stop at {ratio} % of memory",
            "something writes faster than the disk: checkpoints, logs, or staging",
        )


def _add_locked(findings: Findings, facts: dict[str, int], total: int) -> None:
    locked = max(facts.get("Mlocked", 0), facts.get("Unevictable", 0))
    findings.figure("locked in memory, MiB", locked >> 20)
    if locked > _PINNED * total:
        findings.add(
            "warn",
            f"{locked / 2**30:.1f} of {total / 2**30:.1f} GiB are locked and can't be reclaimed",
            _SHRINK,
        )


def _add_pressure(findings: Findings, seen: Seen) -> None:
    groups = cgroup_levels(seen.first.of(f"{seen.who}/cgroup"), "memory")
    names = ["proc/pressure/memory", *(f"{folder}/memory.pressure" for folder in groups)]
    told = False
    for name in names:
        stalled = pressure(seen.first.of(name), seen.last.of(name), seen.seconds)
        if stalled is None:
            continue
        told = True
        place = "the machine" if name == names[0] else "the container"
        if name == names[0] or stalled > _STALLED:
            findings.figure(f"time in which tasks of {place} waited for memory", stalled)
        if stalled > _STALLED:
            findings.add(
                "bad",
                f"tasks of {place} waited for memory in {stalled:.0%} of the time",
                _SHRINK,
            )
    if not told:
        findings.figure("pressure", f"not known: {seen.first.why(names[0])}")


def _add_events(findings: Findings, seen: Seen) -> None:
    before, after = (counts(one.of("proc/vmstat")) for one in (seen.first, seen.last))
    swapped = (grown(before, after, "pswpin") or 0) + (grown(before, after, "pswpout") or 0)
    findings.figure("pages swapped", swapped)
    if swapped / max(seen.seconds, 0.01) > 100:
        findings.add("bad", f"{swapped} pages were swapped in {seen.seconds:.0f} s", _SHRINK)
    killed = grown(before, after, "oom_kill") or 0
    for folder in cgroup_levels(seen.first.of(f"{seen.who}/cgroup"), "memory"):
        name = f"{folder}/memory.events"
        old, new = counts(seen.first.of(name)), counts(seen.last.of(name))
        killed = max(killed, grown(old, new, "oom_kill") or 0)
        if (hit := grown(old, new, "max") or 0) > 10:
            findings.figure("times the container's limit was hit", hit)
            findings.add(
                "warn", f"the container hit its memory limit {hit} times while we looked", _SHRINK
            )
    if killed:
        findings.add("bad", f"the kernel killed {killed} processes for memory", _SHRINK)


def _add_limits(findings: Findings, seen: Seen) -> None:
    name = f"{seen.who}/limits"
    text = seen.first.of(name) or seen.first.of("proc/self/limits")
    memlock = limit_of(text, "Max locked memory")
    budget = pinned_budget(
        limit=seen.memory_left, rlimit_memlock=memlock, local_ranks=seen.local_ranks
    )
    findings.figure("may be locked, MiB", "unlimited" if memlock is None else memlock >> 20)
    # The CUDA driver pins past RLIMIT_MEMLOCK on most machines, so a low one is told, not judged.
    findings.figure("pinned budget of a rank", f"{budget.nbytes >> 20} MiB: {budget.why}")
    findings.figure("shared memory folder, MiB", None if seen.shm is None else seen.shm >> 20)
    if seen.shm is not None and seen.shm < _SHM:
        findings.add(
            "warn",
            f"the folder /dev/shm holds {seen.shm >> 20} MiB: full, it kills torch's own loader "
            "and NCCL (fastfeed does not use it)",
            "start the container with --shm-size=8g or --ipc=host",
        )
