"""diagnose-gpu: training steps on a GPU with one bottleneck each, and the same steps cured.

`Place.device` is "cuda"; with "cpu" the same code runs small, and shows that it runs at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

import fastfeed as ff
from fastfeed_bench.systems.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed_bench.systems.jobs import Place

# A sample is so many rows of so many numbers, 1 MiB on a GPU: products with as large matrices fill
# its processors, also with half a batch.
_SHAPES = {"cuda": (64, 4096), "cpu": (2, 64)}
_SAMPLES, _WORKERS = 32, 4


class Blocks(Dataset[torch.Tensor]):
    """The same rows over and over: a sample costs no more than its copy into the batch."""

    def __init__(self, rows: int, width: int) -> None:
        self._block = torch.ones(rows, width)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._block


def _blocks(place: Place, *, to_device: bool) -> Any:
    make: Any = ff.DataLoader
    device = {"device": place.device} if to_device else {}
    data = Blocks(*_SHAPES[place.device])
    return make(data, batch_size=_SAMPLES, num_workers=_WORKERS, **device)


def _products(place: Place, count: int, dtype: torch.dtype) -> Callable[[Any], Any]:
    """Return what multiplies the rows of a batch with a matrix, again and again."""
    _, width = _SHAPES[place.device]
    weights = torch.randn(width, width, device=place.device) / math.sqrt(width)
    weights = weights.to(dtype)

    def multiply(batch: Any) -> Any:
        rows = batch.reshape(-1, width).to(dtype)
        for _ in range(count):
            rows = rows @ weights
        return rows

    return multiply


def _unpinned_copies(place: Place) -> tuple[Any, Any]:
    multiply = _products(place, 2, torch.float32)

    def step(batch: Any) -> Any:
        return multiply(batch.to(place.device))

    return _blocks(place, to_device=place.cured and place.device == "cuda"), step


def _tiny_kernels(place: Place) -> tuple[Any, Any]:
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(200)]
    model = torch.nn.Sequential(*layers).to(place.device).requires_grad_(requires_grad=False)
    batches = [torch.ones(256, 64, device=place.device) for _ in range(8)]
    if not place.cured or place.device != "cuda":
        return batches, model
    still = batches[0].clone()
    return batches, _replayed(model, still)


def _replayed(model: torch.nn.Module, still: torch.Tensor) -> Callable[[Any], Any]:
    """Return the model as one launch: recorded once, on a batch that keeps its place."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(still)  # libraries take their memory at the first call
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(still)

    def step(batch: Any) -> Any:
        still.copy_(batch)
        graph.replay()
        return result

    return step


def _hidden_synchronisation(place: Place) -> tuple[Any, Any]:
    # Kernels of some 50 us: long enough to fill the GPU, short enough to wait for the host.
    numbers = 1 << (18 if place.device == "cuda" else 6)
    batches = [torch.ones(2 * _SAMPLES, numbers, device=place.device) for _ in range(4)]

    def step(batch: torch.Tensor) -> float:
        seen: Any = 0.0
        for part in range(16):
            loss = (batch * part).mean()
            seen += loss if place.cured else loss.item()
        return float(seen)

    return batches, step


def _gpu_bound(place: Place) -> tuple[Any, Any]:
    dtype = torch.bfloat16 if place.cured else torch.float32
    return _blocks(place, to_device=place.device == "cuda"), _products(place, 20, dtype)


GPU_JOBS: dict[str, Job] = {
    "unpinned copies": Job(("transfer-bound",), 'device="cuda"', _unpinned_copies),
    "many tiny kernels": Job(("submission-bound",), "a CUDA graph", _tiny_kernels),
    "hidden synchronisation": Job(
        ("hidden synchronisation",), "Remove .item()", _hidden_synchronisation
    ),
    "GPU-bound": Job(("GPU-bound",), "precision", _gpu_bound),
}
