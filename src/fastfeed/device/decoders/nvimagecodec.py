"""nvImageCodec's JPEG decoder on the GPU: engines first, then CUDA, a status for each picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from fastfeed.device.decoders.protocol import Decoded, Encoded
from fastfeed.device.decoders.streams import settle, stream_handle

if TYPE_CHECKING:
    from fastfeed.decoding.jpeg_kind import Kind

SUPPORTS: Final = frozenset({"444", "422", "420", "440", "411", "gray"})
"""Subsamplings that come out right."""

# Threads of the trainer's process; they parse headers and start the engines.
_THREADS: Final = 2


def supports(kind: Kind) -> bool:
    """Say whether this kind is decoded; progressive files too, though slowly."""
    return kind.is_common and kind.subsampling in SUPPORTS


class NvimagecodecDecoder:
    """Decodes whole pictures as planes, in memory of the library.

    Whole ones, since regions fail or crash on Hopper in version 0.9.0. Its decoder on the CPU is
    left out: what the GPU cannot do goes back to the caller, whose way does not differ by file.
    """

    name = "nvimagecodec"

    def __init__(self, device: torch.device) -> None:
        from nvidia import nvimgcodec

        kinds = nvimgcodec.BackendKind
        on_gpu = device.type == "cuda"
        used = (
            [kinds.HW_GPU_ONLY, kinds.HYBRID_CPU_GPU, kinds.GPU_ONLY]
            if on_gpu
            else [kinds.CPU_ONLY]
        )
        self.device = device
        self._library = nvimgcodec
        self._decoder: Any = nvimgcodec.Decoder(
            device_id=device.index or 0 if on_gpu else nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=_THREADS,
            backends=[nvimgcodec.Backend(kind) for kind in used],
            options=":fancy_upsampling=1",
        )

    def can(self, kind: Kind) -> bool:
        """Say whether this kind is decoded."""
        return supports(kind)

    def decode(self, encoded: Encoded) -> Decoded:
        """Decode all pictures; the library leaves out what it fails at."""
        if not len(encoded):
            return Decoded([], whole=True)
        held = encoded.buffer.numpy()
        pieces = [
            held[start : start + size]
            for start, size in zip(encoded.starts.tolist(), encoded.sizes.tolist(), strict=True)
        ]
        settle(self.device)
        images = self._decoder.decode(
            pieces, params=self._parameters(encoded), cuda_stream=stream_handle(self.device)
        )
        settle(self.device)
        found = {n: self._tensor(image) for n, image in enumerate(images) if image is not None}
        pictures: list[torch.Tensor | None] = [None] * len(encoded)
        for number, picture in found.items():
            height, width = encoded.shapes[number].tolist()
            if picture.shape == (encoded.channels, height, width):
                pictures[number] = picture
        return Decoded(pictures, whole=True)

    def close(self) -> None:
        """Let the library's decoder go."""
        self._decoder = None

    def _tensor(self, image: Any) -> torch.Tensor:
        """Return an image without a copy."""
        if self.device.type == "cuda":
            tensor: torch.Tensor = from_dlpack(image)
            return tensor
        return torch.from_numpy(np.asarray(image))

    def _parameters(self, encoded: Encoded) -> Any:
        library = self._library
        # Boxes are in pixels of the stored picture; orientation is the caller's.
        parameters = library.DecodeParams()
        parameters.apply_exif_orientation = False
        if encoded.gray:
            parameters.color_spec = library.ColorSpec.GRAY
            parameters.sample_format = library.SampleFormat.P_Y
        else:
            parameters.color_spec = library.ColorSpec.SRGB
            parameters.sample_format = library.SampleFormat.P_RGB
        return parameters
