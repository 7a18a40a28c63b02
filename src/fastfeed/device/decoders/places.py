"""Where decoded planes lie in one piece of memory, and marks in it that say what was written.

A decoder's status is one number a batch, and good when an engine left a picture out. So a few
bytes of each picture are marked beforehand and looked at afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, overload

import numpy as np
import torch

from fastfeed.device.cut import Sources
from fastfeed.device.triton_kernels import triton_kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PITCH: Final = 64
_ALIGNMENT: Final = 256
# Bytes behind each picture that nobody may write.
_GUARD: Final = 256
# Bytes of a mark: as many neighbours never have its values by chance.
_MARK: Final = 8


@dataclass(frozen=True, slots=True)
class Places:
    """The planes of some pictures in one piece of memory."""

    starts: NDArray[np.int64]
    pitches: NDArray[np.int64]
    shapes: NDArray[np.int64]
    channels: int
    nbytes: int

    @property
    def planes(self) -> NDArray[np.int64]:
        """Return the bytes of one plane of each picture."""
        return self.pitches * self.shapes[:, 0]

    def some(self, chosen: NDArray[np.int64]) -> Places:
        """Return the places of only these pictures."""
        starts, pitches, shapes = self.starts[chosen], self.pitches[chosen], self.shapes[chosen]
        return Places(starts, pitches, shapes, self.channels, self.nbytes)

    def view(self, memory: torch.Tensor, number: int) -> torch.Tensor:
        """Return one picture as [channels, height, width]."""
        height, width = self.shapes[number].tolist()
        pitch = int(self.pitches[number])
        size, strides = (self.channels, height, width), (pitch * height, pitch, 1)
        return memory.as_strided(size, strides, memory.storage_offset() + int(self.starts[number]))


def lay_out(shapes: NDArray[np.int32], channels: int) -> Places:
    """Return places for planes of these heights and widths, with a guard behind each picture."""
    sizes = shapes.astype(np.int64).reshape(-1, 2)
    pitches = -(-sizes[:, 1] // _PITCH) * _PITCH
    needed = pitches * sizes[:, 0] * channels + _GUARD
    ends = np.cumsum(-(-needed // _ALIGNMENT) * _ALIGNMENT)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return Places(starts[: len(sizes)], pitches, sizes, channels, int(ends[-1]) if len(ends) else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Planes(Sequence[torch.Tensor | None]):
    """Decoded pictures in one piece of memory; a tensor is made only of one that is looked at."""

    places: Places
    memory: torch.Tensor
    good: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.good)

    @overload
    def __getitem__(self, number: int) -> torch.Tensor | None: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[torch.Tensor | None]: ...
    def __getitem__(
        self, number: int | slice
    ) -> torch.Tensor | Sequence[torch.Tensor | None] | None:
        """Return a picture [channels, height, width], None if it is not good."""
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"picture {number} of {len(self)}")
        return self.places.view(self.memory, number) if self.good[number] else None

    def sources(self) -> Sources:
        """Return where the good ones lie, all at once."""
        places = self.places
        addresses = self.memory.data_ptr() + places.starts[self.good]
        strides = np.ones((len(addresses), 3), np.int64)
        strides[:, 0] = places.planes[self.good]
        strides[:, 1] = places.pitches[self.good]
        numbers = np.flatnonzero(self.good)
        return Sources(addresses, strides, lambda i: places.view(self.memory, int(numbers[i])))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the marks say of each picture."""

    unwritten: NDArray[np.bool_]
    """A mark is still there: the decoder left the picture out, or a part of it."""
    spilled: NDArray[np.bool_]
    """The guard behind the picture was written."""

    @property
    def good(self) -> NDArray[np.bool_]:
        """Return which pictures are whole and hurt nobody; a spill may have hit the next one."""
        hit = self.spilled.copy()
        hit[1:] |= self.spilled[:-1]
        return ~(self.unwritten | hit)


class Marks:
    """Marks in the places of some pictures; they are put before a decode and read after it."""

    def __init__(self, places: Places, device: torch.device) -> None:
        cells = [places.starts, places.pitches, places.planes, *places.shapes.T]
        self._table = torch.from_numpy(np.stack(cells, axis=1)).to(device)
        self._channels = places.channels
        # Each kernel has to wait until training lets it in, so there is one to put and one to read.
        self._kernels = triton_kernels() if device.type == "cuda" else None

    def put(self, memory: torch.Tensor) -> None:
        """Write the marks into the memory, on the current stream."""
        if not len(self._table):
            return
        if self._kernels is not None:
            self._kernels.put_marks[(len(self._table),)](memory, self._table, self._channels)
            return
        spots = _Spots(self._table, self._channels)
        memory.put_(spots.marks, spots.values)
        memory.put_(spots.guards, spots.guarded)

    def read(self, memory: torch.Tensor) -> Verdict:
        """Look at the memory on the current stream, and wait for what is seen."""
        count = len(self._table)
        if self._kernels is not None and count:
            seen = torch.empty((count, 2), dtype=torch.int32, device=memory.device)
            self._kernels.read_marks[(count,)](memory, self._table, seen, self._channels)
        else:
            spots = _Spots(self._table, self._channels)
            left = (memory.take(spots.marks) == spots.values).all(3).flatten(1).any(1)
            spilled = (memory.take(spots.guards) != spots.guarded).any(1)
            seen = torch.stack([left, spilled], dim=1)
        return Verdict(*seen.cpu().numpy().astype(np.bool_).T)


class _Spots:
    """Where marks and guards of pictures are in the memory, and what is in them."""

    def __init__(self, table: torch.Tensor, channels: int) -> None:
        start, pitch, plane, height, width = table.unbind(1)
        channel = torch.arange(channels, device=table.device) * plane[:, None] + start[:, None]
        self.marks, self.values = _mark_places(channel, pitch, height, width)
        steps = torch.arange(_MARK, device=table.device)
        self.guards = (start + plane * channels)[:, None] + steps
        self.guarded = _value(steps, steps).expand_as(self.guards)


def _mark_places(
    channel: torch.Tensor, pitch: torch.Tensor, height: torch.Tensor, width: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices and values [pictures, channels, 4 rows, bytes] of the marks."""
    device = channel.device
    thirds = torch.arange(4, device=device)
    rows = (height[:, None] - 1) * thirds // 3
    columns = (width[:, None] - _MARK).clamp(min=0) * thirds.flip(0) // 3
    # In pictures narrower than a mark its bytes fall together; the value goes by the column.
    columns = columns[:, :, None] + torch.arange(_MARK, device=device)
    columns = columns.minimum(width[:, None, None] - 1)
    inside = rows[:, :, None] * pitch[:, None, None] + columns
    marks = channel[:, :, None, None] + inside[:, None]
    return marks, _value(rows[:, :, None], columns)[:, None].expand_as(marks)


def _value(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    return ((row * 11 + column * 37 + 0xA5) & 0xFF).to(torch.uint8)
