"""From evidence to verdicts: pure, the largest loss first.

The time of a real step is split three ways: what the loader adds to steps fed from memory, what the
hand-over adds to the step alone, and the step itself. Each part is given to its causes by the
figures that only they leave; what cannot be told apart from noise is not claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.diagnosis.feeding import feed_losses
from fastfeed.diagnosis.finding import Verdict, least_share, ms, percent
from fastfeed.diagnosis.stepping import pauses, step_losses, transfer_losses

if TYPE_CHECKING:
    from fastfeed.diagnosis.evidence import Evidence, Gpu

# If no loss is larger the step is the limit, whatever small losses there are beside it.
_SMALL_LOSS: Final = 0.1
# Achieved over possible, from where a unit of the GPU counts as the one that limits.
_NEAR_LIMIT: Final = 0.6
_FAR_FROM_LIMIT: Final = 0.3


def judge(evidence: Evidence) -> tuple[Verdict, ...]:
    """Return what time is lost to, the largest loss first; GPU-bound where hardly any is."""
    found = [
        *feed_losses(evidence),
        *transfer_losses(evidence),
        *step_losses(evidence),
        *pauses(evidence),
    ]
    least = least_share(evidence)
    told = sorted(
        (one for one in found if one.share_of_time_lost >= least),
        key=lambda one: -one.share_of_time_lost,
    )
    if not told or told[0].share_of_time_lost < _SMALL_LOSS:
        return (_bound_by_step(evidence), *told)
    return tuple(told)


def _bound_by_step(evidence: Evidence) -> Verdict:
    times, gpu = evidence.times, evidence.gpu
    why = [
        (
            f"Fed by the loader a step takes {ms(times.real_s)}, on a batch that is already there "
            f"{ms(times.ceiling_s)}: AU {percent(times.au)}."
        ),
    ]
    if gpu is None:
        why.append("No CUDA device is used: the host's cores compute the step.")
    else:
        why.append(f"Kernels run in {percent(gpu.busy)} of the step on {gpu.name}.")
    if times.noise > 2 * _SMALL_LOSS:
        why.append(
            f"The rounds differ by {percent(times.noise)}: smaller losses could not be told. "
            "Measure longer, or on a quieter machine."
        )
    if evidence.feed.count > 1 and times.wait_s < 0.02 * times.real_s:
        why.append(f"The loop hardly waits with {evidence.feed.count} workers; fewer may do.")
    inside, advice = _inside(gpu)
    return Verdict(
        name="GPU-bound",
        share_of_time_lost=0.0,
        why=(*why, *inside),
        advice=advice,
        expected_gain=0.0,
    )


def _inside(gpu: Gpu | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the counters say of the kernels, and what helps."""
    leave = "Leave the loader alone; num_workers=ff.AUTO finds the fewest workers that do."
    if gpu is not None and gpu.dram is not None and gpu.tensor is not None:
        figures = (
            f"Traffic of its memory is at {percent(gpu.dram)} of its most, "
            f"the tensor cores at {percent(gpu.tensor)}"
        )
        if gpu.dram >= _NEAR_LIMIT and gpu.tensor < _FAR_FROM_LIMIT:
            first = "Move fewer bytes: torch.compile (fusion), channels_last, lower precision."
            return (f"{figures}: memory-bound inside.",), (first, leave)
        if gpu.tensor >= _NEAR_LIMIT:
            first = "Lower precision (bf16, fp8), or larger matrices where they are small."
            return (f"{figures}: compute-bound inside.",), (first, leave)
        return (f"{figures}: neither is at its limit.",), (
            "Look at the kernels with torch.profiler: precision, layout, fusion.",
            leave,
        )
    if gpu is None:
        return (), ("Make the step itself cheaper, or run it on a GPU.", leave)
    return (), (
        "Make the step itself cheaper: lower precision, torch.compile, channels_last.",
        "Look whether the GPU may run at its full clock: `fastfeed doctor`, check 11.",
        leave,
    )
