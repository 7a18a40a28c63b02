"""What is asked of GPUs, as values and as a seam that NVML and recordings answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bits of NVML's clock event reasons.
REASON_IDLE: Final = 0x1
REASON_ASKED: Final = 0x2
REASON_POWER: Final = 0x4
REASONS: Final = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Those that mean trouble of power supply or cooling."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What does not change while one looks; None is what the GPU does not tell."""

    index: int
    """NVML's, which is not CUDA's."""
    name: str
    address: str | None
    """PCI address as sysfs writes it."""
    driver: str = ""
    memory: int | None = None
    generation_most: int | None = None
    """Highest PCIe generation of GPU and slot together."""
    generation_able: int | None = None
    """Highest PCIe generation of the GPU alone."""
    width_most: int | None = None
    clock_most: int | None = None
    """MHz of the SMs."""
    clock_asked: int | None = None
    """MHz that an administrator set for applications."""
    power_limit: float | None = None
    power_default: float | None = None
    mig: bool | None = None
    persistent: bool | None = None
    cores: frozenset[int] = frozenset()
    """Cores near it, as NVML tells them; empty if it does not."""
    others: tuple[tuple[int, str], ...] = ()
    """Other GPUs by index, with what the way to them crosses."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU; `pid` counts as the host counts."""

    pid: int
    memory: int | None = None
    busy: int | None = None
    """Per cent of the last second or so; None if the GPU does not tell."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What one GPU did at one moment; None is what it does not tell."""

    index: int
    busy: int | None = None
    """Per cent of time in which any kernel ran: not how much of the GPU it used."""
    memory_busy: int | None = None
    memory_used: int | None = None
    clock: int | None = None
    power: float | None = None
    temperature: int | None = None
    state: int | None = None
    """Performance state, 0 the fastest."""
    reasons: int | None = None
    """Bits of what holds the clocks."""
    generation: int | None = None
    width: int | None = None
    replays: int | None = None
    received: int | None = None
    """Bytes a second over PCIe, to the GPU."""
    sent: int | None = None
    processes: tuple[GpuProcess, ...] = field(default=())


class GpuSource(Protocol):
    """Where GPUs are asked."""

    def facts(self) -> Sequence[GpuFacts]:
        """Return what does not change, one of each GPU."""

    def sample(self) -> Sequence[GpuSample]:
        """Return what each GPU does now."""
