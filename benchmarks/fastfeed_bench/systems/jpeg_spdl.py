"""jpeg-cpu by SPDL: ffmpeg decodes, crops and scales in its pipeline's threads."""

from __future__ import annotations

import random
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import spdl.io
from spdl.pipeline import PipelineBuilder

from fastfeed_bench.consume import read_array
from fastfeed_bench.probe import examine
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.windows import SIDE, draw_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fastfeed_bench.model import Evidence, Settings
    from fastfeed_bench.systems.files import Photo


def session(settings: Settings) -> LoaderSession:
    """Return the session; a RuntimeError says that ffmpeg's libraries are missing."""
    spdl.io.demux_config()
    files = photos_of(settings["photos"]) * settings["repeats"]
    return LoaderSession(
        note=(
            f"spdl {metadata.version('spdl')}; concurrency={settings['workers']}, "
            f"aggregate({settings['batch']}), swscale bilinear, threads of one process"
        ),
        samples=len(files),
        epoch=lambda: _batches(files, settings),
        consume=_consume,
        describe=lambda: _describe(settings),
    )


def _describe(settings: Settings) -> Evidence:
    files = photos_of(settings["probe"])
    batches = _batches(files, settings)
    return examine((p for pictures, _ in batches for p in pictures), files[0].path.read_bytes())


def _consume(batch: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> int:
    pictures, labels = batch
    read_array(pictures)
    read_array(labels)
    return len(pictures)


def _batches(
    files: list[Photo], settings: Settings
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    order = random.sample(files, len(files))
    pipeline = (
        PipelineBuilder()
        .add_source(order)
        .pipe(partial(_decode, seeds=random.Random(0)), concurrency=settings["workers"])
        .aggregate(settings["batch"])
        .pipe(_collate)
        .add_sink(2)
        .build(num_threads=settings["workers"])
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def _decode(photo: Photo, seeds: random.Random) -> tuple[Any, int]:
    packets = spdl.io.demux_image(photo.path.read_bytes())
    window = draw_window(packets.width, packets.height, seeds)
    chain = (
        # exact: ffmpeg otherwise moves windows to whole chroma pixels.
        f"crop={window.width}:{window.height}:{window.left}:{window.top}:exact=1,"
        f"scale={SIDE}:{SIDE}:flags=bilinear,format=pix_fmts=rgb24"
    )
    return spdl.io.decode_packets(packets, filter_desc=chain), photo.label


def _collate(samples: list[tuple[Any, int]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    frames = spdl.io.convert_frames([frame for frame, _ in samples])
    return spdl.io.to_numpy(frames), np.array([label for _, label in samples])
