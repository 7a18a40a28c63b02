"""h2d: batches of ready-made bytes to the device, by either loader and by plain pinned copies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.systems.gpu_meter import cuda_device, new_stream, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

SAMPLE = (128, 1024)
"""Shape of a sample: 128 KiB of uint8, about a picture of 224 pixels."""
SAMPLE_BYTES = SAMPLE[0] * SAMPLE[1]

_LINK_COPIES = 16
# Products of so large matrices take a GPU some 0.1 ms, as a layer of a network does.
_KERNEL_SIDE = 3072


@dataclass(frozen=True, slots=True)
class Same(Dataset[torch.Tensor]):
    """One sample, handed out over and over: nothing but its way is measured."""

    sample: torch.Tensor
    samples: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


@dataclass(frozen=True, slots=True)
class TransferSession:
    """One run is three passes: copies alone, work on a batch that is there, and both; in GB/s."""

    note: str
    device: torch.device
    nbytes: int
    """Bytes of a batch."""
    batches: int
    """Batches that a pass times."""
    lead: int
    """Batches of a pass before its clock starts."""
    epoch: Callable[[], Iterable[torch.Tensor]]
    """Begins an epoch of `lead` and `batches`, and returns them on the device."""

    def run(self) -> Mapping[str, float]:
        """Time the passes, and the link beside them."""
        link = link_rate(self.device, self.nbytes)
        copies = self._pass(lambda: None)
        there = torch.zeros(self.nbytes, dtype=torch.uint8, device=self.device)
        kernel, kernel_s = _kernel(self.device)
        # About as much work as a batch takes to come: that is where hiding matters most.
        left_s = copies / self.batches - _timed(self.device, partial(_read, there), 50) / 50
        count = max(1, round(left_s / kernel_s))

        def work() -> None:
            for _ in range(count):
                kernel()

        def step() -> None:
            _read(there)
            work()

        # Twice, for a GPU that has worked for a while is slower.
        before = _timed(self.device, step, self.batches)
        both = self._pass(work)
        compute = (before + _timed(self.device, step, self.batches)) / 2
        rate = self.batches * self.nbytes / copies / 1e9
        return {
            "value": rate,
            "link_gb_s": link,
            "link_share": rate / link,
            "hidden_share": hidden_share(compute=compute, copies=copies, both=both),
        }

    def _pass(self, work: Callable[[], None]) -> float:
        batches = iter(self.epoch())
        for batch in islice(batches, self.lead):
            _read(batch)
        wait_for(self.device)
        begin = time.perf_counter()
        for batch in batches:
            _read(batch)
            work()
        wait_for(self.device)
        return time.perf_counter() - begin

    def evidence(self) -> Evidence:
        """Describe an epoch: how many batches, of what form, and the sum of their bytes."""
        forms, total, count = set(), 0, 0
        for batch in self.epoch():
            forms.add(f"{batch.numel()} {batch.dtype} on {batch.device.type}")
            total += int(_read(batch))
            count += 1
        return {"batches": count, "sum": total, "form": ", ".join(sorted(forms))}

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""


def _read(batch: torch.Tensor) -> torch.Tensor:
    """Read every byte on its device; the sum, of words of eight bytes, proves it.

    A sum of bytes would cost the loop more than all that is measured: torch makes int64 of each.
    """
    return batch.view(torch.int64).sum()


def hidden_share(*, compute: float, copies: float, both: float) -> float:
    """Return how much of the shorter of two works is hidden under the other, from 0 to 1."""
    return min(1.0, max(0.0, (compute + copies - both) / min(compute, copies)))


def link_rate(device: torch.device, nbytes: int) -> float:
    """Return GB/s of plain copies of so many bytes from pinned memory, on one stream."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def copy() -> None:
        target.copy_(host, non_blocking=True)

    _timed(device, copy, 2)
    return _LINK_COPIES * nbytes / _timed(device, copy, _LINK_COPIES) / 1e9


def _timed(device: torch.device, work: Callable[[], object], count: int) -> float:
    wait_for(device)
    begin = time.perf_counter()
    for _ in range(count):
        work()
    wait_for(device)
    return time.perf_counter() - begin


def _kernel(device: torch.device) -> tuple[Callable[[], None], float]:
    """Return a kernel that leaves the link alone, and the seconds that it takes."""
    side = _KERNEL_SIDE if device.type == "cuda" else 64
    matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    result = torch.empty_like(matrix)

    def multiply() -> None:
        torch.mm(matrix, matrix, out=result)

    _timed(device, multiply, 5)
    return multiply, _timed(device, multiply, 50) / 50


def link_session(settings: Settings) -> TransferSession:
    """Return the session of plain copies, from one pinned batch on a stream of their own."""
    device = cuda_device()
    batch = torch.stack([_sample()] * settings["batch"]).pin_memory()
    side = new_stream(device)

    def epoch() -> Iterator[torch.Tensor]:
        for _ in range(settings["lead"] + settings["batches"]):
            with torch.cuda.stream(side):
                moved = batch.to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            moved.record_stream(torch.cuda.current_stream())
            yield moved

    return _session(f"torch {torch.__version__}; pinned, one stream", device, settings, epoch)


def torch_session(settings: Settings) -> TransferSession:
    """Return the session of torch's loader, with pinned memory, copied by the loop."""
    device = cuda_device()
    loader = _loader(DataLoader, settings, pin_memory=True)

    def epoch() -> Iterator[torch.Tensor]:
        for batch in loader:
            yield batch.to(device, non_blocking=True)

    return _session(
        f"torch {torch.__version__}; {_words(settings)}, pin_memory, .to(non_blocking=True)",
        device,
        settings,
        epoch,
    )


def fastfeed_session(settings: Settings) -> TransferSession:
    """Return the session of ours, whose batches are on the device."""
    import fastfeed

    device = cuda_device()
    loader = _loader(fastfeed.DataLoader, settings, device="cuda")
    note = f'fastfeed {fastfeed.__version__}; {_words(settings)}, device="cuda"'
    return _session(note, device, settings, lambda: loader)


def _session(
    note: str, device: torch.device, settings: Settings, epoch: Callable[[], Iterable[torch.Tensor]]
) -> TransferSession:
    return TransferSession(
        note=note,
        device=device,
        nbytes=settings["batch"] * SAMPLE_BYTES,
        batches=settings["batches"],
        lead=settings["lead"],
        epoch=epoch,
    )


def _words(settings: Settings) -> str:
    return f"num_workers={settings['workers']}, batch_size={settings['batch']}"


def _loader(kind: Any, settings: Settings, **more: Any) -> Any:
    batches = settings["lead"] + settings["batches"]
    return kind(
        Same(_sample(), settings["batch"] * batches),
        batch_size=settings["batch"],
        num_workers=settings["workers"],
        persistent_workers=True,
        **more,
    )


def _sample() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, SAMPLE, dtype=torch.uint8, generator=generator)
