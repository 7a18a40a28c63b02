"""steady: what a long run holds, early and late, and what each batch costs the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import photo_data, raw_shards
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, Finding, System

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Context, Evidence

_TARGET = "fastfeed_bench.systems.steady:session"
_FAULTS = "fastfeed_bench.systems.faults"
_EARLY = "early"
# Counts must not grow at all; an allocator may move by this much.
_COUNTS = ("descriptors", "threads", "processes")
_SHARE, _MB = 1.05, 8.0


def _cases(context: Context) -> list[Case]:
    shards = photo_data(context).shards
    raw = raw_shards(context.work, size=2000, total=50_000_000)
    late = 2_000 if context.quick else 10_000
    return [
        _case("raw samples, batch 64", raw, late=late, batch=64, photos=False),
        _case("photos, batch 2", Path(shards[0]).parent, late=late, batch=2, photos=True),
        _faults(),
    ]


def _case(name: str, folder: Path, *, late: int, **more: Any) -> Case:
    settings = {"folder": str(folder), "workers": 2, **more}
    systems = (
        System(OURS, _TARGET, {**settings, "first": late}, role="ours"),
        System(_EARLY, _TARGET, {**settings, "first": late // 10}),
    )
    return Case(f"{name}, 2 workers, {late:,} batches", systems, _judge)


def _faults() -> Case:
    """Compare ready-made images by both loaders; the figures of a batch stand beside the memory."""
    settings = {"shape": "uint8", "batch": 64, "samples": 64 * 200, "workers": 2, "prefetch": 2}
    systems = (
        System(OURS, f"{_FAULTS}:fastfeed_session", settings, role="ours"),
        System("torch", f"{_FAULTS}:torch_session", settings),
    )
    return Case("uint8 3x224x224, batch 64, 2 workers", systems, judge_same)


def _judge(evidence: Mapping[str, Evidence]) -> dict[str, Finding]:
    """Find equal if nothing grew between the early and the late reading."""
    early, late = evidence.get(_EARLY), evidence.get(OURS)
    if early is None or late is None:
        return {}
    grown = [name for name in _COUNTS if late[name] > early[name]]
    grown += [
        name
        for name in ("value", "shared_mb")
        if late[name] > max(_SHARE * early[name], early[name] + _MB)
    ]
    figures = ", ".join(
        f"{name} {early[name]:.0f} -> {late[name]:.0f}" for name in (*_COUNTS, "shared_mb")
    )
    state = f"NOT FLAT: {', '.join(grown)}" if grown else "flat"
    return {
        OURS: Finding(not grown, f"{state} since batch {early['first']:,}: {figures}"),
        _EARLY: Finding(equal=True),
    }


BENCHMARK = Benchmark(
    name="steady",
    unit="resident MB",
    higher_is_better=False,
    summary="what a run holds after 10,000 batches, against after 1,000: `equal` says it is flat",
    cases=_cases,
    peers=(_EARLY, "torch"),
)
