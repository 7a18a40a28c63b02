"""A batch's tree onto the device: one asynchronous copy a tensor, everything else as it is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
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
        if not _is_dense(tensor):
            tensor = tensor.contiguous()
        copied = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device.target
        )
        self.fill(copied, tensor)
        self.sent.append(copied)
        return copied

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

    The containers are those that torch's pinning goes into; a class that has `to` moves itself.
    """
    if isinstance(tree, torch.Tensor | np.ndarray | Ragged | str | bytes):
        return change(tree)
    if isinstance(tree, Mapping):
        return _rebuilt_mapping(tree, {key: map_leaves(one, change) for key, one in tree.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(one, change) for one in tree))
    if isinstance(tree, tuple):
        return tuple(map_leaves(one, change) for one in tree)
    if isinstance(tree, Sequence):
        return _rebuilt_sequence(tree, [map_leaves(one, change) for one in tree])
    return change(tree)


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
