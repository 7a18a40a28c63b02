"""The training that loaders feed: a compiled ResNet step, its ceiling, and one turn of a loader.

A turn is one epoch that begins with empty queues and ends with the loader's last batch. So nothing
that was prefetched in the shade of another system's turn is counted, and nothing runs on in the
next one's. The ceiling, the rate of made-up batches that lie on the device, is measured again at
the head of each turn, since clocks drift.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fastfeed_bench.systems.gpu_meter import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastfeed_bench.networks import Network

Batch = tuple[torch.Tensor, torch.Tensor]
"""Pictures as the network takes them, and labels, both on the device."""

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, of values from 0 to 1."""

# The loss is read, and the device waited for, this often, as training loops do for their log.
LOSS_EVERY = 50
# This many seconds of made-up batches stand before each turn.
_CEILING_S, _CEILING_LEAD = 0.6, 5
# A slow system's turn has at least so many steps, however long they take.
_LEAST_STEPS = 16


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things are measured."""

    lead: int
    """Steps of a turn before its clock starts."""
    steps: int
    """Steps that are measured."""
    limit_s: float
    """A system that would take longer for them is measured for this long instead."""
    warm: int
    """Most steps until the rate is stable, before the first turn."""
    probe_s: float
    """Seconds for which each candidate of a system's settings trains."""


QUICK = Pace(lead=15, steps=100, limit_s=4.0, warm=200, probe_s=2.0)
FULL = Pace(lead=30, steps=200, limit_s=60.0, warm=600, probe_s=2.0)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn came to."""

    rate: float
    """Pictures a second."""
    waits: tuple[float, ...]
    """Seconds that the loop spent in each `next()`."""
    cores: float
    """CPU time of the process and all below it, over the time that passed."""

    def wait_ms(self, percent: float) -> float:
        """Return the wait in milliseconds that `percent` of the steps did not exceed."""
        return float(np.percentile(self.waits, percent)) * 1e3


class Way(Protocol):
    """One way to come by batches."""

    @property
    def note(self) -> str:
        """Version and settings, for the row."""
        ...

    @property
    def group(self) -> int:
        """How many batches come at about the same time: workers that make one each."""
        ...

    def epoch(self, steps: int) -> Iterator[Batch]:
        """Return the batches of an epoch of so many steps, or of a few more."""
        ...

    def pinned_bytes(self) -> int | None:
        """Return the bytes of host memory that are pinned for it, None if it cannot tell."""
        ...

    def close(self) -> None:
        """End its workers and threads."""
        ...


@dataclass(frozen=True, slots=True)
class Trainer:
    """A network with its compiled step, and a made-up batch."""

    network: Network
    device: torch.device
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Trains on a batch; returns the loss, on the device."""
    normalise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Takes uint8 pictures and a mark for those to flip, for loaders that leave it to the GPU."""
    batch: Batch

    def ceiling(self) -> float:
        """Return the rate of made-up batches, over a part of a second."""
        steps = max(2, round(_CEILING_S * self.network.floor / self.network.batch))
        return drive(self, repeat(self.batch), lead=_CEILING_LEAD, steps=steps).rate


def make_trainer(network: Network, device: torch.device) -> Trainer:
    """Return the trainer, compiled and warm: bf16, channels_last, fused SGD."""
    import torchvision

    torch.backends.cudnn.benchmark = True
    module = getattr(torchvision.models, network.name)()
    module = module.to(device, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9, fused=True)
    compiled: Any = torch.compile(module)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = loss_of(compiled(pictures).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    shape = (network.batch, 3, 224, 224)
    pictures = torch.randn(shape, device=device, dtype=torch.bfloat16)
    pictures = pictures.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (network.batch,), device=device)
    trainer = Trainer(
        network, device, step, torch.compile(make_normalise(device)), (pictures, labels)
    )
    drive(trainer, repeat(trainer.batch), lead=10, steps=2)
    return trainer


def make_normalise(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the function that flips and normalises uint8 pictures, to bf16."""
    mean, std = (
        torch.tensor(values, device=device).view(1, 3, 1, 1) * 255 for values in (MEAN, STD)
    )

    def normalise(pictures: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
        flipped = torch.where(flips[:, None, None, None], pictures.flip(3), pictures)
        return ((flipped.float() - mean) / std).to(torch.bfloat16)

    return normalise


def drive(
    trainer: Trainer,
    batches: Iterable[Batch],
    *,
    lead: int,
    steps: int,
    limit_s: float = float("inf"),
) -> Turn:
    """Train on `lead` batches, then time up to `steps` more; wait for the device at both ends."""
    iterator = iter(batches)
    loss = None
    for batch in islice(iterator, lead):
        loss = trainer.step(*batch)
    if lead and loss is None:
        raise RuntimeError("it delivered no batch")
    if loss is not None:
        loss.item()
    waits: list[float] = []
    cpu, begin = cpu_seconds(), time.perf_counter()
    while len(waits) < steps and (asked := time.perf_counter()) - begin < limit_s:
        following = next(iterator, None)
        if following is None:
            break
        waits.append(time.perf_counter() - asked)
        loss = trainer.step(*following)
        if len(waits) % LOSS_EVERY == 0:
            loss.item()
    if loss is None or not waits:
        raise RuntimeError(f"it delivered no batch after the first {lead}")
    loss.item()
    seconds = time.perf_counter() - begin
    rate = len(waits) * trainer.network.batch / seconds
    return Turn(rate, tuple(waits), (cpu_seconds() - cpu) / seconds)


def whole(steps: int, group: int) -> int:
    """Return `steps`, rounded up to whole groups.

    Workers that make a batch each deliver in bursts. Over whole bursts the rate is right wherever
    in one the clock starts.
    """
    return -(-steps // group) * group


def near(steps: int, group: int) -> int:
    """Return whole groups as well, but not more than `steps` unless one group has more."""
    return max(1, steps // group) * group


def length(pace: Pace, rate: float, *, batch: int, group: int) -> int:
    """Return how many steps to measure of a system that trains at `rate` pictures a second."""
    steps = min(pace.steps, max(_LEAST_STEPS, int(rate / batch * pace.limit_s)))
    return whole(steps, group)


def is_stable(rates: list[float], *, share: float = 0.05) -> bool:
    """Say whether the last three of the rates lie within `share` of each other."""
    last = rates[-3:]
    return len(last) == 3 and max(last) - min(last) <= share * max(last)
