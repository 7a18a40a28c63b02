"""What all GPU benchmarks measure with: the device, CPU time, epochs of batches that lie on it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fastfeed_bench.processes import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastfeed_bench.model import Evidence

_TICKS = os.sysconf("SC_CLK_TCK")


def cuda_device() -> torch.device:
    """Return the current CUDA device; the RuntimeError says that there is none."""
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream of the device's."""
    made: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return made


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU time of a process, by default this one, and of all that it started."""
    own = pid or os.getpid()
    return sum(map(_ticks, [own, *children(own)])) / _TICKS


def _ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0  # it has ended: its parent's fields have its time
    # The name, in parentheses, may hold anything. Own time, then that of children waited for.
    return sum(map(int, text.rpartition(")")[2].split()[11:15]))


def read_on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Read every byte of a uint8 tensor on its device; the sum, which stays there, proves it."""
    return tensor.sum(dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class DeviceSession:
    """One run is one epoch of pictures on the device, read there; its figure is img/s.

    The clock starts after the first `lead` batches, when all workers are at work.
    """

    note: str
    device: torch.device
    epoch: Callable[[], Iterable[torch.Tensor]]
    lead: int
    describe: Callable[[], Evidence]

    def run(self) -> Mapping[str, float]:
        """Consume an epoch."""
        batches = iter(self.epoch())
        for pictures in islice(batches, self.lead):
            read_on_device(pictures)
        wait_for(self.device)
        cpu, begin = cpu_seconds(), time.perf_counter()
        samples = 0
        for pictures in batches:
            read_on_device(pictures)
            samples += len(pictures)
        wait_for(self.device)
        seconds = time.perf_counter() - begin
        if not samples:
            raise RuntimeError(f"an epoch had no batch after the first {self.lead}")
        return {"value": samples / seconds, "cores": (cpu_seconds() - cpu) / seconds}

    def evidence(self) -> Evidence:
        """Describe what is delivered."""
        return self.describe()

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
