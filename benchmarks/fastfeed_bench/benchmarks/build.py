"""build: packing about a gigabyte of photos, compared with GNU tar of the same folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import copies, photo_data
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.build"
_TIMES = 10


def _cases(context: Context) -> list[Case]:
    photos = photo_data(context).photos
    times = 2 if context.quick else _TIMES
    settings: dict[str, Any] = {"folder": str(copies(photos, times)), "jobs": 2}
    systems = (
        System(OURS, f"{_MODULE}:fastfeed_session", settings, role="ours"),
        System("tar", f"{_MODULE}:tar_session", {**settings, "sync": False}),
        System(
            "tar-sync",
            f"{_MODULE}:tar_session",
            {**settings, "sync": True},
            role="reference",
            about="then fsync of its file, as our shards are before they get their name",
        ),
    )
    return [Case(f"{1000 * times:,} photos, fresh destination, warm cache", systems, judge_same)]


BENCHMARK = Benchmark(
    name="build",
    unit="MB/s",
    higher_is_better=True,
    summary="packing a folder of photos into indexed shards, against GNU tar",
    cases=_cases,
    peers=("tar", "tar-sync"),
)
