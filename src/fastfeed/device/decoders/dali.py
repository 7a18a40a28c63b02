"""DALI's decoder fed with our bytes and windows: one step at a time, in our order."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fastfeed.decoding.jpeg_kind import read_kind
from fastfeed.device.decoders.protocol import Decoded, Encoded
from fastfeed.device.decoders.salvage import salvage
from fastfeed.device.decoders.streams import settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.decoding.jpeg_kind import Kind

SUPPORTS: Final = frozenset({"444", "422", "420", "440", "411", "gray"})
"""Subsamplings that come out right."""

_THREADS: Final = 4
# All to the engines: the threads belong to the trainer's process, and workers use the cores.
_ENGINES: Final = 1.0
# A failed call costs a new pipeline, so fewer are tried than elsewhere.
_FAILURES: Final = 12
# Regions end the process with this build on H100, and fail on A100; its decoder is DALI's.
_BROKEN_REGIONS: Final = frozenset({"0.9.0.1859"})


def supports(kind: Kind) -> bool:
    """Say whether this kind is decoded; progressive files too, though slowly."""
    return kind.is_common and kind.subsampling in SUPPORTS


class DaliDecoder:
    """Decodes the boxes of pictures, in memory of a pipeline that one bad picture ends."""

    name = "dali"

    def __init__(self, device: torch.device, *, regions: bool | None = None) -> None:
        import nvidia.dali  # noqa: F401

        self.device = device
        self._regions = _has_regions() if regions is None else regions
        self._pipelines: dict[bool, Any] = {}
        self._room = 0
        self._output: Any = None

    def can(self, kind: Kind) -> bool:
        """Say whether this kind is decoded."""
        return supports(kind)

    def decode(self, encoded: Encoded) -> Decoded:
        """Decode all pictures, in parts when one of them is bad."""
        if len(encoded) > self._room:  # a pipeline has a largest batch
            self._room = len(encoded)
            self._pipelines.clear()
        settle(self.device)  # the pictures of the last call are overwritten by this one
        chosen = self._decodable(encoded)

        def decode(numbers: Sequence[int]) -> list[torch.Tensor]:
            pictures = self._run(encoded, numbers)
            # The next part is decoded over this one.
            return pictures if len(numbers) == len(chosen) else [part.clone() for part in pictures]

        found = salvage(chosen, decode, failures=_FAILURES)
        return Decoded([found.get(n) for n in range(len(encoded))], whole=not self._regions)

    def close(self) -> None:
        """End the pipelines."""
        self._output = None
        self._pipelines.clear()

    def _decodable(self, encoded: Encoded) -> list[int]:
        """Return the pictures whose headers it can do.

        Workers have looked at them, but where one is no JPEG this library may end the process.
        """
        data, ends = encoded.buffer.numpy().data, encoded.starts + encoded.sizes
        places = zip(encoded.starts.tolist(), ends.tolist(), strict=True)
        kinds = [read_kind(data[start:end]) for start, end in places]
        return [n for n, kind in enumerate(kinds) if kind is not None and supports(kind)]

    def _run(self, encoded: Encoded, numbers: Sequence[int]) -> list[torch.Tensor]:
        pipeline = self._pipelines.pop(encoded.gray, None) or self._build(gray=encoded.gray)
        chosen = np.asarray(numbers)
        held, places = encoded.buffer.numpy(), zip(encoded.starts, encoded.sizes, strict=True)
        pieces = [held[start : start + size] for start, size in places]
        pipeline.feed_input("pieces", [pieces[n] for n in numbers])
        if self._regions:
            pipeline.feed_input("starts", np.ascontiguousarray(encoded.boxes[chosen, :2]))
            pipeline.feed_input("shapes", np.ascontiguousarray(encoded.boxes[chosen, 2:]))
        (output,) = pipeline.run()  # returns when the device is done
        self._pipelines[encoded.gray] = pipeline  # not after an error: that ends a pipeline
        self._output = output  # its memory is the pictures'
        return [self._tensor(output[n]) for n in range(len(numbers))]

    def _tensor(self, piece: Any) -> torch.Tensor:
        """Return a piece [height, width, channels] as [channels, height, width], without a copy."""
        if self.device.type == "cuda":
            return torch.as_tensor(piece, device=self.device).permute(2, 0, 1)
        return torch.from_numpy(np.asarray(piece)).permute(2, 0, 1)

    def _build(self, *, gray: bool) -> Any:
        from nvidia.dali import Pipeline, fn, types

        on_gpu = self.device.type == "cuda"
        pipeline = Pipeline(
            batch_size=self._room,
            num_threads=_THREADS,
            device_id=(self.device.index or 0) if on_gpu else None,
            prefetch_queue_depth=1,
            exec_pipelined=False,
            exec_async=False,
        )
        options: dict[str, Any] = {
            "device": "mixed" if on_gpu else "cpu",
            "output_type": types.GRAY if gray else types.RGB,
            "adjust_orientation": False,
        }
        if on_gpu:
            options |= {"hw_decoder_load": _ENGINES, "jpeg_fancy_upsampling": True}
        with pipeline:
            pieces = fn.external_source(name="pieces", dtype=types.UINT8, ndim=1)
            if self._regions:
                starts = fn.external_source(name="starts", dtype=types.INT32, ndim=1)
                shapes = fn.external_source(name="shapes", dtype=types.INT32, ndim=1)
                pictures = fn.decoders.image_slice(pieces, start=starts, shape=shapes, **options)
            else:
                pictures = fn.decoders.image(pieces, **options)
            pipeline.set_outputs(pictures)
        pipeline.build()
        return pipeline


def _has_regions() -> bool:
    for name in ("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12"):
        try:
            if metadata.version(name) in _BROKEN_REGIONS:
                return False
        except metadata.PackageNotFoundError:
            continue
    return True
