"""Pictures of a batch of which some are decoded, and the others left to the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastfeed.collating.ragged import Ragged, gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fastfeed.collating.collate import Writer
    from fastfeed.decoding.defer import Deferred


@dataclass(frozen=True, slots=True, eq=False)
class PartlyDecoded:
    """What a worker sends of a picture field when the batch goes to a GPU.

    Row i of the batch is `rows[j]` where `decoded[j]` is i, or comes of `encoded[j]` where
    `left[j]` is i.
    """

    count: int
    """Rows of the batch."""
    rows: torch.Tensor
    """uint8 [decoded, h, w, channels]."""
    decoded: torch.Tensor
    """int64 [decoded]: ascending places in the batch."""
    encoded: Ragged
    """A JPEG each, or rows of pixels."""
    left: torch.Tensor
    """int64 [left]: ascending places in the batch."""
    cuts: torch.Tensor
    """int32 [left, fields]: what is to be cut of each, see `CUT_FIELDS`."""
    is_raw: torch.Tensor
    """bool [left]: pixels instead of a JPEG."""
    samples: torch.Tensor
    """int64 [left]: the index of each in the data set."""
    epoch: int


def partly(
    rows: NDArray[np.uint8],
    left: Sequence[tuple[int, int, Deferred]],
    writer: Writer,
    *,
    count: int,
    epoch: int,
) -> PartlyDecoded:
    """Return the pictures of a batch; `left` has (place, sample, picture), in order of place."""
    places = np.array([place for place, _, _ in left], np.int64)
    decoded = np.ones(count, bool)
    decoded[places] = False
    return PartlyDecoded(
        count,
        torch.from_numpy(rows),
        torch.from_numpy(np.flatnonzero(decoded)),
        gather([picture.data for _, _, picture in left], writer),
        torch.from_numpy(places),
        _table([picture.cut for _, _, picture in left]),
        torch.tensor([picture.is_raw for _, _, picture in left], dtype=torch.bool),
        torch.tensor([sample for _, sample, _ in left], dtype=torch.int64),
        epoch,
    )


def _table(cuts: list[tuple[int, ...]]) -> torch.Tensor:
    table: Any = np.array(cuts, np.int32).reshape(len(cuts), -1)
    return torch.from_numpy(table)
