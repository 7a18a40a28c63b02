"""shard-read: raw samples of warm shards, in order, not decoded, every byte read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import raw_shards
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.shard_read"
_WORKERS = ({"workers": 0}, {"workers": 1}, {"workers": 2})
_CHUNKS = tuple({"chunk": size << 10} for size in (1024, 256, 2048, 8192))
# Name of the case: bytes of a sample, bytes in all, samples of a batch.
_SIZES = {"2 kB samples": (2_000, 200_000_000, 512), "100 kB samples": (100_000, 800_000_000, 64)}


def _cases(context: Context) -> list[Case]:
    return [_case(context, name, *sizes) for name, sizes in _SIZES.items()]


def _case(context: Context, name: str, size: int, total: int, batch: int) -> Case:
    total //= 4 if context.quick else 1
    settings: dict[str, Any] = {
        "folder": str(raw_shards(context.work, size=size, total=total)),
        "samples": total // size,
        "batch": batch,
    }
    ours = System(OURS, f"{_MODULE}:fastfeed_session", settings, _WORKERS, role="ours")
    peer = System("webdataset", f"{_MODULE}:webdataset_session", settings, _WORKERS)
    plain = System(
        "pread",
        f"{_MODULE}:plain_session",
        settings,
        _CHUNKS,
        role="reference",
        about="what the page cache gives; no samples are told apart, so no peer",
    )
    return Case(name, (ours, peer, plain), judge_same)


BENCHMARK = Benchmark(
    name="shard-read",
    unit="samples/s",
    higher_is_better=True,
    summary="raw samples of 2 kB and 100 kB from warm shards, each system's best number of workers",
    cases=_cases,
    peers=("webdataset", "pread"),
)
