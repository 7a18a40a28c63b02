"""How a batch is consumed: every byte is read, by the same code for every system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Tensors = Iterable[torch.Tensor]

_MASK = 2**64 - 1
_PLAIN = {bool, int, float, str}
"""Types whose representation tells type and value."""


def dense(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the bytes of an array in the order of memory, copied only if there are gaps."""
    if not array.flags.c_contiguous:
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        array = np.ascontiguousarray(array.transpose(order))
    return array.reshape(-1).view(np.uint8)


def read_array(array: NDArray[np.generic]) -> int:
    """Read every byte of an array; their sum as 64-bit words keeps the reading honest."""
    data = dense(array)
    whole = data.size & ~7
    total = int(data[:whole].view(np.uint64).sum()) if whole else 0
    return total if whole == data.size else total + int(data[whole:].sum())


def read_tensor(tensor: torch.Tensor) -> int:
    """Read every byte of a tensor."""
    return read_array(tensor.numpy())


def read_tree(tree: Any) -> int:
    """Read every byte of a batch of any form.

    A list of numbers or strings must be of one kind, and is then read at the speed of C: reading is
    to cost little beside what is measured.
    """
    if isinstance(tree, torch.Tensor):
        return sum(map(read_tensor, _dense_parts(tree)))
    if isinstance(tree, np.ndarray):
        return read_array(tree)
    if isinstance(tree, int | float | str | bytes):
        return hash(tree)
    if isinstance(tree, list | tuple):
        kind = type(tree[0]) if tree else None
        if kind in {int, float}:
            return int(sum(tree))
        return sum(map(hash if kind in {str, bytes} else read_tree, tree))
    return sum(map(read_tree, (tree if isinstance(tree, dict) else vars(tree)).values()))


def digest(samples: Iterable[bytes | memoryview]) -> int:
    """Return a digest of samples that does not depend on their order."""
    digests: Iterable[int] = map(xxhash.xxh3_64_intdigest, samples)
    return sum(digests) & _MASK


def digest_tree(tree: Any) -> int:
    """Return a digest of a batch of any form: all types, shapes, names and bytes in it."""
    state = xxhash.xxh3_64()
    _fold(tree, state)
    return int(state.intdigest())


def digest_epoch(batches: Iterable[Any]) -> dict[str, Any]:
    """Return the evidence of an epoch: how many batches, and what was in them."""
    digests = [digest_tree(batch) for batch in batches]
    return {"batches": len(digests), "digest": f"{sum(digests) & _MASK:016x}"}


def _fold(tree: Any, state: xxhash.xxh3_64) -> None:
    state.update(f"{type(tree).__qualname__} ".encode())
    if isinstance(tree, torch.Tensor):
        for part in _dense_parts(tree):
            state.update(f"{tree.layout} {part.dtype} {list(part.shape)} ".encode())
            state.update(part.contiguous().numpy().reshape(-1).view(np.uint8).data)
    elif isinstance(tree, np.ndarray):
        state.update(f"{tree.dtype} {list(tree.shape)} ".encode())
        state.update(np.ascontiguousarray(tree).reshape(-1).view(np.uint8).data)
    elif isinstance(tree, dict):
        for name, inner in tree.items():
            state.update(f"{name!r}: ".encode())
            _fold(inner, state)
    elif isinstance(tree, bytes):
        state.update(tree)
    elif isinstance(tree, list | tuple) and not set(map(type, tree)) <= _PLAIN:
        state.update(f"{len(tree)} ".encode())
        for inner in tree:
            _fold(inner, state)
    elif isinstance(tree, int | float | str | list | tuple):
        state.update(f"{tree!r} ".encode())
    else:
        _fold(vars(tree), state)


def _dense_parts(tensor: torch.Tensor) -> Tensors:
    """Return the tensors that a tensor consists of: itself, or indices and values of a sparse."""
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values())  # noqa: SLF001 - the public ones need a coalesced one
