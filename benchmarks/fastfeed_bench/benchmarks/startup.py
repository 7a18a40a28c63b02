"""startup: seconds from constructing the data set to the first batch, in a process that is warm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import photo_data, synthetic_index
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.startup"
_COMMON = {"workers": 2, "batch": 64}
_SAMPLE = 2048
# Header and data of one sample in its shard.
_STRIDE = 512 + _SAMPLE


def _cases(context: Context) -> list[Case]:
    data = photo_data(context)
    photos = {**_COMMON, "photos": str(data.photos)}
    shards = {**photos, "shards_folder": str(Path(data.shards[0]).parent)}
    many = 10_000 // (10 if context.quick else 1)
    return [
        _case("1,000 photos, same data set, 2 workers", photos, "fastfeed_folder", "torch_folder"),
        _case("1,000 photos, shards, 2 workers", shards, "fastfeed_shards", "torch_folder"),
        _indexed(context, shards=many, samples=1000),
        _indexed(context, shards=1, samples=1000 * many),
        _case(
            "an array of 500 MB, 2 spawned workers",
            {**_COMMON, "nbytes": 500_000_000},
            "fastfeed_spawned",
            "torch_spawned",
        ),
    ]


def _indexed(context: Context, *, shards: int, samples: int) -> Case:
    folder = synthetic_index(context.work, shards=shards, samples=samples, size=_SAMPLE)
    settings = {
        **_COMMON,
        "folder": str(folder),
        "per_shard": samples,
        "stride": _STRIDE,
        "size": _SAMPLE,
    }
    name = f"{shards * samples:,} samples in {shards:,} shards, 2 workers"
    return _case(name, settings, "fastfeed_indexed", "torch_indexed")


def _case(name: str, settings: dict[str, Any], ours: str, peer: str) -> Case:
    systems = (
        System(OURS, f"{_MODULE}:{ours}", settings, role="ours"),
        System("torch", f"{_MODULE}:{peer}", settings),
    )
    return Case(name, systems, judge_same)


BENCHMARK = Benchmark(
    name="startup",
    unit="s",
    higher_is_better=False,
    summary="from constructing the data set to the first batch; unshared memory of a worker",
    cases=_cases,
    peers=("torch",),
)
