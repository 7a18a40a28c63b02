"""tuner: num_workers=AUTO against every fixed number of workers, in jobs of different kinds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import packed, photo_data, raw_shards
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.photos import PhotoSet, find_sources, make_photos

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.tuner"
_SWEEP = "sweep"
# What is asked of AUTO: a rate so near the best, after so many seconds, with so many workers more
# than the fewest that come within 3 % of it, and so many changes a minute afterwards.
_RATE, _SETTLED_S, _MORE, _CHANGES = 0.95, 60.0, 1, 2.0
_LARGE = PhotoSet(count=48, width=2400, height=1800)
_MOST_WAITING = 16
_RAW, _RAW_TOTAL = 100_000, 200_000_000
_MS = 1e-3


@dataclass(frozen=True, slots=True)
class _Job:
    """A data set, the batches of it, and the step of the loop over it."""

    title: str
    job: Mapping[str, Any]
    batch: int
    step_s: float
    most: int
    """The last number of workers in the sweep."""


def _jobs(context: Context) -> list[_Job]:
    cores = len(os.sched_getaffinity(0))
    small = {"kind": "photos", "shards": photo_data(context).shards}
    large_photos = make_photos(find_sources(context.photos), context.work, _LARGE)
    large = {"kind": "photos", "shards": packed(large_photos, shard_size="32MiB")}
    folder = str(raw_shards(context.work, size=_RAW, total=_RAW_TOTAL))
    raw = {"kind": "raw", "folder": folder}
    slow = {"kind": "slow files", "folder": folder, "size": _RAW, "wait_s": 10 * _MS}
    crowded = {"kind": "crowded", "wait_s": 4 * _MS, "crowding": 1 / 8}
    single = {"kind": "crowded", "wait_s": 4 * _MS, "crowding": 1.5}
    most = cores + 1
    return [
        _Job("small JPEG", small, 16, 2 * _MS, most),
        _Job("large JPEG", large, 2, 2 * _MS, most),
        _Job("raw", raw, 32, 20 * _MS, most),
        _Job("slow storage, 10 ms a read", slow, 8, 12 * _MS, _MOST_WAITING),
        _latency(work=160, step=10),
        _latency(work=50, step=12),
        _Job("a server that suffers from crowds", crowded, 8, 2 * _MS, 8),
        _Job("a server for one at a time", single, 8, 2 * _MS, 4),
    ]


def _latency(*, work: int, step: int) -> _Job:
    job = {"kind": "waiting", "wait_s": work * _MS / 8}
    title = f"batches that take {work} ms of waiting, steps of {step} ms"
    return _Job(title, job, 8, step * _MS, _MOST_WAITING)


def _cases(context: Context) -> list[Case]:
    return [_case(job) for job in _jobs(context)]


def _case(job: _Job) -> Case:
    settings = {
        "job": job.job,
        "batch": job.batch,
        "step_s": job.step_s,
        "most": job.most,
        "run_s": 1.2,
        "warm_s": 0.5,
        "quiet_s": 15.0,
        "limit_s": 2 * _SETTLED_S,
    }
    systems = (
        System(OURS, f"{_MODULE}:auto_session", settings, role="ours"),
        System(_SWEEP, f"{_MODULE}:sweep_session", settings),
    )
    return Case(job.title, systems, judge_same)


def finish(result: Mapping[str, Any]) -> dict[str, Any]:
    """Say of each case which of the aims were met."""
    return {**result, "cases": [_with_aims(case) for case in result["cases"]]}


def _with_aims(case: Mapping[str, Any]) -> dict[str, Any]:
    rows = {row["system"]: row for row in case["rows"]}
    auto, sweep = rows.get(OURS, {}), rows.get(_SWEEP, {})
    if not auto.get("n") or not sweep.get("n"):
        return {**case, "met": None}
    met = {
        "rate": case["ratio"] >= _RATE,
        "in_time": auto["settled_s"] <= _SETTLED_S,
        "workers": auto["workers"] <= sweep["fewest"] + _MORE,
        "quiet": auto["changes_a_minute_after"] <= _CHANGES,
    }
    missed = [name for name, is_met in met.items() if not is_met]
    note = f"MISSED: {', '.join(missed)}" if missed else "all aims met"
    noted = [
        {**row, "note": f"{note}; {row['note']}"} if row["system"] == OURS else row
        for row in case["rows"]
    ]
    return {**case, "met": met, "rows": noted}


BENCHMARK = Benchmark(
    name="tuner",
    unit="batches/s",
    higher_is_better=True,
    summary="num_workers=AUTO against every fixed number of workers",
    cases=_cases,
    peers=(_SWEEP,),
    finish=finish,
)
