"""decoded: epochs of PNG photos with a random crop, from a cache of all or half of them."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.photos import find_sources, make_photos

if TYPE_CHECKING:
    from pathlib import Path

    from fastfeed_bench.model import Context

_TARGET = "fastfeed_bench.systems.decoded:session"
_PLAIN = "no-cache"
_BATCH, _WORKERS = 64, 2
# Bytes of the cache for each photo: more than the largest takes, and half of the mean.
_SIZES = {"all": 640_000, "half": 285_000}


def _cases(context: Context) -> list[Case]:
    count = 128 if context.quick else 512
    folder = _png_shards(context, count)
    return [_case(folder, count, name, size) for name, size in _SIZES.items()]


def _case(folder: Path, count: int, name: str, size: int) -> Case:
    settings = {"folder": str(folder), "count": count, "batch": _BATCH, "workers": _WORKERS}
    systems = (
        System(OURS, _TARGET, {**settings, "cache": size * count}, role="ours"),
        System(_PLAIN, _TARGET, {**settings, "cache": 0}),
    )
    return Case(f"PNG 500x375, crop 224, a cache of {name}", systems, judge_same)


def _png_shards(context: Context, count: int) -> Path:
    """Return a folder of shards of `count` photos as PNG, made if need be."""
    from PIL import Image

    from fastfeed_shard.writer import ShardWriter

    photos = make_photos(find_sources(context.photos), context.work)
    folder = context.work / f"png-{photos.name}-{count}"
    if (folder / MANIFEST_NAME).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    with ShardWriter(folder, name="png", shard_size=64 << 20) as writer:
        for path in sorted(photos.rglob("*.jpg"))[:count]:
            file = io.BytesIO()
            with Image.open(path) as picture:
                picture.save(file, "PNG", compress_level=3)
            writer.write({"__key__": path.stem, "png": file.getvalue()})
    return folder


BENCHMARK = Benchmark(
    name="decoded",
    unit="img/s",
    higher_is_better=True,
    summary="PNG photos with a random crop, from a cache of all or half of them",
    cases=_cases,
    peers=(_PLAIN,),
)
