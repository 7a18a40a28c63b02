"""jpeg-cpu: photos from warm page cache to uint8 batches of random resized crops, on CPU cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import photo_data
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.probe import judge_pictures

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_BATCH = 64
# Two workers are the task; one more hides the time a worker waits for the disk or the consumer.
_WORKERS = ({"workers": 2}, {"workers": 3})
_TORCH = {
    "torch-pillow": ("pillow", "RandomResizedCrop of torchvision v2"),
    "torch-torchvision": ("torchvision", "decode_jpeg, RandomResizedCrop of torchvision v2"),
    "torch-simplejpeg-cv2": ("cv2", "full decode, crop, INTER_AREA"),
    "torch-simplejpeg-aten": ("aten", "full decode, crop, torch's own uint8 antialiased kernel"),
}
_OTHERS = {"webdataset": "jpeg_webdataset", "dali-cpu": "jpeg_dali", "spdl": "jpeg_spdl"}


def _cases(context: Context) -> list[Case]:
    data = photo_data(context)
    settings = {**data.settings, "batch": _BATCH, "repeats": 1 if context.quick else 4}
    systems = [_system(OURS, "jpeg_fastfeed", settings, role="ours")]
    for name, (recipe, about) in _TORCH.items():
        told = {**settings, "recipe": recipe}
        systems.append(_system(name, "jpeg_torch", told, about=about))
    for name, module in _OTHERS.items():
        systems.append(_system(name, module, settings))
    return [Case("RandomResizedCrop 224, uint8, batch 64", tuple(systems), judge_pictures)]


def _system(name: str, module: str, settings: dict[str, Any], **more: Any) -> System:
    target = f"fastfeed_bench.systems.{module}:session"
    return System(name, target, settings, _WORKERS, **more)


BENCHMARK = Benchmark(
    name="jpeg-cpu",
    unit="img/s",
    higher_is_better=True,
    summary="JPEG decode, random resized crop to 224 with an antialiased filter, batches of 64",
    cases=_cases,
    peers=(*_TORCH, *_OTHERS),
)
