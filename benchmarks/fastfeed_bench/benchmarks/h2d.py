"""h2d: ready-made bytes from worker processes to the GPU, against what the link can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.h2d"
_SAMPLE = 128 << 10
_MIB = (1, 4, 16, 64, 256)
_QUICK_MIB = (16, 64)
# The first is taken where nothing is tuned: it takes many to copy together what a link carries.
_WORKERS = ({"workers": 14}, {"workers": 8}, {"workers": 4})
# A pass moves this much, within the limits of what is worth waiting for.
_PASS_BYTES, _QUICK_PASS_BYTES = 16 << 30, 6 << 30
_LEAST, _MOST = 40, 2000
# More than 14 workers hold ready before a pass begins.
_LEAD = 32


def _cases(context: Context) -> list[Case]:
    sizes = _QUICK_MIB if context.quick else _MIB
    moved = _QUICK_PASS_BYTES if context.quick else _PASS_BYTES
    return [_case(mib, min(_MOST, max(_LEAST, moved // (mib << 20)))) for mib in sizes]


def _case(mib: int, batches: int) -> Case:
    settings: dict[str, Any] = {
        "batch": (mib << 20) // _SAMPLE,
        "batches": batches,
        "lead": _LEAD,
    }
    systems = (
        System(OURS, f"{_MODULE}:fastfeed_session", settings, _WORKERS, role="ours"),
        System("torch", f"{_MODULE}:torch_session", settings, _WORKERS),
        System(
            "link",
            f"{_MODULE}:link_session",
            settings,
            role="reference",
            about="the same pinned batch over and over: what the link gives, so no peer",
        ),
    )
    return Case(f"batches of {mib} MiB", systems, judge_same)


BENCHMARK = Benchmark(
    name="h2d",
    unit="GB/s",
    higher_is_better=True,
    summary="ready-made batches to the GPU: share of the link's rate, and what compute hides",
    cases=_cases,
    peers=("torch", "link"),
)
