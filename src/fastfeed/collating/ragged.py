"""A batch of byte strings of different lengths, kept in one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastfeed.collating.collate import Writer


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A sequence of one-dimensional uint8 tensors that are views of one buffer.

    It is no `Sequence` to Python: torch would pin such a thing item by item into a list.

    Item i is `data[starts[i] : starts[i] + sizes[i]]`; nothing is copied, and bytes of `data`
    between items (headers and padding of the shard) belong to none.
    """

    data: torch.Tensor
    """uint8, one-dimensional: the buffer."""
    starts: torch.Tensor
    """int64 [n]: where each item begins in `data`."""
    sizes: torch.Tensor
    """int64 [n]: the bytes of each item."""

    def __len__(self) -> int:
        return self.starts.shape[0]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])]

    def pin_memory(self) -> Ragged:
        """Return a copy in pinned memory; torch's loader asks for it."""
        return Ragged(self.data.pin_memory(), self.starts, self.sizes)

    def tobytes(self, index: int) -> bytes:
        """Return a copy of one item as bytes."""
        return self[index].cpu().numpy().tobytes()

    def to_list(self) -> list[bytes]:
        """Return a copy of every item as bytes."""
        array = self.data.cpu().numpy()
        pairs = zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        return [array[start : start + size].tobytes() for start, size in pairs]


def gather(pieces: Sequence[Any], writer: Writer) -> Ragged:
    """Copy byte strings of any lengths into one buffer that goes to the trainer."""
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    starts = np.zeros(len(pieces), dtype=np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    data = writer.empty((int(sizes.sum()),), np.uint8)
    for start, size, piece in zip(starts, sizes, pieces, strict=True):
        data[start : start + size] = np.frombuffer(piece, dtype=np.uint8)
    return Ragged(torch.from_numpy(data), torch.from_numpy(starts), torch.from_numpy(sizes))
