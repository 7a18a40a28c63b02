"""Checks 6 and 9: what the cores do, what holds them, and how fast they may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.doctor.parse import (
    cgroup_levels,
    core_shares,
    counts,
    grown,
    interrupts,
    named_lists,
    pressure,
    task_stat,
)
from fastfeed.topology import parse_cores
from fastfeed.topology.files import integer, positive

if TYPE_CHECKING:
    from fastfeed.doctor.parse import CoreShares
    from fastfeed.doctor.seen import Seen

HOT: Final = 0.9
# With less than this on average beside a hot core, the others wait for it.
QUIET: Final = 0.5
_STOLEN: Final = 0.05
_STALLED: Final = 0.2
_THROTTLED: Final = 0.05
_TICKS: Final = 100.0
"""Clock ticks a second in /proc: the kernel's USER_HZ, 100 on all machines we run on."""
_MASK = "Cpus_allowed_list"
_POLICY = "sys/devices/system/cpu"
_DYNAMIC = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose governor `powersave` still raises clocks under load."""


def check_cores(seen: Seen) -> Check:
    """Look at the load of each core, the queue for them, and what takes them away (6)."""
    findings = Findings(6, "cores and run queue")
    shares = core_shares(seen.first.of("proc/stat"), seen.last.of("proc/stat"))
    cores = {name: share for name, share in shares.items() if name != "cpu"}
    if cores:
        # What the host's other cores do says nothing of a job that may use four of them.
        allowed = parse_cores(named_lists(seen.first.of(f"{seen.who}/status")).get(_MASK, ""))
        mine = {f"cpu{core}" for core in allowed or ()}
        _add_load(findings, {name: cores[name] for name in cores if name in mine} or cores)
        _add_interrupts(findings, seen, cores)
    else:
        findings.add(
            "unknown", f"the load of the cores is not known ({seen.first.why('proc/stat')})"
        )
    _add_queue(findings, seen)
    _add_quota(findings, seen)
    _add_threads(findings, seen)
    # Pauses of Python's collector leave no mark outside the process.
    findings.figure("pauses of Python's GC", "not visible from outside; see fastfeed diagnose")
    return findings.check("the cores have room")


def _add_load(findings: Findings, cores: dict[str, CoreShares]) -> None:
    count = len(cores)
    mean = sum(share.busy for share in cores.values()) / count
    user = sum(share.user for share in cores.values()) / count
    system = sum(share.system for share in cores.values()) / count
    stolen = sum(share.stolen for share in cores.values()) / count
    hot = [name for name, share in cores.items() if share.busy >= HOT]
    for name, value in (
        ("cores", count),
        ("busy, mean", mean),
        ("user, mean", user),
        ("system, mean", system),
        ("stolen, mean", stolen),
        ("hot cores", len(hot)),
    ):
        findings.figure(name, value)
    others = (mean * count - sum(cores[name].busy for name in hot)) / max(1, count - len(hot))
    if mean >= HOT:
        kind = "user" if user >= system else "system"
        findings.figure("pattern", "all cores")
        findings.add(
            "warn",
            f"all {count} cores are busy ({mean:.0%}, {user:.0%} user, {system:.0%} system)",
            "crop before decode, use faster decoders, decode on the GPU: preprocessing fills all"
            if kind == "user"
            else "make fewer and larger calls, use fewer workers: the system takes most of it",
        )
    elif hot and len(hot) <= max(1, count // 8) and others < QUIET:
        one = cores[hot[0]]
        findings.figure("pattern", "one core")
        findings.add(
            "warn",
            f"{hot[0]} is {one.busy:.0%} busy ({one.user:.0%} user, {one.system:.0%} system), "
            f"the others {others:.0%}",
            "use worker processes, torch.compile or CUDA graphs: one thread does all the work, "
            "under the GIL or launching kernels",
        )
    else:
        findings.figure("pattern", "idle" if mean < 0.2 else "mixed")
        findings.add("ok", f"{count} cores are {mean:.0%} busy")
    if stolen > _STOLEN:
        findings.add(
            "warn",
            f"the host takes {stolen:.0%} of the cores' time away",
            "the machine is shared: ask for dedicated cores",
        )


def _add_interrupts(findings: Findings, seen: Seen, cores: dict[str, CoreShares]) -> None:
    before = interrupts(seen.first.of("proc/interrupts"))
    after = interrupts(seen.last.of("proc/interrupts"))
    grew = [max(0, b - a) for a, b in zip(before, after, strict=False)]
    most = max(cores, key=lambda name: cores[name].interrupts)
    share = cores[most].interrupts
    findings.figure("interrupts on the busiest core, share of its time", share)
    if total := sum(grew):
        findings.figure("interrupts a second", total / max(seen.seconds, 0.01))
        findings.figure("interrupts on one core, share of all", max(grew) / total)
    rest = [one.interrupts for name, one in cores.items() if name != most]
    if len(cores) > 1 and share > 0.2 and share > 4 * sum(rest) / len(rest):
        findings.add(
            "warn",
            f"interrupts take {share:.0%} of {most} and little of the others",
            "spread them: irqbalance, or smp_affinity of the network and disk queues",
        )


def _add_queue(findings: Findings, seen: Seen) -> None:
    load = seen.last.of("proc/loadavg").split()
    running = integer(load[3].partition("/")[0]) if len(load) > 3 else None
    findings.figure("threads that run or want to", running)
    findings.figure("cores usable", seen.cores.count)
    name = "proc/pressure/cpu"
    stalled = pressure(seen.first.of(name), seen.last.of(name), seen.seconds)
    findings.figure("time in which threads waited for a core", stalled)
    if stalled is not None and stalled > _STALLED:
        findings.add(
            "warn",
            f"in {stalled:.0%} of the time threads waited for a core ({running or 'some'} wanted "
            f"one, {seen.cores.count} are usable)",
            "use no more workers and threads than there are cores",
        )


def _add_quota(findings: Findings, seen: Seen) -> None:
    levels = cgroup_levels(seen.first.of(f"{seen.who}/cgroup"), "cpu")
    # A job may have a quota of its own; what we have ourselves is told only without one.
    told = [cores for folder in levels if (cores := _quota(seen.first.of(f"{folder}/cpu.max")))]
    quota = min(told, default=None if seen.job else seen.quota)
    findings.figure("cgroup quota, cores", quota)
    worst = 0.0
    for folder in levels:
        before, after = (counts(one.of(f"{folder}/cpu.stat")) for one in (seen.first, seen.last))
        periods = grown(before, after, "nr_periods")
        throttled = grown(before, after, "nr_throttled")
        if periods and throttled is not None:
            worst = max(worst, throttled / periods)
            findings.figure("cgroup periods throttled", worst)
    if worst > _THROTTLED:
        size = f" of {quota:g} cores" if quota else ""
        findings.add(
            "bad",
            f"the container's quota{size} stopped it in {worst:.0%} of the periods",
            "raise the CPU limit, or use no more workers and threads than the quota has cores",
        )


def _quota(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    cores, of = positive(quota), positive(period)
    return cores / of if cores and of else None


def _add_threads(findings: Findings, seen: Seen) -> None:
    """Find the job's busiest thread; the main thread launches kernels and runs Python."""
    if seen.job is None or seen.seconds <= 0:
        return
    folder = f"proc/{seen.job.pid}/task/"
    found = []
    for name in seen.first.found:
        if name.startswith(folder):
            before, after = task_stat(seen.first.of(name)), task_stat(seen.last.of(name))
            if before and after:
                user, system = after.user - before.user, after.system - before.system
                found.append((user + system, user, system, after.name))
    if not found:
        findings.add("unknown", f"the threads of process {seen.job.pid} are not shown")
        return
    total, user, system, title = max(found)
    ticks = _TICKS * seen.seconds
    findings.figure("job's busiest thread, share of a core", total / ticks)
    findings.figure("job's busiest thread, user", user / ticks)
    findings.figure("job's busiest thread, system", system / ticks)
    if total >= HOT * ticks:
        # Launching spends much time in the driver; Python's own work is user time alone.
        launching = system >= 0.25 * total
        findings.figure("job's busiest thread pattern", "launching" if launching else "computing")
        findings.add(
            "warn",
            f"thread {title[:32]} of the job fills a core ({user / ticks:.0%} user, "
            f"{system / ticks:.0%} system)",
            "it launches all kernels or copies: torch.compile, CUDA graphs, larger batches"
            if launching
            else "move its work to worker processes; it holds the GIL or computes alone",
        )


def check_governor(seen: Seen) -> Check:
    """Look at how the cores' frequency is governed (9)."""
    findings = Findings(9, "frequency governor")
    policies: dict[tuple[str, str, str], int] = {}
    slow: list[float] = []
    for name in seen.first.found:
        if name.startswith(_POLICY) and name.endswith("/scaling_governor"):
            folder = name.rpartition("/")[0]
            governor, driver, wish = (
                seen.first.of(f"{folder}/{file}")[:40]
                for file in ("scaling_governor", "scaling_driver", "energy_performance_preference")
            )
            policies[governor, driver, wish] = policies.get((governor, driver, wish), 0) + 1
            now = integer(seen.last.of(f"{folder}/scaling_cur_freq"))
            most = integer(seen.last.of(f"{folder}/cpuinfo_max_freq"))
            if now and most and most > 0:
                slow.append(now / most)
    if not policies:
        findings.add(
            "unknown",
            "the machine shows no frequency governor, as guests and containers often do not",
            "look on the host: `cpupower frequency-info`",
        )
    findings.figure("frequency now, of the most, mean", sum(slow) / len(slow) if slow else None)
    for (governor, driver, wish), count in sorted(policies.items()):
        findings.figure(f"cores governed by {governor}", count)
        findings.figure(f"driver of {governor}", driver or None)
        findings.figure(f"preference of {governor}", wish or None)
        text = f"{count} cores are governed by {governor}" + (f" of {driver}" if driver else "")
        if governor != "powersave" or (driver in _DYNAMIC and wish == "performance"):
            findings.add("ok", text)
        else:
            findings.add(
                "warn" if driver in _DYNAMIC else "bad",
                text + (f", preference {wish}" if wish else ""),
                "`cpupower frequency-set -g performance` on a node that trains",
            )
    return findings.check("")
