"""How much of a GPU's memory traffic and tensor cores some work uses, by NVML's counters (GPM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastfeed.doctor.nvml import open_nvml

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.doctor.nvml import Nvml

# NVML's numbers of the two counters; both are per cent of what the unit can do.
_TENSOR: Final = 5
_MEMORY: Final = 10


@dataclass(frozen=True, slots=True)
class UnitUse:
    """What work used of a GPU's units, each as a part of the most there is."""

    memory: float
    """Traffic of the device's memory."""
    tensor: float
    """Time in which tensor cores worked."""


def unit_use(address: str | None, work: Callable[[], None]) -> UnitUse | str:
    """Do some work and return what it used, or the reason why that is not known.

    `address` is the GPU's on the PCI bus. The counters are the whole GPU's, of all processes.
    """
    with open_nvml() as (nvml, why):
        return why if nvml is None else use_by(nvml, address, work)


def use_by(nvml: Nvml, address: str | None, work: Callable[[], None]) -> UnitUse | str:
    """Do as `unit_use` does, with an NVML that is open."""
    handle = nvml.at(address)
    if handle is None:
        return "NVML does not show the GPU of that address"
    support = nvml.ask("nvmlGpmQueryDeviceSupport", handle)
    if support is None or not support.isSupportedDevice:
        return "its counters (GPM) are not granted, or are not those of a Hopper or later"
    samples: list[Any] = []
    try:
        for before in (True, False):
            sample = nvml.ask("nvmlGpmSampleAlloc")
            if sample is None:
                return "its counters (GPM) can't be read"
            samples.append(sample)
            if nvml.ask("nvmlGpmSampleGet", handle, sample) is None:
                return "its counters (GPM) can't be read"
            if before:
                work()
        return _between(nvml, samples)
    finally:
        for sample in samples:
            nvml.ask("nvmlGpmSampleFree", sample)


def _between(nvml: Nvml, samples: list[Any]) -> UnitUse | str:
    asked = nvml.bindings.c_nvmlGpmMetricsGet_t()
    asked.version = nvml.bindings.NVML_GPM_METRICS_GET_VERSION
    asked.sample1, asked.sample2 = samples
    asked.numMetrics = 2
    for place, number in enumerate((_MEMORY, _TENSOR)):
        asked.metrics[place].metricId = number
    if nvml.ask("nvmlGpmMetricsGet", asked) is None:
        return "its counters (GPM) can't be read"
    memory, tensor = asked.metrics[0], asked.metrics[1]
    if memory.nvmlReturn or tensor.nvmlReturn:
        return "it does not count memory traffic and tensor cores"
    return UnitUse(memory.value / 100, tensor.value / 100)
