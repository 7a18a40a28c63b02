"""The step seen by torch.profiler: kernels, gaps, copies on a GPU; operators on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastfeed.diagnosis.evidence import Gpu, Ops
from fastfeed.diagnosis.profile import profiled
from fastfeed.diagnosis.trace import copy_trace, kernel_trace, operators
from fastfeed.doctor.units import unit_use
from fastfeed.topology import pci_address

if TYPE_CHECKING:
    import torch

    from fastfeed.diagnosis.evidence import Times
    from fastfeed.diagnosis.rounds import Rounds

# What is profiled: about so long, and so many steps.
_LOOK_S: Final = 0.3
_LEAST: Final = 2
_MOST: Final = 20
# Counters are read over a longer while, since the driver gathers them only now and then.
_COUNTED_S: Final = 0.5
_COUNTED_MOST: Final = 1000


def ops_of(rounds: Rounds, times: Times) -> Ops | str:
    """Return the operators of a step that runs on the cores, or why they are not known."""
    steps = _steps(times.ceiling_s)
    events = profiled(lambda: rounds.some("ceiling", steps), on_device=False)
    if isinstance(events, str):
        return events
    count, median_us = operators(events)
    return Ops(count / steps, median_us) if count else "the step runs no operators of torch"


def gpu_of(rounds: Rounds, times: Times, device: torch.device) -> Gpu | str:
    """Return what the device did, or why it is not known."""
    import torch

    steps = _steps(times.ceiling_s)
    torch.cuda.reset_peak_memory_stats(device)
    alone = profiled(lambda: rounds.some("ceiling", steps), on_device=True)
    fed_steps = _steps(times.real_s)
    fed = profiled(lambda: rounds.some("real", fed_steps), on_device=True)
    if isinstance(alone, str) or isinstance(fed, str):
        return alone if isinstance(alone, str) else str(fed)
    kernels, copies = kernel_trace(alone), copy_trace(fed)
    if not kernels.kernels:
        return "the trace of the step holds no kernel"
    facts = torch.cuda.get_device_properties(device)
    counted = round(min(_COUNTED_MOST, max(_LEAST, _COUNTED_S / max(times.ceiling_s, 1e-6))))
    units = unit_use(_address(facts), lambda: rounds.some("ceiling", counted))
    # The profiler makes launches slower and kernels not, so the step's own time is what counts.
    busy = kernels.busy_us * 1e-6 / steps / times.ceiling_s
    return Gpu(
        name=facts.name,
        kernels_a_step=kernels.kernels / steps,
        median_us=kernels.median_us,
        gap_us=kernels.gap_us,
        busy=min(1.0, busy),
        sync_gaps=kernels.sync_gaps,
        syncs_a_step=kernels.syncs / steps,
        sync_names=kernels.sync_names,
        filled=kernels.filled,
        copies_a_step=copies.copies / fed_steps,
        copied_bytes=copies.nbytes / fed_steps,
        copy_s=copies.busy_us * 1e-6 / fed_steps,
        pageable=copies.pageable,
        memory_used=torch.cuda.max_memory_allocated(device) / facts.total_memory,
        dram=None if isinstance(units, str) else units.memory,
        tensor=None if isinstance(units, str) else units.tensor,
        uncounted=units if isinstance(units, str) else "",
    )


def _address(facts: Any) -> str | None:
    """Return where on the PCI bus a device of torch is; None if torch does not say."""
    numbers = [getattr(facts, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None in numbers:
        return None
    domain, bus, slot = numbers
    return pci_address(f"{domain:08x}:{bus:02x}:{slot:02x}.0")


def _steps(seconds: float) -> int:
    return round(min(_MOST, max(_LEAST, _LOOK_S / max(seconds, 1e-6))))
