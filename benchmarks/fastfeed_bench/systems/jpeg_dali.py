"""jpeg-cpu by DALI without a GPU: its fused decode of a random crop, in its own threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from nvidia import dali
from nvidia.dali import fn, pipeline_def, types

from fastfeed_bench.consume import read_array
from fastfeed_bench.probe import examine
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.windows import RATIO, SCALE, SIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fastfeed_bench.model import Evidence, Settings
    from fastfeed_bench.systems.files import Photo

    Batch = tuple[NDArray[np.uint8], NDArray[np.int32]]


def session(settings: Settings) -> LoaderSession:
    """Return the session; batches are read in place, without a copy to torch."""
    files = photos_of(settings["photos"])
    pipeline = _pipeline(files, settings)
    samples = len(files) * settings["repeats"]
    return LoaderSession(
        note=(
            f"nvidia-dali {dali.__version__}; num_threads={settings['workers']}, "
            f"batch_size={settings['batch']}, image_random_crop + resize(antialias), in one process"
        ),
        samples=samples,
        epoch=lambda: _batches(pipeline, samples // settings["batch"]),
        consume=_consume,
        describe=lambda: _describe(settings),
        # Its reader goes round without an end; only whole batches are taken.
        dropped=settings["batch"],
    )


def _describe(settings: Settings) -> Evidence:
    files = photos_of(settings["probe"])
    batches = _batches(_pipeline(files, settings), len(files) // settings["batch"])
    return examine(
        (p.copy() for pictures, _ in batches for p in pictures), files[0].path.read_bytes()
    )


def _consume(batch: Batch) -> int:
    pictures, labels = batch
    read_array(pictures)
    read_array(labels)
    return len(pictures)


def _batches(pipeline: Any, count: int) -> Iterator[Batch]:
    for _ in range(count):
        pictures, labels = pipeline.run()
        yield np.asarray(pictures.as_tensor()), np.asarray(labels.as_tensor())


def _pipeline(files: list[Photo], settings: Settings) -> Any:
    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=settings["batch"],
        num_threads=settings["workers"],
        device_id=None,
        prefetch_queue_depth=2,
        seed=1,
    )
    def build() -> Any:
        encoded, labels = fn.readers.file(
            files=[str(photo.path) for photo in files],
            labels=[photo.label for photo in files],
            random_shuffle=True,
            initial_fill=500,
            name="reader",
        )
        pictures = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_area=list(SCALE),
            random_aspect_ratio=list(RATIO),
            num_attempts=10,
        )
        resized = fn.resize(
            pictures,
            device="cpu",
            resize_x=SIDE,
            resize_y=SIDE,
            interp_type=types.INTERP_LINEAR,
            antialias=True,
        )
        return resized, labels

    pipeline = build()
    pipeline.build()
    return pipeline
