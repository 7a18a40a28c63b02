"""What is lost in the step itself, and between the batch in memory and the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.diagnosis.finding import Verdict, copy_words, gain, ms, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.diagnosis.evidence import Evidence, Gpu

# A launch costs the host 4 to 10 us, so shorter kernels cannot keep a GPU busy.
_TINY_US: Final = 15.0
_LAUNCH_US: Final = 5.0
_MANY: Final = 100
# On the host an operator's own bookkeeping takes some microseconds of these.
_TINY_OP_US: Final = 30.0
# With so few samples the batch is what makes kernels tiny.
_FEW_SAMPLES: Final = 16
# A step of which more stays when the batch is halved does not follow its size.
_FIXED: Final = 0.5
_HOT: Final = 0.7
_VRAM_FULL: Final = 0.85
# Less of a step is idle at its ends, where one step hands to the next.
_IDLE: Final = 0.1
# Kernels fill no GPU to the last processor; above this nobody would call it work that is missing.
_FILLED: Final = 0.7


def transfer_losses(evidence: Evidence) -> Iterator[Verdict]:
    """Yield what the way of a batch from memory to the device costs; nothing without a device."""
    times, gpu = evidence.times, evidence.gpu
    lost = max(0.0, min(times.cached_s, times.real_s) - times.ceiling_s) / times.real_s
    if gpu is None or not lost:
        return
    why = [
        (
            f"A step takes {ms(times.cached_s)} on batches from memory and {ms(times.ceiling_s)} "
            "on one that is on the device."
        )
    ]
    if gpu.copy_s > 0:
        why.append(
            f"{gpu.copies_a_step:.0f} copies a step take {ms(gpu.copy_s)}: {copy_words(gpu)}."
        )
    if gpu.copy_s * 2 < times.cached_s - times.ceiling_s:
        why.append("Copies explain less than half of it: the rest is the host's work on a batch.")
    advice = [
        'Let the loader bring batches to the device, beside the step: device="cuda".',
        "Send uint8 and convert on the GPU; one copy a batch, not one a sample.",
        "Look at the link: `fastfeed doctor`, checks 3 and 4.",
    ]
    if gpu.pageable > 0.5:
        advice.insert(1, "Or pin and do not wait: pin_memory=True with .to(non_blocking=True).")
    yield Verdict(
        name="transfer-bound",
        share_of_time_lost=lost,
        why=tuple(why),
        advice=tuple(advice),
        expected_gain=gain(lost),
    )


def step_losses(evidence: Evidence) -> Iterator[Verdict]:
    """Yield what is lost while the step runs on a batch that is already there."""
    # A pause of the collector is no work of the step, and stays the same with any batch.
    whole = max(0.0, evidence.times.au - evidence.host.collecting)
    if evidence.gpu is None:
        yield from _on_host(evidence, whole)
        return
    gpu = evidence.gpu
    idle = 1 - gpu.busy if 1 - gpu.busy >= _IDLE else 0.0
    synced, launching = whole * idle * gpu.sync_gaps, whole * idle * (1 - gpu.sync_gaps)
    if synced:
        yield _synchronising(gpu, synced)
    batch = evidence.batch
    fixed = batch.fixed if batch.fixed is not None and batch.fixed >= _FIXED else 0.0
    unfilled = 1 - gpu.filled if gpu.filled < _FILLED else 0.0
    thin = whole * gpu.busy * max(unfilled, fixed)
    small = batch.samples <= _FEW_SAMPLES
    tiny = gpu.kernels_a_step >= _MANY and gpu.median_us < _TINY_US
    if launching and not small and (tiny or evidence.host.loop_cpu >= _HOT):
        yield _submitting(evidence, launching, _kernel_words(gpu))
        launching = 0.0
    if launching + thin > 0:
        yield _too_little(evidence, launching + thin, small=small or fixed > 0)


def pauses(evidence: Evidence) -> Iterator[Verdict]:
    """Yield what Python's garbage collector takes, whose pauses stop every thread."""
    host = evidence.host
    if host.collecting:
        yield Verdict(
            name="garbage collection",
            share_of_time_lost=host.collecting,
            why=(
                (
                    f"Python's garbage collector stopped the process for "
                    f"{percent(host.collecting)} of the time, for "
                    f"{ms(host.longest_collection_s)} at the longest."
                ),
            ),
            advice=(
                (
                    "Call gc.collect() and gc.freeze() once after the start, or gc.disable() and "
                    "collect every n steps."
                ),
                "Keep fewer objects: arrays in place of lists of small things.",
            ),
            expected_gain=gain(host.collecting),
        )


def _on_host(evidence: Evidence, whole: float) -> Iterator[Verdict]:
    """Judge a step that runs on the cores: the host's view only."""
    batch, ops = evidence.batch, evidence.ops
    tiny = ops is not None and ops.a_step >= _MANY and ops.median_us < _TINY_OP_US
    fixed = 0.0
    if batch.fixed is not None:
        fixed = batch.fixed if batch.fixed >= _FIXED else 0.0
    elif tiny and ops is not None:
        fixed = min(1.0, ops.a_step * _LAUNCH_US * 1e-6 / evidence.times.ceiling_s)
    if not fixed:
        return
    if tiny and ops is not None and batch.samples > _FEW_SAMPLES:
        words = f"{ops.a_step:.0f} operators a step of {ops.median_us:.1f} us (median)."
        yield _submitting(evidence, whole * fixed, words)
    else:
        yield _too_little(evidence, whole * fixed, small=True)


def _kernel_words(gpu: Gpu) -> str:
    return (
        f"{gpu.kernels_a_step:.0f} kernels a step of {gpu.median_us:.1f} us (median) with gaps of "
        f"{gpu.gap_us:.0f} us; one runs in {percent(gpu.busy)} of the step."
    )


def _follows(evidence: Evidence) -> tuple[str, ...]:
    batch = evidence.batch
    if batch.fixed is None:
        return ()
    return (f"{percent(batch.fixed)} of the step's time stay the same with {batch.how}.",)


def _loop_words(evidence: Evidence) -> str:
    host = evidence.host
    return (
        f"The training thread computes for {percent(host.loop_cpu)} of the step, "
        f"{percent(host.loop_system)} in the system and driver."
    )


def _submitting(evidence: Evidence, share: float, words: str) -> Verdict:
    return Verdict(
        name="submission-bound",
        share_of_time_lost=share,
        why=(words, _loop_words(evidence), *_follows(evidence)),
        advice=(
            (
                "Launch less: torch.compile(model), or a CUDA graph over the step "
                '(output="static" of the loader keeps the batch in place).'
            ),
            "Larger batches; fused optimizers; no loop over samples in the step.",
        ),
        expected_gain=_doubled(share),
    )


def _synchronising(gpu: Gpu, share: float) -> Verdict:
    names = ", ".join(gpu.sync_names) or "synchronising calls"
    return Verdict(
        name="hidden synchronisation",
        share_of_time_lost=share,
        why=(
            (
                f"The host waits for the GPU {gpu.syncs_a_step:.1f} times a step ({names}), and "
                f"{percent(gpu.sync_gaps)} of the time in which no kernel runs follows such a wait."
            ),
            f"A kernel runs in {percent(gpu.busy)} of the step.",
        ),
        advice=(
            (
                "Remove .item(), .cpu(), print and nonzero from the step, or do them every n "
                'steps; torch.cuda.set_sync_debug_mode("warn") names each line.'
            ),
            "Copy with non_blocking=True, from pinned memory.",
        ),
        expected_gain=gain(share),
    )


def _too_little(evidence: Evidence, share: float, *, small: bool) -> Verdict:
    gpu, batch = evidence.gpu, evidence.batch
    why = [f"A batch has {batch.samples} samples.", *_follows(evidence)]
    if gpu is not None:
        why.append(_kernel_words(gpu))
        if gpu.filled < _FILLED:
            why.append(f"Kernels have work for {percent(gpu.filled)} of the GPU's processors.")
        why.append(_loop_words(evidence))
    elif evidence.ops is not None:
        ops = evidence.ops
        why.append(f"{ops.a_step:.0f} operators a step of {ops.median_us:.1f} us (median).")
    if gpu is not None and gpu.memory_used >= _VRAM_FULL:
        why.append(f"Tensors take {percent(gpu.memory_used)} of the device's memory.")
        return Verdict(
            name="limited by VRAM",
            share_of_time_lost=share,
            why=tuple(why),
            advice=(
                (
                    "Make room for larger batches: lower precision, activation checkpointing, a "
                    "smaller state of the optimizer."
                ),
            ),
            expected_gain=_doubled(share),
        )
    larger = f"Use larger batches: {2 * batch.samples} instead of {batch.samples}, and on."
    if small:
        return Verdict(
            name="too small batches",
            share_of_time_lost=share,
            why=tuple(why),
            advice=(larger, "Where the batch must stay: torch.compile, a CUDA graph."),
            expected_gain=_doubled(share),
        )
    return Verdict(
        name="too little work",
        share_of_time_lost=share,
        why=tuple(why),
        advice=(
            f"{larger} Run what does not depend on one another at the same time.",
            "Or accept it: where latency counts, utilisation is not the goal.",
        ),
        expected_gain=_doubled(share),
    )


def _doubled(fixed: float) -> float:
    """Return how much the rate grows with twice the batch when this part of a step is fixed."""
    return fixed / (2 - fixed)
