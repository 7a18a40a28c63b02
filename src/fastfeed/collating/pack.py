"""A batch as a small message: its tensors lie in shared memory, the tree around them is pickled.

These pickles cross only the pipes between our own processes; nothing from a shard is unpickled.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fastfeed.slots.lease import Lease
    from fastfeed.slots.writer import SlotWriter

# A tree larger than this goes through shared memory too; a smaller one is cheaper in the message,
# and a few of those fit the channel's buffer.
_INLINE = 32 << 10
# Older torch can name the axes of a tensor, and refuses to pickle such a one.
_has_names: Callable[[torch.Tensor], bool] = getattr(torch.Tensor, "has_names", lambda _: False)
# Torch's own for batches: a read-only or foreign-endian array comes out as a plain one.
_PROTOCOL = pickle.DEFAULT_PROTOCOL
# An array of fewer bytes than this is cheaper inside the tree.
_SMALL_ARRAY = 256


class _TensorLeaf(NamedTuple):
    """A tensor of the tree: what it is and where its bytes lie."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements, None for contiguous."""
    nbytes: int
    place: int
    """Offset in the region, or -1 - number of the private piece that follows the message."""


class _ArrayLeaf(NamedTuple):
    """A contiguous numpy array of the tree; the rest as for tensors."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    place: int


class Packed(NamedTuple):
    """The message of one batch."""

    tree: bytes | tuple[int, int]
    """The pickled tree, or its place (as of a leaf) and size."""
    leaves: list[_TensorLeaf | _ArrayLeaf]
    nbytes: int


class _Packing:
    """The leaves of one batch as they are met. Its methods serve `pickle` as reducers."""

    def __init__(self, writer: SlotWriter) -> None:
        self.writer = writer
        self.leaves: list[_TensorLeaf | _ArrayLeaf] = []
        self.private: list[NDArray[np.uint8]] = []
        self.nbytes = 0

    def take_tensor(self, tensor: torch.Tensor) -> Any:
        """Take a tensor out of the tree, or pickle it by value if it is no plain one."""
        if not _is_plain(tensor):
            return tensor.__reduce_ex__(_PROTOCOL)  # type: ignore[no-untyped-call]
        return self._took(_place_tensor(tensor, self))

    def take_typed_storage(self, storage: torch.TypedStorage) -> Any:
        """Take the storage of a tensor that is pickled by value."""
        untyped = storage._untyped_storage  # noqa: SLF001
        if untyped.device.type != "cpu":
            return storage.__reduce__()  # type: ignore[no-untyped-call]
        return _typed_storage, (untyped, storage.dtype)

    def take_storage(self, storage: torch.UntypedStorage) -> Any:
        """Take the bytes of a storage out of the tree; two tensors over it share it again."""
        if storage.device.type != "cpu":
            return storage.__reduce__()  # type: ignore[no-untyped-call]
        return _untyped_storage, (torch.empty(0, dtype=torch.uint8).set_(storage),)

    def take_array(self, array: NDArray[Any]) -> Any:
        """Take an array out of the tree, or pickle it if it is small or no plain one."""
        if not _is_plain_array(array):
            return array.__reduce_ex__(_PROTOCOL)
        return self._took(_place_array(array, self))

    def _took(self, leaf: _TensorLeaf | _ArrayLeaf) -> Any:
        self.leaves.append(leaf)
        self.nbytes += leaf.nbytes
        return _leaf_number, (len(self.leaves) - 1,)

    def place_of(self, memory: NDArray[np.uint8]) -> int:
        """Return where memory that the writer gave lies, as a leaf's `place` says it."""
        place = self.writer.place_of(memory.__array_interface__["data"][0], memory.nbytes)
        if place is not None:
            return place
        self.private.append(memory)
        return -len(self.private)


def _untyped_storage(flat: torch.Tensor) -> torch.UntypedStorage:
    return flat.untyped_storage()


def _typed_storage(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _leaf_number(number: int) -> Any:
    """Stand for a leaf in a pickled tree; `_Unpacker` puts the leaf in its place."""
    raise pickle.UnpicklingError(f"leaf {number} of a batch outside its message")


def pack(tree: Any, writer: SlotWriter) -> tuple[Packed, list[NDArray[np.uint8]]]:
    """Return the message of a batch, and the pieces that the region had no room for.

    Tensors and arrays that `writer` gave the memory for stay where they are; others are copied
    into the region once. What is no plain tensor or array travels by value, as pickle carries it.
    """
    packing = _Packing(writer)
    file = io.BytesIO()
    pickler = pickle.Pickler(file, _PROTOCOL)
    # A table costs nothing for strings and numbers, of which some batches hold thousands;
    # `persistent_id` would be called for each. pickle meets the same object only once.
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        torch.Tensor: packing.take_tensor,
        np.ndarray: packing.take_array,
        torch.TypedStorage: packing.take_typed_storage,
        torch.UntypedStorage: packing.take_storage,
    }
    pickler.dump(tree)
    pickled = file.getvalue()
    where: bytes | tuple[int, int] = pickled
    if len(pickled) > _INLINE:
        memory = writer.empty((len(pickled),), np.uint8)
        memory[:] = np.frombuffer(pickled, np.uint8)
        where = (packing.place_of(memory), len(pickled))
    return Packed(where, packing.leaves, packing.nbytes), packing.private


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg())
        and not (_has_names(tensor) or tensor.__dict__)
    )


def _is_plain_array(array: NDArray[Any]) -> bool:
    return (
        array.nbytes >= _SMALL_ARRAY
        and array.flags.c_contiguous
        and not array.dtype.hasobject
        and array.dtype.isnative
        and array.dtype.metadata is None
    )


def _place_tensor(tensor: torch.Tensor, packing: _Packing) -> _TensorLeaf:
    shape = tuple(tensor.shape)
    strides = None if tensor.is_contiguous() else tensor.stride()
    if tensor.nbytes == 0:
        return _TensorLeaf(tensor.dtype, shape, None, 0, 0)
    span = tensor.numel()
    if strides is not None:
        # From the first element to the last: less than all of them where some are the same, as
        # after `expand`; more where a slice leaves gaps, which are not worth sending.
        span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if span > tensor.numel():
            last = torch.channels_last if tensor.dim() == 4 and strides[1] == 1 else None
            tensor = tensor.contiguous(memory_format=last or torch.contiguous_format)
            strides = None if tensor.is_contiguous() else tensor.stride()
            span = tensor.numel()
    nbytes = span * tensor.element_size()
    place = packing.writer.place_of(tensor.data_ptr(), nbytes)
    if place is None:
        memory = packing.writer.empty((nbytes,), np.uint8)
        target = torch.from_numpy(memory).view(tensor.dtype)
        if strides is None:
            target.view(shape).copy_(tensor)
        else:
            target.copy_(tensor.as_strided((span,), (1,)))
        place = packing.place_of(memory)
    return _TensorLeaf(tensor.dtype, shape, strides, nbytes, place)


def _place_array(array: NDArray[Any], packing: _Packing) -> _ArrayLeaf:
    place = packing.writer.place_of(array.__array_interface__["data"][0], array.nbytes)
    if place is None:
        memory = packing.writer.empty((array.nbytes,), np.uint8)
        memory[:] = array.reshape(-1).view(np.uint8)
        place = packing.place_of(memory)
    return _ArrayLeaf(array.dtype, array.shape, array.nbytes, place)


class _Unpacker(pickle.Unpickler):
    """Puts the tensors and arrays back into the tree."""

    def __init__(self, file: io.BytesIO, leaves: list[Any]) -> None:
        super().__init__(file)
        self._leaves = leaves

    def find_class(self, module: str, name: str) -> Any:
        """Return what the pickle names, and for a leaf's number the way to the leaf."""
        if name == _leaf_number.__name__ and module == __name__:
            return self._leaves.__getitem__
        return super().find_class(module, name)


def unpack(packed: Packed, private: Sequence[bytes], lease: Lease, *, copy: bool) -> Any:
    """Return the batch of a message; with `copy` it owns its memory, else it lies in the region.

    The lease is sealed in any case, even if the tree cannot be rebuilt.
    """

    def memory_at(place: int, nbytes: int) -> NDArray[np.uint8]:
        if place < 0:
            return np.frombuffer(bytearray(private[-1 - place]), np.uint8)
        memory = lease.array((nbytes,), np.uint8, place)
        return memory.copy() if copy else memory

    def tensor_of(leaf: _TensorLeaf) -> torch.Tensor:
        dtype, shape, strides, nbytes, place = leaf
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        numpy_dtype = _NUMPY.get(dtype)
        if strides is None and numpy_dtype is not None and place >= 0 and not copy:
            return torch.from_numpy(lease.array(shape, numpy_dtype, place))  # the fast way
        flat = torch.frombuffer(memory_at(place, nbytes), dtype=dtype)
        return flat.view(shape) if strides is None else flat.as_strided(shape, strides)

    def array_of(leaf: _ArrayLeaf) -> NDArray[Any]:
        if leaf.place >= 0 and not copy:
            return lease.array(leaf.shape, leaf.dtype, leaf.place)
        return memory_at(leaf.place, leaf.nbytes).view(leaf.dtype).reshape(leaf.shape)

    try:
        leaves = [
            tensor_of(leaf) if isinstance(leaf, _TensorLeaf) else array_of(leaf)
            for leaf in packed.leaves
        ]
        tree = packed.tree
        if not isinstance(tree, bytes):
            place, size = tree
            tree = private[-1 - place] if place < 0 else memory_at(place, size).tobytes()
        if not leaves:
            return pickle.loads(tree)
        return _Unpacker(io.BytesIO(tree), leaves).load()
    finally:
        lease.seal()


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
