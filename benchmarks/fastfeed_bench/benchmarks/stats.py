"""stats: what the loader's statistics, which are always on, add to a batch at full speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastfeed_bench.model import OURS, Benchmark, Case, Finding, System

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Context, Evidence

_TARGET = "fastfeed_bench.systems.stats:session"
_QUICK_SHARE = 4


class _Shape(NamedTuple):
    """A shape of `transport`, and how many turns of it are counted in a run."""

    name: str
    title: str
    batch: int
    pairs: int


_SHAPES = (
    _Shape("uint8", "uint8 3x224x224", 64, 160),
    _Shape("tokens", "dict of three int64 of 512", 64, 240),
    _Shape("labels", "labels only", 256, 400),
)


def _cases(context: Context) -> list[Case]:
    share = _QUICK_SHARE if context.quick else 1
    return [_case(shape, workers, shape.pairs // share) for shape in _SHAPES for workers in (1, 2)]


def _case(shape: _Shape, workers: int, pairs: int) -> Case:
    settings = {"shape": shape.name, "batch": shape.batch, "workers": workers, "pairs": pairs}
    plural = "worker" if workers == 1 else "workers"
    name = f"{shape.title}, batch {shape.batch}, {workers} {plural}"
    return Case(name, (System(OURS, _TARGET, settings, role="ours"),), judge)


def judge(evidence: Mapping[str, Evidence]) -> dict[str, Finding]:
    """Find equal if every other turn was counted, and no others: they are of one epoch."""
    return {name: _check(found) for name, found in evidence.items()}


def _check(found: Evidence) -> Finding:
    if found["counted"] == found["turns"] // 2 > 0:
        return Finding(equal=True)
    note = f"NOT EQUAL: {found['counted']:g} of {found['turns']} turns were counted"
    return Finding(equal=False, note=note)


BENCHMARK = Benchmark(
    name="stats",
    unit="% of a batch's time",
    higher_is_better=False,
    summary="what counting adds to a batch of transport at full speed, in trainer and workers",
    cases=_cases,
    peers=(),
)
