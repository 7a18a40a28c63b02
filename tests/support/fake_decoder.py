"""A picture decoder on the CPU that keeps the GPU decoders' contract, and can break it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import simplejpeg
import torch

from fastfeed.device.decoders.protocol import Decoded


@dataclass
class FakeDecoder:
    """Decodes by libjpeg-turbo; each field is one way of doing it wrong, or otherwise."""

    name: str = "fake"
    fails_at: frozenset[int] = frozenset()
    """Places in a batch that come out None, whatever is there."""
    regions: bool = False
    """Return the boxes instead of whole pictures."""
    plain: bool = False
    """Make colours without interpolation."""
    swaps: bool = False
    """Return blue for red."""
    hides: bool = False
    """Return black for a bad picture instead of None."""
    stale: bool = False
    """Return a picture of the call before where a bad one stands."""
    raises: bool = False
    drops: bool = False
    """Return no place for what failed, so that the others move up."""
    transposes: bool = False
    takes: bool = True
    marks_input: bool = False
    """Write behind the last encoded picture."""
    writes_to: list[torch.Tensor] = field(default_factory=list)
    """Foreign memory that it writes one byte of."""
    calls: int = 0
    closed: int = 0
    _before: list[torch.Tensor | None] = field(default_factory=list)

    def can(self, kind):
        return self.takes and kind.is_common

    def decode(self, encoded):
        self.calls += 1
        if self.raises:
            raise MemoryError("no memory on the device")
        pictures = [self._one(encoded, number) for number in range(len(encoded))]
        if self.marks_input:
            encoded.buffer[-1] = 0
        for block in self.writes_to:
            block[-1] = 0
        self._before = pictures
        if self.drops:
            pictures = [picture for picture in pictures if picture is not None]
        return Decoded(pictures, whole=not self.regions)

    def close(self):
        self.closed += 1

    def _one(self, encoded, number):
        if number in self.fails_at:
            return None
        start, size = int(encoded.starts[number]), int(encoded.sizes[number])
        data = bytes(encoded.buffer[start : start + size].numpy())
        height, width = encoded.shapes[number].tolist()
        space = "GRAY" if encoded.gray else "BGR" if self.swaps else "RGB"
        try:
            pixels = simplejpeg.decode_jpeg(data, space, fastupsample=self.plain)
        except ValueError:
            if self.stale and self._before:
                return self._before[0]
            if not self.hides:
                return None
            pixels = np.zeros((height, width, encoded.channels), np.uint8)
        if self.regions:
            x, y, w, h = encoded.boxes[number].tolist()
            pixels = pixels[y : y + h, x : x + w]
        order = (2, 1, 0) if self.transposes else (2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(pixels)).permute(*order)
