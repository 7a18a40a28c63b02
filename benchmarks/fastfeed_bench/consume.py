"""How a batch is consumed: every byte is read, by the same code for every system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from numpy.typing import NDArray

    Tensors = Iterable[torch.Tensor]

_MASK = 2**64 - 1


def dense(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the bytes of an array in the order of memory, copied only if there are gaps."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return np.ascontiguousarray(array.transpose(order)).reshape(-1).view(np.uint8)


def read_array(array: NDArray[np.generic]) -> int:
    """Read every byte of an array; their sum as 64-bit words keeps the reading honest."""
    data = dense(array)
    whole = data.size & ~7
    return int(data[:whole].view(np.uint64).sum()) + int(data[whole:].sum())


def read_tensor(tensor: torch.Tensor) -> int:
    """Read every byte of a tensor."""
    return read_array(tensor.numpy())


def digest(samples: Iterable[bytes | memoryview]) -> int:
    """Return a digest of samples that does not depend on their order."""
    digests: Iterable[int] = map(xxhash.xxh3_64_intdigest, samples)
    return sum(digests) & _MASK
