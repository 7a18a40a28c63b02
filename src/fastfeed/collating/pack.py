"""A batch as a small message: its tensors lie in shared memory, the tree around them is pickled.

These pickles cross only the pipes between our own processes; nothing from a shard is unpickled.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fastfeed.slots.lease import Lease
    from fastfeed.slots.writer import SlotWriter

# A tree larger than this goes through shared memory too, so that messages fit a pipe's buffer.
_INLINE = 2048
# Below this an array is cheaper inside the tree.
_SMALL_ARRAY = 256


class _Leaf(NamedTuple):
    """Where one tensor or array of the tree lies, and what it is."""

    tensor: bool
    dtype: torch.dtype | np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements, None for contiguous."""
    nbytes: int
    place: int
    """Offset in the region, or -1 - number of the private piece that follows the message."""


class Packed(NamedTuple):
    """The message of one batch."""

    tree: bytes | tuple[int, int]
    """The pickled tree, or its place (as in `_Leaf`) and size."""
    leaves: list[_Leaf]
    nbytes: int


@dataclass(slots=True)
class _Packing:
    writer: SlotWriter
    leaves: list[_Leaf]
    numbers: dict[int, int]
    """id() of a packed object -> its number; the tree keeps the objects alive meanwhile."""
    private: list[NDArray[np.uint8]]
    nbytes: int = 0


class _Packer(pickle.Pickler):
    """Pickles a tree, taking plain tensors and arrays out of it."""

    def __init__(self, file: io.BytesIO, packing: _Packing) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._packing = packing

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of a leaf, or None for what is pickled as it is."""
        kind = type(obj)
        if kind is torch.Tensor:
            if not _is_plain(obj):
                return None
        elif kind is not np.ndarray or not _is_plain_array(obj):
            return None
        number = self._packing.numbers.get(id(obj))
        if number is None:
            number = len(self._packing.leaves)
            self._packing.numbers[id(obj)] = number
            place = _place_tensor if kind is torch.Tensor else _place_array
            self._packing.leaves.append(place(obj, self._packing))
        return number


def pack(tree: Any, writer: SlotWriter) -> tuple[Packed, list[NDArray[np.uint8]]]:
    """Return the message of a batch, and the pieces that the region had no room for.

    Tensors and arrays that `writer` gave the memory for stay where they are; others are copied
    into the region once. What is no plain tensor or array travels as pickle carries it.
    """
    packing = _Packing(writer, [], {}, [])
    file = io.BytesIO()
    _Packer(file, packing).dump(tree)
    pickled: bytes | tuple[int, int] = file.getvalue()
    if len(pickled) > _INLINE:
        memory = writer.empty((len(pickled),), np.uint8)
        memory[:] = np.frombuffer(pickled, np.uint8)
        pickled = (_place_of(memory, packing), len(pickled))
    return Packed(pickled, packing.leaves, packing.nbytes), packing.private


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
    )


def _is_plain_array(array: NDArray[Any]) -> bool:
    return (
        array.nbytes >= _SMALL_ARRAY
        and array.flags.c_contiguous
        and not array.dtype.hasobject
        and array.dtype.metadata is None
    )


def _place_tensor(tensor: torch.Tensor, packing: _Packing) -> _Leaf:
    shape = tuple(tensor.shape)
    strides = None if tensor.is_contiguous() else tensor.stride()
    nbytes = tensor.nbytes
    packing.nbytes += nbytes
    if nbytes == 0:
        return _Leaf(True, tensor.dtype, shape, strides, 0, 0)  # noqa: FBT003
    if strides is not None and not _is_dense(tensor):
        # What is left out between the elements of a slice is not worth sending.
        tensor, strides = tensor.contiguous(), None
    place = packing.writer.place_of(tensor.data_ptr(), nbytes)
    if place is None:
        memory = packing.writer.empty((nbytes,), np.uint8)
        target = torch.from_numpy(memory).view(tensor.dtype)
        target = target.view(shape) if strides is None else target.as_strided(shape, strides)
        target.copy_(tensor)
        place = _place_of(memory, packing)
    return _Leaf(True, tensor.dtype, shape, strides, nbytes, place)  # noqa: FBT003


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether the elements fill their memory without gaps, in whatever order of axes."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True


def _place_array(array: NDArray[Any], packing: _Packing) -> _Leaf:
    packing.nbytes += array.nbytes
    place = packing.writer.place_of(array.__array_interface__["data"][0], array.nbytes)
    if place is None:
        memory = packing.writer.empty((array.nbytes,), np.uint8)
        memory[:] = np.frombuffer(array, np.uint8)
        place = _place_of(memory, packing)
    return _Leaf(False, array.dtype, array.shape, None, array.nbytes, place)  # noqa: FBT003


def _place_of(memory: NDArray[np.uint8], packing: _Packing) -> int:
    place = packing.writer.place_of(memory.__array_interface__["data"][0], memory.nbytes)
    if place is not None:
        return place
    packing.private.append(memory)
    return -len(packing.private)


class _Unpacker(pickle.Unpickler):
    """Puts the tensors and arrays back into the tree, each once."""

    def __init__(self, file: io.BytesIO, leaves: list[Any]) -> None:
        super().__init__(file)
        self._leaves = leaves

    def persistent_load(self, pid: int) -> Any:
        """Return the leaf of a number."""
        return self._leaves[pid]


def unpack(packed: Packed, private: Sequence[bytes], lease: Lease, *, copy: bool) -> Any:
    """Return the batch of a message; with `copy` it owns its memory, else it lies in the region.

    The lease is sealed in any case, even if the tree cannot be rebuilt.
    """
    try:
        leaves = [_leaf(leaf, private, lease, copy=copy) for leaf in packed.leaves]
        if isinstance(packed.tree, bytes):
            tree = packed.tree
        else:
            place, size = packed.tree
            tree = (
                private[-1 - place] if place < 0 else lease.array((size,), np.uint8, place).tobytes()
            )
        return _Unpacker(io.BytesIO(tree), leaves).load()
    finally:
        lease.seal()


def _leaf(leaf: _Leaf, private: Sequence[bytes], lease: Lease, *, copy: bool) -> Any:
    if leaf.place < 0:
        memory = np.frombuffer(bytearray(private[-1 - leaf.place]), np.uint8)
    elif not leaf.tensor:
        array = lease.array(leaf.shape, leaf.dtype, leaf.place)  # type: ignore[arg-type]
        return array.copy() if copy else array
    elif leaf.nbytes == 0:
        shape, strides = leaf.shape, leaf.strides
        empty = torch.empty(shape, dtype=leaf.dtype)  # type: ignore[arg-type]
        return empty if strides is None else empty.as_strided(shape, strides)
    else:
        numpy_dtype = _NUMPY.get(leaf.dtype)  # type: ignore[call-overload]
        if leaf.strides is None and numpy_dtype is not None and not copy:
            return torch.from_numpy(lease.array(leaf.shape, numpy_dtype, leaf.place))
        memory = lease.array((leaf.nbytes,), np.uint8, leaf.place)
        if copy:
            memory = memory.copy()
    if not leaf.tensor:
        return memory.view(leaf.dtype).reshape(leaf.shape)  # type: ignore[arg-type]
    flat = torch.frombuffer(memory, dtype=leaf.dtype)  # type: ignore[arg-type]
    if leaf.strides is None:
        return flat.view(leaf.shape)
    return flat.as_strided(leaf.shape, leaf.strides)


_NUMPY = {
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bool: np.bool_,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}
