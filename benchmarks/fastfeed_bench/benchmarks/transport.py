"""transport: how fast ready-made tensors come from worker processes, every byte read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.transport"
_PREFETCH = ({"prefetch": 2}, {"prefetch": 4})
# Enough for a second or two of the faster system.
_SAMPLES = {"uint8": 32_768, "float32": 16_384}


def _cases(context: Context) -> list[Case]:
    return [
        _case(dtype, batch, _SAMPLES[dtype] // (8 if context.quick else 1))
        for dtype in ("uint8", "float32")
        for batch in (64, 256)
    ]


def _case(dtype: str, batch: int, samples: int) -> Case:
    settings = {"dtype": dtype, "batch": batch, "samples": samples, "workers": 2}
    systems = (
        System(OURS, f"{_MODULE}:fastfeed_session", settings, _PREFETCH, role="ours"),
        System("torch", f"{_MODULE}:torch_session", settings, _PREFETCH),
    )
    return Case(f"{dtype} 3x224x224, batch {batch}, 2 workers", systems, judge_same)


BENCHMARK = Benchmark(
    name="transport",
    unit="img/s",
    higher_is_better=True,
    summary="ready-made tensors from two worker processes, every byte read by the consumer",
    cases=_cases,
    peers=("torch",),
)
