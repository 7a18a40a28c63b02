"""torch's default_collate, with its tensors stacked straight into the batch's memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from fastfeed.slots.extents import LARGE, PAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike, NDArray


class Writer(Protocol):
    """Lends the memory that a batch is written to: a slot shared with the trainer, or the heap."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return uninitialised memory that goes to the trainer with the batch."""
        ...


class HeapWriter:
    """Memory of the process itself, for feeds without workers and for single samples."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a fresh array; a large one begins at a page, as `Extents` has it."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        if nbytes < LARGE:
            return np.empty(shape, kind)
        memory = np.empty(nbytes + PAGE, np.uint8)
        start = -memory.__array_interface__["data"][0] % PAGE
        return memory[start : start + nbytes].view(kind).reshape(shape)


def stack_into(writer: Writer) -> None:
    """Make `default_collate` stack tensors into `writer`'s memory, in this process, from now on.

    It also serves a user's collate function that calls `default_collate`. An entry for tensors
    that the user put into torch's table stays as it is.
    """
    table = torch_collate.default_collate_fn_map
    theirs = table.get(torch.Tensor)
    if theirs is not torch_collate.collate_tensor_fn:
        return

    def collate_tensors(
        batch: list[torch.Tensor],
        *,
        collate_fn_map: dict[Any, Callable[..., Any]] | None = None,
    ) -> torch.Tensor:
        first = batch[0]
        if not _may_stack(first):
            result: torch.Tensor = theirs(batch, collate_fn_map=collate_fn_map)
            return result
        nbytes = len(batch) * first.numel() * first.element_size()
        flat = torch.from_numpy(writer.empty((nbytes,), np.uint8)).view(first.dtype)
        shape = (len(batch), *first.shape)
        if type(first) is torch.Tensor:
            return torch.stack(batch, 0, out=flat.view(shape))
        # What a subclass makes of these calls is its own affair: they are torch's.
        storage = flat._typed_storage()  # type: ignore[no-untyped-call]  # noqa: SLF001
        out = first.new(storage).resize_(shape)
        return torch.stack(batch, 0, out=out)

    table[torch.Tensor] = collate_tensors


def _may_stack(tensor: torch.Tensor) -> bool:
    """Say whether stacking into given memory does exactly what torch's own entry does."""
    return (
        # A subclass that is told of every operation may have no memory of its own.
        type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.numel() > 0
    )
