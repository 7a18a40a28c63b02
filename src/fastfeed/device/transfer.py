"""A batch's tree onto the device: one asynchronous copy a tensor, everything else as it is."""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastfeed.collating.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.device.device import Device
    from fastfeed.device.pinning import Pinner


class Transfer:
    """The copies of one batch, all given to the device's own stream."""

    def __init__(self, device: Device, pinner: Pinner | None) -> None:
        self._device = device
        self._pinner = pinner
        self.sent: list[torch.Tensor] = []
        """What lies on the device now."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's copy on the device, of the same strides where it has no gaps."""
        if tensor.device.type != "cpu":
            return tensor
        if not _is_plain(tensor):
            moved: torch.Tensor = self.send_object(tensor)  # it knows what else it is made of
            return moved
        if not _is_dense(tensor):
            tensor = tensor.contiguous()
        copied = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device.target
        )
        self.fill(copied, tensor)
        self.sent.append(copied)
        return copied

    def send_object(self, thing: Any) -> Any:
        """Return what moves itself on the device, moved."""
        if any(self._crosses_border(part) for part in tensors_of(thing)):
            thing = copy.deepcopy(thing)
        moved = thing.to(self._device.target)
        self.sent += tensors_of(moved)
        return moved

    def in_one_piece(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that may be copied at once: itself, or a copy elsewhere."""
        if not self._crosses_border(tensor):
            return tensor
        if self._device.target.type == "cuda":
            with suppress(RuntimeError):  # the system may refuse to pin
                return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        return tensor.clone()

    def _crosses_border(self, tensor: torch.Tensor) -> bool:
        """Say whether a copy would reach over two pieces of pinned memory: an error of CUDA's."""
        if self._pinner is None or tensor.device.type != "cpu":
            return False
        spanned = 1 + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        pieces = self._pinner.pieces(tensor.data_ptr(), spanned * tensor.element_size())
        return len(list(pieces)) > 1

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a dense tensor into one of the same strides on the device."""
        if self._pinner is None or source.numel() == 0:
            target.copy_(source, non_blocking=True)
            return
        size = source.element_size()
        pieces = list(self._pinner.pieces(source.data_ptr(), source.numel() * size))
        if len(pieces) == 1:
            target.copy_(source, non_blocking=True)
            return
        flat, flat_target = (one.as_strided((one.numel(),), (1,)) for one in (source, target))
        flat, flat_target = flat.view(torch.uint8), flat_target.view(torch.uint8)
        for start, stop in pieces:
            flat_target[start:stop].copy_(flat[start:stop], non_blocking=True)


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with `change` applied to what it holds, containers of the same types.

    The containers are those that torch's pinning goes into, but for named tuples that have `to`:
    not all that a packed sequence holds goes to a device.
    """
    named = isinstance(tree, tuple) and hasattr(tree, "_fields")
    if isinstance(tree, torch.Tensor | np.ndarray | Ragged | str | bytes) or (
        named and moves_itself(tree)
    ):
        return change(tree)
    if isinstance(tree, Mapping):
        return _rebuilt_mapping(tree, {key: map_leaves(one, change) for key, one in tree.items()})
    if named:
        return type(tree)(*(map_leaves(one, change) for one in tree))
    if isinstance(tree, tuple):
        return tuple(map_leaves(one, change) for one in tree)
    if isinstance(tree, Sequence):
        return _rebuilt_sequence(tree, [map_leaves(one, change) for one in tree])
    return change(tree)


def moves_itself(thing: Any) -> bool:
    """Say whether something has `to`, as tensors have."""
    return callable(getattr(thing, "to", None)) and not isinstance(thing, type)


def tensors_of(thing: Any) -> list[torch.Tensor]:
    """Return the tensors with memory of their own that something is made of, however deep."""
    found: list[torch.Tensor] = []
    seen, waiting = {id(thing)}, [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor) and type(one).__torch_dispatch__ is _DISPATCH:
            found += _strided_parts(one)
        elif not isinstance(one, type | ModuleType | FunctionType | MethodType):
            for part in gc.get_referents(one):
                if id(part) not in seen:
                    seen.add(id(part))
                    waiting.append(part)
    return found


_DISPATCH = torch.Tensor.__torch_dispatch__
_SPARSE_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _strided_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.layout is torch.strided:
        return [tensor]
    return [getattr(tensor, name)() for name in _SPARSE_PARTS.get(tensor.layout, ())]


def _rebuilt_mapping(tree: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if type(tree) is dict:
        return values
    try:
        if isinstance(tree, MutableMapping):
            clone = copy.copy(tree)  # it may know more than its items
            clone.update(values)
            return clone
        return type(tree)(values)  # type: ignore[call-arg]
    except TypeError:  # its constructor wants other arguments
        return values


def _rebuilt_sequence(tree: Sequence[Any], values: list[Any]) -> Any:
    if type(tree) is list:
        return values
    try:
        if isinstance(tree, MutableSequence):
            clone = copy.copy(tree)
            for place, value in enumerate(values):
                clone[place] = value
            return clone
        return type(tree)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _is_plain(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is no more than its elements in memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether a tensor's elements fill its memory, in whatever order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
