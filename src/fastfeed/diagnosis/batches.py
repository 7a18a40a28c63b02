"""A batch as a tree of tensors: moved, copied, cut in two."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with every tensor, and everything else that has `to`, changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if type(batch) in {list, tuple}:
        return type(batch)(mapped(value, change) for value in batch)
    return change(batch) if callable(getattr(batch, "to", None)) else batch


def kept(batch: Any) -> Any:
    """Return a copy in memory of its own, pinned where the original is."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type == "cpu" and torch.cuda.is_available() and leaf.is_pinned():
            return torch.empty_like(leaf, pin_memory=True).copy_(leaf)
        return leaf.clone()

    return mapped(batch, copy)


def moved(batch: Any, device: torch.device | None) -> Any:
    """Return a batch on a device; as it is without one."""
    return batch if device is None else mapped(batch, lambda leaf: leaf.to(device))


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def nbytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    return sum(tensor.nbytes for tensor in tensors(batch))


def samples(batch: Any) -> int:
    """Return how many samples a batch has: the first dimension most of its tensors have."""
    sizes = Counter(tensor.shape[0] for tensor in tensors(batch) if tensor.dim())
    return int(sizes.most_common(1)[0][0]) if sizes else 1


def resized(batch: Any) -> tuple[Any, float] | None:
    """Return half of a batch, or of a small one twice, and by what it was multiplied.

    None where not every tensor has a dimension of samples, which nobody can cut.
    """
    count = samples(batch)
    found = list(tensors(batch))
    if not found or any(not leaf.dim() or leaf.shape[0] != count for leaf in found):
        return None
    if count < 8:
        return mapped(batch, lambda leaf: torch.cat([leaf, leaf])), 2.0
    return mapped(batch, lambda leaf: leaf[: count // 2].contiguous()), (count // 2) / count
