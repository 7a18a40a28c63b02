"""transport: how fast ready-made samples come from worker processes, every byte read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.transport"
_PREFETCH = ({"prefetch": 2}, {"prefetch": 4})
# Settings are found with the first of these, for all.
_WORKERS = (2, 1, 4)
_QUICK_SHARE = 4


class _Shape(NamedTuple):
    """A row of the list below; `systems.shapes` makes the samples."""

    name: str
    title: str
    batch: int
    batches: int
    """In an epoch: about a second of torch's with two workers."""
    workers: tuple[int, ...] = _WORKERS


_SHAPES = (
    _Shape("uint8", "uint8 3x224x224", 64, 256),
    _Shape("uint8", "uint8 3x224x224", 256, 64, (2,)),
    _Shape("float32", "float32 3x224x224", 64, 128, (2,)),
    _Shape("float32", "float32 3x224x224", 256, 32, (2,)),
    _Shape("many", "dict of 100 small tensors", 32, 40),
    _Shape("strings", "strings only", 256, 5000),
    _Shape("ragged", "ragged lists of ints", 64, 2400),
    _Shape("labels", "labels only", 256, 1600),
    _Shape("large", "one tensor of 200 MB", 1, 8),
    _Shape("tokens", "dict of three int64 of 512", 64, 400),
    _Shape("nested", "nested tuples and named tuples", 32, 400),
    _Shape("wrapped", "torchvision's image class, stacked", 64, 80),
    _Shape("detection", "torchvision's images and boxes, in lists", 16, 60),
    _Shape("arrays", "numpy arrays", 64, 400),
    _Shape("sparse", "sparse tensors", 32, 800),
    _Shape("scalars", "list of 0-dim tensors", 64, 60),
    _Shape("boxes", "lists of small float tensors", 16, 60),
    _Shape("objects", "batch class with pickled contents", 64, 1600),
    _Shape("bytes", "bytes of 20 kB", 64, 240),
    _Shape("mixed", "image, label and string", 64, 300),
)


def _cases(context: Context) -> list[Case]:
    return [
        _case(shape, workers, shape.batches // (_QUICK_SHARE if context.quick else 1))
        for shape in _SHAPES
        for workers in shape.workers
        if workers == _WORKERS[0] or not context.quick
    ]


def _case(shape: _Shape, workers: int, batches: int) -> Case:
    settings = {
        "shape": shape.name,
        "batch": shape.batch,
        "samples": shape.batch * batches,
        "workers": workers,
    }
    # More than two batches of 200 MB for each worker are more than anybody would wait for.
    prefetch = _PREFETCH[:1] if shape.name == "large" else _PREFETCH
    systems = (
        System(OURS, f"{_MODULE}:fastfeed_session", settings, prefetch, role="ours"),
        System("torch", f"{_MODULE}:torch_session", settings, prefetch),
    )
    what = f"{shape.title}, batch {shape.batch}"
    plural = "worker" if workers == 1 else "workers"
    return Case(f"{what}, {workers} {plural}", systems, judge_same, tuned_as=what)


BENCHMARK = Benchmark(
    name="transport",
    unit="samples/s",
    higher_is_better=True,
    summary="ready-made samples of many kinds from worker processes, every byte read",
    cases=_cases,
    peers=("torch",),
)
