"""work: an ordinary map-style data set of photos, with Pillow and torchvision's transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.photos import find_sources, make_photos

if TYPE_CHECKING:
    from fastfeed_bench.model import Context

_MODULE = "fastfeed_bench.systems.work"
_TRANSFORMS = {
    "float32": "ToImage and ToDtype(float32)",
    "uint8": "PILToTensor",
}
_BATCH, _WORKERS = 64, 2


def _cases(context: Context) -> list[Case]:
    photos = str(make_photos(find_sources(context.photos), context.work))
    repeats = 1 if context.quick else 3
    return [_case(photos, repeats, dtype) for dtype in _TRANSFORMS]


def _case(photos: str, repeats: int, dtype: str) -> Case:
    settings = {
        "photos": photos,
        "repeats": repeats,
        "dtype": dtype,
        "batch": _BATCH,
        "workers": _WORKERS,
    }
    systems = (
        System(OURS, f"{_MODULE}:fastfeed_session", settings, role="ours"),
        System("torch", f"{_MODULE}:torch_session", settings),
    )
    name = f"crop 224, flip, {_TRANSFORMS[dtype]}, batch {_BATCH}, {_WORKERS} workers"
    return Case(name, systems, judge_same)


BENCHMARK = Benchmark(
    name="work",
    unit="img/s",
    higher_is_better=True,
    summary="a torch data set of photos by Pillow and torchvision, the same in both loaders",
    cases=_cases,
    peers=("torch",),
)
