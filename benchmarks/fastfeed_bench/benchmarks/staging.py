"""staging: remote shards by way of a shelf, over a link of 100 MB/s and 50 ms."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed.staging.stager import THREADS
from fastfeed.staging.transfer import PIECE
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, Finding, System

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastfeed_bench.model import Context, Evidence, Settings

_READERS = "fastfeed_bench.systems.staging"
_BOUNDS = "fastfeed_bench.systems.staging_bounds"
_RATE, _LATENCY = 100e6, 0.05
_SAMPLE, _BATCH = 100_000, 64
_FEW = 8
"""Samples of a batch where shards are small, or memory is what counts."""
_SHARDS = 2
"""Shards of a window: a data set has many windows, as large ones have."""
_ROUNDS = 3
"""Manifest, index, data."""
_WORKERS = ({"workers": 2}, {"workers": 4}, {"workers": 1})
_OWN_MIB = 64
"""What staging may take beside its buffers."""


def _cases(context: Context) -> list[Case]:
    quick = context.quick
    far = _settings(context, shards=32 if quick else 128, per_shard=160)
    small = _settings(context, shards=64, per_shard=10)
    large = (640, 2560) if quick else (2560, 10_240)
    return [
        _first_epoch(far),
        _later_epoch(far),
        _first_batch(far),
        _half_shelf(small),
        *(_memory(_settings(context, shards=2, per_shard=count)) for count in large),
    ]


def _settings(context: Context, *, shards: int, per_shard: int) -> dict[str, Any]:
    folder = _shards(context.work, shards=shards, per_shard=per_shard)
    nbytes = sum(path.stat().st_size for path in folder.glob("*.tar"))
    return {
        "work": str(context.work),
        "folder": str(folder),
        "shards": shards,
        "samples": shards * per_shard,
        "nbytes": nbytes,
        "batch": _BATCH,
        "window": _SHARDS * per_shard,
        "window_bytes": _SHARDS * nbytes // shards,
        "rate": _RATE,
        "latency": _LATENCY,
    }


def _shards(work: Path, *, shards: int, per_shard: int) -> Path:
    """Return a folder of shards of random samples, made if need be."""
    from fastfeed_shard.plan import packed_size
    from fastfeed_shard.writer import ShardWriter

    folder = work / f"far-{shards}-{per_shard}"
    if (folder / MANIFEST_NAME).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    random = np.random.default_rng(per_shard)
    room = per_shard * packed_size([_SAMPLE]) + (1 << 14)
    with ShardWriter(folder, name="far", shard_size=room) as writer:
        for number in range(shards * per_shard):
            writer.write({"__key__": f"{number:09d}", "bin": random.bytes(_SAMPLE)})
    return folder


def _reading(settings: Settings, measure: str, *, workers: int, **more: Any) -> System:
    own = {**settings, "measure": measure, "workers": workers, **more}
    return System(OURS, f"{_READERS}:fastfeed_session", own, role="ours")


def _webdataset(settings: Settings, measure: str, **more: Any) -> System:
    own = {**settings, "measure": measure, **more}
    workers = ({},) if "workers" in more else _WORKERS
    return System("webdataset", f"{_READERS}:webdataset_session", own, workers)


def _first_epoch(settings: Settings) -> Case:
    link = System(
        "link",
        f"{_BOUNDS}:Download",
        settings,
        role="reference",
        about="what the link gives; no samples are told apart",
    )
    measure = "first epoch"
    systems = (_reading(settings, measure, workers=2), _webdataset(settings, measure), link)
    return Case("first epoch, from afar", systems, judge_same)


def _later_epoch(settings: Settings) -> Case:
    measure = "later epoch"
    ours = _reading(settings, measure, workers=2)
    local = System(
        "local",
        ours.target,
        {**ours.settings, "local": True},
        role="reference",
        about="the same loader on the folder itself",
    )
    return Case(
        "second epoch, from the shelf",
        (ours, _webdataset(settings, measure, keeps=True), local),
        judge_same,
    )


def _first_batch(settings: Settings) -> Case:
    steps = System(
        "rounds",
        f"{_BOUNDS}:Steps",
        settings,
        role="reference",
        about="three round trips and the batch's bytes, on connections that are open",
    )
    measure = "first batch"
    systems = (
        _reading(settings, measure, workers=0),
        _webdataset(settings, measure, workers=0),
        steps,
    )
    return Case(f"first batch of {_BATCH}", systems, _judge_start, unit="s", higher_is_better=False)


def _judge_start(evidence: Mapping[str, Evidence]) -> dict[str, Finding]:
    """Find equal what is a batch of the same size, ours after no more rounds than it may take."""
    found = {}
    for name, seen in evidence.items():
        wrong = []
        if (seen["samples"], seen["bytes"]) != (_BATCH, _BATCH * _SAMPLE):
            wrong.append(f"{seen['samples']} samples of {seen['bytes']:,} bytes")
        if name == OURS and seen["in_series"] > _ROUNDS:
            wrong.append(f"{seen['in_series']:.0f} requests in series, not {_ROUNDS}")
        found[name] = Finding(not wrong, f"NOT EQUAL: {'; '.join(wrong)}" if wrong else "")
    return found


def _half_shelf(settings: Settings) -> Case:
    room = settings["nbytes"] // 2
    settings = {**settings, "epochs": 5, "room": room, "batch": _FEW}
    measured = _reading(settings, "half shelf", workers=1)
    lru = System(
        "lru",
        f"{_BOUNDS}:Simulated",
        {**settings, "rule": "lru"},
        about="drops what was not read for longest, as the caches of other loaders do",
    )
    optimum = System(
        "optimum",
        lru.target,
        {**settings, "rule": "optimum"},
        role="reference",
        about="Belady's rule, which knows the order of all epochs",
    )
    return Case(
        "shelf of half the data set, epochs 2 to 5",
        (measured, lru, optimum),
        judge_same,
        unit="% hits",
    )


def _memory(settings: Settings) -> Case:
    buffers = THREADS * PIECE >> 20
    settings = {**settings, "batch": _FEW, "window": _FEW}
    about = {
        "value": _OWN_MIB + buffers,
        "why": f"the aim: {_OWN_MIB} MiB and {buffers} MiB of buffers",
        "samples": settings["samples"],
    }
    return Case(
        f"memory, shards of {settings['nbytes'] // settings['shards'] >> 20:,} MiB",
        (
            _reading(settings, "memory", workers=0),
            replace(
                _webdataset(settings, "memory", workers=0, keeps=True),
                role="reference",
                about="brings one shard at a time through curl, whose own memory is not counted",
            ),
            System("aim", f"{_BOUNDS}:Bound", about, role="reference"),
        ),
        judge_same,
        unit="MiB grown",
        higher_is_better=False,
    )


BENCHMARK = Benchmark(
    name="staging",
    unit="MB/s",
    higher_is_better=True,
    summary="shards behind a link of 100 MB/s and 50 ms, by way of a shelf",
    cases=_cases,
    peers=("webdataset", "lru", "link", "local", "rounds", "optimum", "aim"),
)
