"""Check 12: many tiny kernels, from a trace of the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings

if TYPE_CHECKING:
    from fastfeed.doctor.seen import Seen

# A launch costs the host 4 to 10 us, so kernels shorter than that cannot keep a GPU busy.
_TINY_US: Final = 10.0
_BUSY: Final = 0.85


def check_kernels(seen: Seen) -> Check:
    """Look at the number and length of kernels, and the gaps between them (12)."""
    findings = Findings(12, "many tiny kernels")
    kernels = seen.kernels
    if kernels is None:
        findings.add(
            "unknown",
            "kernels cannot be counted from outside a process, and no trace was given",
            "profile a few steps with torch.profiler and give the trace with --trace",
        )
        return findings.check("")
    findings.figure("kernels", kernels.count)
    findings.figure("steps", kernels.steps or None)
    if not kernels.count:
        findings.add("unknown", "the trace holds no kernel", "profile with ProfilerActivity.CUDA")
        return findings.check("")
    a_step = kernels.count / kernels.steps if kernels.steps else None
    findings.figure("kernels a step", a_step)
    findings.figure("median kernel, us", kernels.median_us)
    findings.figure("median gap, us", kernels.gap_us)
    findings.figure("kernels running, share of time", kernels.busy_share)
    text = f"{a_step:.0f} kernels a step" if a_step else f"{kernels.count} kernels"
    text += f" of {kernels.median_us:.1f} us (median), running {kernels.busy_share:.0%} of the time"
    if kernels.busy_share >= _BUSY:
        findings.add("ok", text)
    elif kernels.median_us < _TINY_US:
        findings.add(
            "bad",
            f"{text}: the GPU waits for launches",
            "torch.compile, CUDA graphs (fixed device buffers), larger batches",
        )
    else:
        findings.add(
            "warn",
            f"{text}, with gaps of {kernels.gap_us:.0f} us",
            "kernels are long enough: the gaps come from input or synchronisation",
        )
    return findings.check("")
