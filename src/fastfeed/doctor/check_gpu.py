"""Checks 1, 2 and 11: what the GPUs do, for whom, and what holds their clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.doctor.gpus import REASON_ASKED, REASON_IDLE, REASON_POWER, REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.doctor.gpus import GpuFacts, GpuSample
    from fastfeed.doctor.seen import Seen

# Per cent of time with any kernel running. NVML's own window is up to a second long, so a swing as
# wide as this between its figures is a pause of most of a second.
IDLE: Final = 5
FULL: Final = 85
SWING: Final = 50
# The driver itself takes some hundred MiB; containers hide the processes that took more.
_OCCUPIED: Final = 2 << 30
# A clock this far below its maximum under load costs more than noise.
SLOW_CLOCK: Final = 0.8


def check_use(seen: Seen) -> Check:
    """Look at utilisation, clocks and power over time (1)."""
    findings = Findings(1, "GPU utilisation over time")
    for gpu in seen.gpus:
        _add_use(findings, gpu, seen.samples(gpu.index))
    if not seen.gpus:
        findings.add("unknown", seen.no_gpus)
    return findings.check("")


def _add_use(findings: Findings, gpu: GpuFacts, samples: Sequence[GpuSample]) -> None:
    name = f"GPU {gpu.index}"
    told = [sample.busy for sample in samples if sample.busy is not None]
    _figures(findings, name, samples)
    if not told:
        why = "under MIG a GPU tells no utilisation" if gpu.mig else "it tells no utilisation"
        findings.add("unknown", f"{name}: {why}", "see loader.report() for who waits for whom")
        return
    mean, least, most = sum(told) / len(told), min(told), max(told)
    findings.figure(f"{name} use, mean %", round(mean))
    findings.figure(f"{name} use, least %", least)
    findings.figure(f"{name} use, most %", most)
    holders = {process.pid for sample in samples for process in sample.processes}
    used = max((sample.memory_used or 0 for sample in samples), default=0)
    if most <= IDLE and not holders and used < _OCCUPIED:
        findings.figure(f"{name} pattern", "idle")
        findings.add(
            "unknown", f"{name} is idle and nothing uses it", "look while the training job runs"
        )
    elif most <= IDLE:
        findings.figure(f"{name} pattern", "starved")
        findings.add(
            "bad",
            f"{name} computes nothing ({most} % at most), though {used / 2**30:.1f} GiB are in use",
            "the job is blocked before the GPU: look at its input and its synchronisation",
        )
    elif most - least >= SWING and mean < FULL:
        findings.figure(f"{name} pattern", "bursts")
        findings.add(
            "bad",
            f"{name} works in bursts: {least} to {most} %, {mean:.0f} % on average",
            "the GPU waits between batches: look at the input path, not at the model",
        )
    elif mean < FULL:
        findings.figure(f"{name} pattern", "low")
        findings.add(
            "warn",
            f"{name} is evenly busy, at {mean:.0f} %",
            "nothing comes in bursts: look at small kernels, batch size and the launching thread",
        )
    else:
        findings.figure(f"{name} pattern", "full")
        findings.add("ok", f"{name} is busy {mean:.0f} % of the time")


def _figures(findings: Findings, name: str, samples: Sequence[GpuSample]) -> None:
    for text, values in (
        ("SM clock, MHz", [sample.clock for sample in samples]),
        ("power, W", [sample.power for sample in samples]),
        ("to it over PCIe, MB/s", [_megabytes(sample.received) for sample in samples]),
        ("from it over PCIe, MB/s", [_megabytes(sample.sent) for sample in samples]),
    ):
        told = [value for value in values if value is not None]
        if told:
            findings.figure(f"{name} {text}", round(sum(told) / len(told)))


def _megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6


def check_processes(seen: Seen) -> Check:
    """Look at which processes use the GPUs (2)."""
    findings = Findings(2, "processes on the GPU")
    if not seen.gpus:
        findings.add("unknown", seen.no_gpus)
        return findings.check("")
    on_gpus: set[int] = set()
    for gpu in seen.gpus:
        name = f"GPU {gpu.index}"
        samples = seen.samples(gpu.index)
        last = {process.pid: process for sample in samples for process in sample.processes}
        on_gpus |= set(last)
        findings.figure(f"{name} processes", len(last))
        for pid, process in sorted(last.items())[:8]:
            if process.memory is not None:
                findings.figure(f"{name} process {pid}, MiB", process.memory >> 20)
            findings.figure(f"{name} process {pid}, busy %", process.busy)
        if len(last) > 1 and not gpu.mig:
            findings.add(
                "warn",
                f"{len(last)} processes share {name}: {', '.join(map(str, sorted(last)[:8]))}",
                "end those that are not the job; memory held is not computing, but slows it",
            )
    if seen.job is None:
        findings.add("unknown", seen.no_job, "look while the job runs, or name it with --pid")
    elif not on_gpus & set(seen.job.family):
        others = ", ".join(map(str, sorted(on_gpus)[:8])) or "none"
        if any(f"proc/{pid}/stat" in seen.first.found for pid in on_gpus) or not on_gpus:
            findings.add(
                "bad",
                f"process {seen.job.pid} and its children use no GPU; those that do: {others}",
                "look at the process that computes, or find out why the job runs on the CPU",
            )
        else:
            findings.add(
                "unknown",
                f"NVML names other processes ({others}) than {seen.job.pid}: it counts as the host "
                "does, a container counts its own",
                "compare on the host",
            )
    else:
        findings.add("ok", seen.job.why)
    return findings.check("")


def check_throttling(seen: Seen) -> Check:
    """Look at what holds the clocks: heat, power, a limit, or nothing to do (11)."""
    findings = Findings(11, "throttling")
    if not seen.gpus:
        findings.add("unknown", seen.no_gpus)
    for gpu in seen.gpus:
        samples = seen.samples(gpu.index)
        name = f"GPU {gpu.index}"
        hottest = max((s.temperature for s in samples if s.temperature is not None), default=None)
        findings.figure(f"{name} temperature, C", hottest)
        findings.figure(f"{name} power limit, W", gpu.power_limit)
        findings.figure(f"{name} power limit by default, W", gpu.power_default)
        _add_limits(findings, gpu)
        _add_reasons(findings, gpu, [sample for sample in samples if sample.reasons is not None])
    return findings.check("")


def _add_limits(findings: Findings, gpu: GpuFacts) -> None:
    name = f"GPU {gpu.index}"
    if gpu.power_limit and gpu.power_default and gpu.power_limit < 0.98 * gpu.power_default:
        findings.add(
            "warn",
            f"{name} may take {gpu.power_limit:.0f} W, {gpu.power_default:.0f} W by default",
            "raise it with `nvidia-smi -pl`, unless the limit is meant",
        )
    if gpu.clock_asked and gpu.clock_most and gpu.clock_asked < SLOW_CLOCK * gpu.clock_most:
        findings.figure(f"{name} clock for applications, MHz", gpu.clock_asked)
        findings.add(
            "warn",
            f"{name} has its application clock set to {gpu.clock_asked} of {gpu.clock_most} MHz",
            "reset it with `nvidia-smi -rac`, unless it is meant",
        )


def _add_reasons(findings: Findings, gpu: GpuFacts, samples: Sequence[GpuSample]) -> None:
    name = f"GPU {gpu.index}"
    if not samples:
        findings.add("unknown", f"{name} does not tell what holds its clocks")
        return
    bits = [sample.reasons or 0 for sample in samples]
    clocks = [sample.clock for sample in samples if sample.clock is not None]
    clock = sum(clocks) / len(clocks) if clocks else None
    findings.figure(f"{name} SM clock at most, MHz", gpu.clock_most)
    findings.figure(f"{name} reasons", " ".join(sorted({f"{each:#x}" for each in bits})))
    bad = [text for bit, text in REASONS.items() if any(each & bit for each in bits)]
    if bad:
        held = sum(any(each & bit for bit in REASONS) for each in bits) / len(bits)
        findings.add(
            "bad",
            f"{name} is slowed in {held:.0%} of the looks by {' and '.join(bad)}"
            + (f", at {clock:.0f} of {gpu.clock_most} MHz" if clock and gpu.clock_most else ""),
            "look at cooling, airflow and power supply before any code",
        )
    elif all(each & REASON_IDLE for each in bits):
        findings.add(
            "unknown", f"{name} is idle, so its clocks are low anyway", "look while the job runs"
        )
    elif any(each & REASON_POWER for each in bits):
        slow = clock is not None and gpu.clock_most and clock < SLOW_CLOCK * gpu.clock_most
        findings.add(
            "warn" if slow else "ok",
            f"{name} runs at its power limit"
            + (f", {clock:.0f} of {gpu.clock_most} MHz" if clock and gpu.clock_most else ""),
            "it is limited by power: compare the limit with its neighbours'" if slow else "",
        )
    elif any(each & REASON_ASKED for each in bits):
        findings.add("ok", f"{name} keeps the clock that was set for applications")
    else:
        findings.add("ok", f"nothing holds the clocks of {name}")
