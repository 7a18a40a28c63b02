"""DALI with its GPU decoders: pictures from files to uint8 batches on the device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from fastfeed_bench.probe import examine
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.systems.gpu_meter import DeviceSession, cuda_device
from fastfeed_bench.train import MEAN, STD
from fastfeed_bench.windows import RATIO, SCALE, SIDE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fastfeed_bench.model import Evidence, Settings

_QUEUE = 3


@dataclass(frozen=True, slots=True)
class Work:
    """What a pipeline is to make of which files."""

    files: Sequence[Path]
    labels: Sequence[int]
    batch: int
    threads: int
    hw_load: float
    """Share of the pictures that the JPEG engines decode; the SMs decode the others."""
    flip: bool = False
    normalised: bool = False
    """Normalised to float16 by DALI; uint8 otherwise."""
    side: int | None = None
    """Files are bare uint8 pictures of this side; None for JPEG."""


def session(settings: Settings) -> DeviceSession:
    """Return the session of jpeg-gpu."""
    device = cuda_device()
    photos = photos_of(settings["photos"])
    batches = endless(_work(photos, settings))
    return DeviceSession(
        note=note(settings),
        device=device,
        epoch=lambda: (pictures for pictures, _ in islice(batches, settings["batches"])),
        lead=settings["lead"],
        describe=lambda: _describe(settings),
    )


def note(settings: Settings) -> str:
    """Return version and settings, for the row."""
    from nvidia import dali

    return (
        f"nvidia-dali {dali.__version__}; num_threads={settings['threads']}, "
        f"hw_decoder_load={settings['hw_load']}, batch_size={settings['batch']}, "
        f"prefetch_queue_depth={_QUEUE}"
    )


def _work(photos: list[Any], settings: Settings) -> Work:
    return Work(
        files=[photo.path for photo in photos],
        labels=[photo.label for photo in photos],
        batch=settings["batch"],
        threads=settings["threads"],
        hw_load=settings["hw_load"],
    )


def _describe(settings: Settings) -> Evidence:
    photos = photos_of(settings["probe"])
    pictures, _ = next(endless(_work(photos, settings)))
    rows = pictures.permute(0, 2, 3, 1).cpu().numpy()
    return examine(iter(rows), photos[0].path.read_bytes())


def endless(work: Work) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches without an end: pictures [N, 3, 224, 224] in channels_last, and labels."""
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    pipeline = _pipeline(work)
    # Nothing is asked for before the first batch is.
    batches = DALIGenericIterator([pipeline], ["image", "label"], prepare_first_batch=False)
    for (batch,) in batches:
        yield batch["image"].permute(0, 3, 1, 2), batch["label"].flatten().long()


def _pipeline(work: Work) -> Any:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=work.batch,
        num_threads=work.threads,
        device_id=torch.cuda.current_device(),
        prefetch_queue_depth=_QUEUE,
        seed=1,
    )
    def build() -> Any:
        stored, labels = fn.readers.file(
            files=[str(path) for path in work.files],
            labels=list(work.labels),
            random_shuffle=True,
            initial_fill=500,
            name="reader",
        )
        cropped = _raw(stored, work.side) if work.side else _decoded(stored, work.hw_load)
        return _finished(cropped, work), labels.gpu()

    pipeline = build()
    pipeline.build()
    return pipeline


def _decoded(stored: Any, hw_load: float) -> Any:
    from nvidia.dali import fn, types

    pictures = fn.decoders.image_random_crop(
        stored,
        device="mixed",
        hw_decoder_load=hw_load,
        output_type=types.RGB,
        random_area=list(SCALE),
        random_aspect_ratio=list(RATIO),
        num_attempts=10,
        # Larger than any of the photos, so that its buffers need not grow.
        preallocate_width_hint=640,
        preallocate_height_hint=640,
    )
    return fn.resize(
        pictures,
        device="gpu",
        resize_x=SIDE,
        resize_y=SIDE,
        interp_type=types.INTERP_LINEAR,
        antialias=True,
    )


def _raw(stored: Any, side: int) -> Any:
    from nvidia.dali import fn, types

    pictures = fn.reshape(stored, shape=[side, side, 3], layout="HWC")
    return fn.random_resized_crop(
        pictures.gpu(),
        device="gpu",
        size=[SIDE, SIDE],
        random_area=list(SCALE),
        random_aspect_ratio=list(RATIO),
        num_attempts=10,
        interp_type=types.INTERP_LINEAR,
        antialias=True,
    )


def _finished(pictures: Any, work: Work) -> Any:
    from nvidia.dali import fn, types

    if not work.flip and not work.normalised:
        return pictures
    mean, std = ([255 * level for level in levels] for levels in (MEAN, STD))
    return fn.crop_mirror_normalize(
        pictures,
        device="gpu",
        mirror=fn.random.coin_flip() if work.flip else 0,
        output_layout="HWC",
        dtype=types.FLOAT16 if work.normalised else types.UINT8,
        mean=mean if work.normalised else [0.0],
        std=std if work.normalised else [1.0],
    )
