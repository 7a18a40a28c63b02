"""What the device stage asks of a GPU decoder, whichever library does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from numpy.typing import NDArray

    from fastfeed.decoding.jpeg_kind import Kind


@dataclass(frozen=True, slots=True)
class Encoded:
    """The pictures of one batch that go to a GPU decoder."""

    buffer: torch.Tensor
    """The bytes of all, uint8 on the host, perhaps pinned."""
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    shapes: NDArray[np.int32]
    """Height and width of each stored picture, from its header: [m, 2]."""
    boxes: NDArray[np.int32]
    """x, y, width and height of the part that is wanted, in the stored picture: [m, 4]."""
    gray: bool = False
    """One channel, the luma, instead of RGB."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def channels(self) -> int:
        """Return how many planes a decoded picture has."""
        return 1 if self.gray else 3

    def parts(self, most_bytes: int) -> Iterator[tuple[slice, Encoded]]:
        """Yield parts whose decoded pictures take `most_bytes` at most, or that are one picture.

        For the caller's loop: a decoder's pictures must all have their memory at once.
        """
        nbytes = self.shapes.astype(np.int64).prod(axis=1) * self.channels
        first, held = 0, 0
        for number, more in enumerate(nbytes.tolist()):
            if held and held + more > most_bytes:
                yield self._part(slice(first, number))
                first, held = number, 0
            held += more
        if first < len(self):
            yield self._part(slice(first, len(self)))

    def _part(self, place: slice) -> tuple[slice, Encoded]:
        return place, Encoded(
            self.buffer,
            self.starts[place],
            self.sizes[place],
            self.shapes[place],
            self.boxes[place],
            gray=self.gray,
        )


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of them: pictures in the decoder's memory, valid until its next call."""

    pictures: Sequence[torch.Tensor | None]
    """Uint8 [channels, height, width] on the device, any strides; None where decoding failed."""
    whole: bool
    """Whether they are whole pictures; otherwise each is exactly its box."""
    waited_s: float = 0.0
    """Seconds for which another decoder had what there is once."""
    held_s: float = 0.0
    """Seconds for which this one had it."""


class PictureDecoder(Protocol):
    """One library's decoder, for one device and one thread."""

    @property
    def name(self) -> str:
        """The name that users write and reports show."""

    def can(self, kind: Kind) -> bool:
        """Say whether JPEGs of this kind are worth sending here."""

    def decode(self, encoded: Encoded) -> Decoded:
        """Decode pictures behind what is on the current stream, for later work on that stream.

        May block the thread. A file that is no JPEG, or that it failed at, comes out None and
        leaves the others right. Workers send only files that have an end: engines cannot tell one
        whose pixels end before. Whatever is raised means that the decoder is of no use any more.
        """

    def close(self) -> None:
        """Give the library's handles and memory back. Closing twice is allowed."""
