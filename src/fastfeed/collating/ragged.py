"""A batch of byte strings of different lengths, kept in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Ragged(Sequence["torch.Tensor"]):
    """A sequence of one-dimensional uint8 tensors that are views of one buffer.

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

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = int(self.starts[index])
        return self.data[start : start + int(self.sizes[index])]

    def tobytes(self, index: int) -> bytes:
        """Return a copy of one item as bytes."""
        return self[index].numpy().tobytes()

    def to_list(self) -> list[bytes]:
        """Return a copy of every item as bytes."""
        array = self.data.numpy()
        pairs = zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        return [array[start : start + size].tobytes() for start, size in pairs]
