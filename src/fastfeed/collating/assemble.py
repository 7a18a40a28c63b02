"""Decoded samples into a batch: memory for their rows, and the batch as the user sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastfeed.collating.collate import HeapWriter
from fastfeed.collating.partly import partly
from fastfeed.collating.ragged import Ragged, gather
from fastfeed.errors import EmptyBatchError
from fastfeed.fields import Bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from fastfeed.collating.collate import Writer
    from fastfeed.collating.partly import PartlyDecoded
    from fastfeed.decoding.compile import SampleDecoder
    from fastfeed.decoding.defer import Deferred
    from fastfeed.fields import Field

    Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Left:
    """What of a batch is left to the device, by place in the batch."""

    pictures: Mapping[int, tuple[dict[str, Deferred], Values]]
    wanted: NDArray[np.int64]
    epoch: int

    def closed_up(self, good: NDArray[np.bool_]) -> Left:
        """Return the same without the samples that are not good, none of which is left."""
        places = np.cumsum(good) - 1
        moved = {int(places[place]): one for place, one in self.pictures.items()}
        return Left(moved, self.wanted[good], self.epoch)

    def partly(
        self, name: str, rows: NDArray[np.uint8], writer: Writer, *, count: int
    ) -> PartlyDecoded:
        """Return one output of a batch of `count` samples."""
        pictures = [
            (place, int(self.wanted[place]), found[name])
            for place, (found, _) in self.pictures.items()
        ]
        return partly(rows, pictures, writer, count=count, epoch=self.epoch)


class Assembly:
    """Makes batches of the outputs of one data set.

    `pictures` are the outputs of which a device may decode some.
    """

    def __init__(
        self, decoder: SampleDecoder, fields: Mapping[str, Field], pictures: Collection[str]
    ) -> None:
        self._decoder = decoder
        self._fields = fields
        self._pictures = pictures
        self._raw = {name for name, field in fields.items() if isinstance(field, Bytes)}

    def rows(
        self,
        count: int,
        writer: Writer,
        *,
        only: Collection[str] | None = None,
        but: Collection[str] = (),
    ) -> dict[str, NDArray[Any]]:
        """Return the batch memory of outputs whose shape is known beforehand."""
        return {
            name: writer.empty((count, *row.shape), row.dtype)
            for name, row in self._decoder.layout.items()
            if name not in but and (only is None or name in only)
        }

    def rows_of_one(self) -> dict[str, NDArray[Any]]:
        """Return the memory of a single sample, on the heap."""
        return {name: row[0, ...] for name, row in self.rows(1, HeapWriter()).items()}

    def sample(self, rows: Mapping[str, NDArray[Any]], values: Values) -> Values:
        """Return one sample as the user sees it: tensors, pictures as [channels, height, width]."""
        sample = {name: self._tensor(name, row) for name, row in rows.items()} | values
        return {name: self._value(name, sample[name]) for name in self._fields}

    def batch(
        self,
        rows: Mapping[str, NDArray[Any]],
        values: list[Values | None],
        writer: Writer,
        left: Left,
    ) -> dict[str, Any]:
        """Return the batch; EmptyBatchError if every sample was skipped."""
        kept = kept_of(values)
        if len(kept) < len(values):  # close the gaps that skipped samples left
            good = np.array([v is not None for v in values])
            here = good[[i for i in range(len(values)) if i not in left.pictures]]
            rows = {n: row[here if n in self._pictures else good] for n, row in rows.items()}
            left = left.closed_up(good)
        batch: Values = {}
        for name in self._fields:
            if left.pictures and name in self._pictures:
                batch[name] = left.partly(name, rows[name], writer, count=len(kept))
            elif name in rows:
                batch[name] = self._tensor(name, rows[name])
            elif name in self._raw:
                batch[name] = gather([v[name] for v in kept], writer)
            else:
                batch[name] = [self._value(name, v[name]) for v in kept]
        return batch

    def _tensor(self, name: str, memory: NDArray[Any]) -> torch.Tensor:
        """Return a fixed output as a tensor; pictures get their channel axis in torch's place."""
        if self._decoder.layout[name].channels_last:
            return self._picture(name, memory)
        return torch.from_numpy(memory)

    def _picture(self, name: str, memory: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(memory)
        if self._decoder.is_bfloat16(name):
            tensor = tensor.view(torch.bfloat16)
        return tensor.movedim(-1, -3)

    def _value(self, name: str, value: Any) -> Any:
        """Return a variable output as the user sees it."""
        if not isinstance(value, np.ndarray):
            return value
        if self._decoder.channels_last(name):
            return self._picture(name, value)
        try:
            # torch has no foreign byte order.
            return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
        except TypeError:  # dtypes that torch does not have stay arrays
            return value

    @staticmethod
    def view(
        buffer: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Ragged:
        """Return a raw field as views of the buffer it was read into."""
        return Ragged(
            torch.from_numpy(buffer),
            torch.from_numpy(starts.copy()),
            torch.from_numpy(sizes.copy()),
        )


def kept_of(values: list[Values | None]) -> list[Values]:
    """Return the samples that were not skipped."""
    kept = [v for v in values if v is not None]
    if not kept:
        raise EmptyBatchError(f"all {len(values)} samples of the batch were skipped")
    return kept
