"""jpeg-gpu: photos from warm page cache to uint8 batches of random resized crops on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import photo_data
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.probe import COUNT, judge_pictures

if TYPE_CHECKING:
    from fastfeed_bench.model import Context, Settings

_BATCH = 512
# More batches than any system holds ready, so that what is timed was made meanwhile.
_LEAD = 32
_PHOTOS, _QUICK_PHOTOS = 120_000, 50_000
DALI_GRID: tuple[Settings, ...] = tuple(
    {"threads": threads, "hw_load": load}
    # The first is taken where nothing is tuned.
    for threads in (15, 4, 8, 12)
    for load in (0.65, 0.9, 1.0)
)
"""Settings of DALI to choose from: CPU threads, and the share of its JPEG engines."""
READERS: tuple[Settings, ...] = tuple({"workers": workers} for workers in (4, 2, 8))


def _cases(context: Context) -> list[Case]:
    data = photo_data(context, shard_size="1GiB").settings
    photos = _QUICK_PHOTOS if context.quick else _PHOTOS
    repeats = -(-photos // data["count"])
    settings: dict[str, Any] = {
        **data,
        "batch": _BATCH,
        "probe_batch": COUNT // 2,
        "repeats": repeats,
        "batches": data["count"] * repeats // _BATCH,
        "lead": _LEAD,
    }
    module = "fastfeed_bench.systems"
    ours = f"{module}.gpu_jpeg:fastfeed_session"
    systems = (
        System(OURS, ours, {**settings, "decode": "auto"}, role="ours"),
        System(
            "fastfeed-gpu",
            ours,
            {**settings, "decode": "gpu"},
            role="reference",
            about="all pictures decoded on the GPU",
        ),
        System("dali-gpu", f"{module}.gpu_dali:session", settings, DALI_GRID),
        System("torchvision-gpu", f"{module}.gpu_jpeg:torchvision_session", settings, READERS),
    )
    return [Case(f"RandomResizedCrop 224, uint8, batch {_BATCH}", systems, judge_pictures)]


BENCHMARK = Benchmark(
    name="jpeg-gpu",
    unit="img/s",
    higher_is_better=True,
    summary="JPEG decode and random resized crop to 224 on the GPU, batches of 512, no training",
    cases=_cases,
    peers=("fastfeed-gpu", "dali-gpu", "torchvision-gpu"),
)
