"""torchvision's JPEG decoder on CUDA: nvJPEG without interpolated colours, all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from fastfeed.device.decoders.protocol import Decoded, Encoded
from fastfeed.device.decoders.salvage import salvage
from fastfeed.device.decoders.streams import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastfeed.decoding.jpeg_kind import Kind

SUPPORTS: Final = frozenset({"444", "422", "420", "440", "gray"})
"""Subsamplings that come out right."""

_GRAY, _RGB = 1, 3
# One bad picture among 512 takes 10 failed calls to be found.
_FAILURES: Final = 24


def supports(kind: Kind) -> bool:
    """Say whether this kind is decoded; progressive files too, though slowly."""
    return kind.is_common and kind.subsampling in SUPPORTS


class TorchvisionDecoder:
    """Decodes whole pictures, each into a tensor of its own."""

    name = "torchvision"

    def __init__(
        self,
        device: torch.device,
        *,
        operator: Callable[[list[torch.Tensor], int, torch.device], Any] | None = None,
    ) -> None:
        self.device = device
        self._operator = operator or _operator()

    def can(self, kind: Kind) -> bool:
        """Say whether this kind is decoded."""
        return supports(kind)

    def decode(self, encoded: Encoded) -> Decoded:
        """Decode all pictures, in parts when one of them is bad."""
        pieces = [
            encoded.buffer[start : start + size]
            for start, size in zip(encoded.starts.tolist(), encoded.sizes.tolist(), strict=True)
        ]
        mode = _GRAY if encoded.gray else _RGB
        # Its own stream does not wait for ours, and may be given memory that ours still reads.
        settle(self.device)

        def decode(numbers: Sequence[int]) -> list[torch.Tensor]:
            return list(self._operator([pieces[n] for n in numbers], mode, self.device))

        found = salvage(range(len(encoded)), decode, failures=_FAILURES)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return Decoded([found.get(n) for n in range(len(encoded))], whole=True)

    def close(self) -> None:
        """Do nothing: its decoder belongs to the process."""


def _operator() -> Any:
    # The function around it does no more than warn, from version 0.29 on, at each call.
    import torchvision.io  # noqa: F401

    return torch.ops.image.decode_jpegs_cuda
