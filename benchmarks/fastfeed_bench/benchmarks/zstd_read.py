"""zstd-read: samples of warm `.tar.zst` shards, in order and shuffled."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastfeed_bench.model import Context, Settings

_SAMPLES = "fastfeed_bench.systems.shard_read"
_APART = "fastfeed_bench.systems.zstd_read"
_WORKERS = ({"workers": 0}, {"workers": 1}, {"workers": 2})
# What webdataset keeps to shuffle, and among how many bytes we shuffle sample by sample.
_BUFFER = 64 << 20
# The default: all of the shards. A process keeps 128 MiB of their frames decoded.
_LARGE = 4 << 30
_WORD = 8
# Bytes of a sample -> samples of a batch, bytes in all: more than is kept decoded.
_SIZES = {2_000: (512, 400_000_000), 100_000: (64, 800_000_000)}


def _cases(context: Context) -> list[Case]:
    return [
        *(_in_order(context, size) for size in _SIZES),
        *(_one_core(context, size) for size in _SIZES),
        *(_shuffled(context, size, _BUFFER, "within 64 MiB") for size in _SIZES),
        *(_shuffled(context, size, _LARGE, "over all shards") for size in _SIZES),
    ]


def _settings(context: Context, size: int, window: int) -> dict[str, Any]:
    batch, total = _SIZES[size]
    total //= 2 if context.quick else 1
    folder = _text_shards(context.work, size=size, count=total // size)
    return {
        "folder": str(folder),
        "samples": total // size,
        "batch": batch,
        "buffer": _BUFFER // size if window else 0,
        "window_bytes": window,
    }


def _text_shards(work: Path, *, size: int, count: int) -> Path:
    """Return a folder of zstd shards of `count` samples, made if need be.

    Each sample is `size` bytes of words, some far more frequent than others: zstd makes a third of
    them. Four shards make 64 MiB.
    """
    from fastfeed_shard.writer import ShardWriter

    folder = work / f"words-{size}-{count}"
    if (folder / MANIFEST_NAME).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    random = np.random.default_rng(size)
    words = random.integers(ord("a"), ord("z") + 1, (1 << 14, _WORD), np.uint8)
    words[:, -1] = ord(" ")
    with ShardWriter(folder, name="words", shard_size=_BUFFER // 4, compress="zstd") as writer:
        for number in range(count):
            chosen = random.zipf(1.2, -(-size // _WORD)) % len(words)
            data = words[chosen].tobytes()[:size]
            writer.write({"__key__": f"{number:09d}", "bin": data})
    return folder


def _in_order(context: Context, size: int) -> Case:
    settings = _settings(context, size, 0)
    ours = System(OURS, f"{_SAMPLES}:fastfeed_session", settings, _WORKERS, role="ours")
    return Case(f"{size // 1000} kB samples in order", (ours, _webdataset(settings)), judge_same)


def _one_core(context: Context, size: int) -> Case:
    """Ours has one process, as the plain decompressor has."""
    settings = _settings(context, size, 0)
    plain = System(
        "zstd",
        f"{_APART}:plain_session",
        settings,
        role="reference",
        about="what one core decompresses; no samples are told apart, so no peer",
    )
    ours = System(OURS, f"{_APART}:fastfeed_session", settings, _WORKERS[:1], role="ours")
    return Case(f"{size // 1000} kB samples in order on one core", (ours, plain), judge_same)


def _shuffled(context: Context, size: int, window: int, how: str) -> Case:
    settings = _settings(context, size, window)
    ours = System(OURS, f"{_SAMPLES}:fastfeed_session", settings, _WORKERS, role="ours")
    systems = (ours, _webdataset(settings))
    return Case(f"{size // 1000} kB samples shuffled {how}", systems, judge_same)


def _webdataset(settings: Settings) -> System:
    return System("webdataset", f"{_SAMPLES}:webdataset_session", settings, _WORKERS)


def _with_unread(result: Mapping[str, Any]) -> dict[str, Any]:
    """Add what the decompressor is compared with that nobody's reading is part of."""
    return {**result, "cases": [_compared_unread(case) for case in result["cases"]]}


def _compared_unread(case: Mapping[str, Any]) -> dict[str, Any]:
    rows = {row["system"]: row for row in case["rows"]}
    ours, plain = rows.get(OURS, {}).get("unread"), rows.get("zstd", {}).get("median")
    if ours is None or plain is None:
        return dict(case)
    return {**case, "of_zstd_unread": round(ours / plain, 3)}


BENCHMARK = Benchmark(
    name="zstd-read",
    unit="samples/s",
    higher_is_better=True,
    summary="samples of 2 kB and 100 kB from warm .tar.zst shards, in order and shuffled",
    cases=_cases,
    peers=("webdataset", "zstd"),
    finish=_with_unread,
)
