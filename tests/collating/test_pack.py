"""A batch through shared memory: what comes out equals what went in, wherever its bytes went."""

from __future__ import annotations

import gc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.collating.pack import pack, unpack
from fastfeed.slots.lease import Lender
from fastfeed.slots.region import Region
from fastfeed.slots.writer import SlotWriter

MIB = 1 << 20
Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - what users write


@dataclass
class Custom:
    """A batch class of a user's."""

    data: torch.Tensor
    names: list


class Labelled(torch.Tensor):
    """A tensor class of a user's."""


class Wire:
    """Both sides of one region, and a way across."""

    def __init__(self, capacity):
        self.region = Region(capacity)
        self.region.close_descriptor()
        self.writer, self.lender = SlotWriter(self.region), Lender(self.region)

    def send(self, tree, *, copy=False):
        self.writer.give_back(self.lender.returned())
        self.writer.begin()
        packed, private = pack(tree, self.writer)
        lease = self.lender.open(self.writer.commit())
        return unpack(packed, [piece.tobytes() for piece in private], lease, copy=copy)

    def all_free(self):
        self.writer.give_back(self.lender.returned())
        return self.lender.lent == 0 and self.writer._extents.free == self.region.capacity


@pytest.fixture(params=[8 * MIB, 4096], ids=["roomy", "full"])
def wire(request):
    """A region with room for all, and one where nearly everything goes another way."""
    return Wire(request.param)


def same(a, b):
    """Say whether two trees have the same types, dtypes, shapes, and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape, a.layout, a.requires_grad) == (
            b.dtype,
            b.shape,
            b.layout,
            b.requires_grad,
        ) and torch.equal(a.to_dense().resolve_conj(), b.to_dense().resolve_conj())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Custom):
        return same(vars(a), vars(b))
    return a == b


DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape(wire, dtype, copy):
    """Scalars, vectors, blocks, and tensors of nothing come out as they went in, to the bit."""
    for shape in [(), (1,), (7,), (3, 5, 2), (0,), (4, 0, 3), (1000,)]:
        bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
        tensor = (
            bits.view(dtype).reshape(shape) if bits.numel() else torch.empty(shape, dtype=dtype)
        )
        found = wire.send(tensor, copy=copy)
        assert (found.dtype, found.shape) == (dtype, tensor.shape)
        assert found.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last),
        lambda: torch.rand(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        lambda: torch.rand(6, 5).t(),
        lambda: torch.rand(6, 1, 5).transpose(0, 2),
        lambda: torch.rand(20, 20)[::2, 3:9],
        lambda: torch.rand(5, 1).expand(5, 7),
        lambda: torch.rand(9).unfold(0, 4, 2),
    ],
)
def test_strides(wire, make):
    """Dense memory formats keep their strides; other views come out with equal values."""
    tensor = make()
    found = wire.send(tensor)
    assert torch.equal(found, tensor)
    for form in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        if tensor.dim() >= 4:
            fits = tensor.dim() == (5 if form is torch.channels_last_3d else 4)
            if fits or form is torch.contiguous_format:
                assert found.is_contiguous(memory_format=form) == tensor.is_contiguous(
                    memory_format=form
                )


@pytest.mark.filterwarnings("ignore")  # torch warns of its prototypes: nested, quantised, sparse
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(5).to_sparse(),
        lambda: torch.eye(5).to_sparse_csr(),
        lambda: torch.rand(3, requires_grad=True),
        lambda: torch.nn.Parameter(torch.rand(3)),
        lambda: torch.rand(4, dtype=torch.complex64).conj(),
        lambda: torch.rand(4, dtype=torch.complex64).conj().imag,
        lambda: torch.rand(5).as_subclass(Labelled),
    ],
)
def test_tensors_that_are_not_plain(wire, make):
    """Sparse, differentiable, conjugated tensors and subclasses travel by value."""
    tensor = make()
    assert same(wire.send(tensor), tensor)
    assert same(wire.send([tensor, torch.ones(3)]), [tensor, torch.ones(3)])


@pytest.mark.filterwarnings("ignore")
def test_nested_and_quantised_tensors(wire):
    """Tensors of several lengths and of quantised values keep their kind."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    found = wire.send(nested)
    assert found.is_nested
    assert all(map(torch.equal, found.unbind(), nested.unbind()))
    if "fbgemm" in torch.backends.quantized.supported_engines:
        quantised = torch.quantize_per_tensor(torch.rand(4), 0.1, 2, torch.quint8)
        assert torch.equal(wire.send(quantised).int_repr(), quantised.int_repr())


def test_attributes_of_a_tensor_travel(wire):
    """A tensor that carries attributes of the user's keeps them."""
    tensor = torch.rand(500)
    tensor.note = "mine"
    assert wire.send([tensor])[0].note == "mine"


ARRAYS = [
    np.arange(1000, dtype=np.float32).reshape(10, 100),
    np.asfortranarray(np.arange(400.0).reshape(20, 20)),
    np.arange(600)[::3],
    np.array(3.5),
    np.empty((0, 4)),
    np.array(["a", "bc"] * 100),
    np.array([b"a", b"bc"] * 200),
    np.array(["2020-01-01"] * 90, dtype="datetime64[D]"),
    np.arange(90, dtype="timedelta64[s]"),
    np.array([{"a": 1}, None, "x"], dtype=object),
    np.zeros(50, dtype=[("a", "i4"), ("b", "f8", (2,))]),
    np.arange(300, dtype=">i4"),
    np.float32(2.5),
    np.ones(1000, dtype=bool),
    np.ones(300, dtype=np.complex128),
]


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}{list(a.shape)}")
def test_numpy(wire, array, copy):
    """Arrays of every kind come out equal, writable, and in this machine's order of bytes."""
    found = wire.send({"a": array, "b": [array, 1]}, copy=copy)
    array = array.astype(array.dtype.newbyteorder("="))
    assert same(found, {"a": array, "b": [array, 1]})
    if isinstance(array, np.ndarray):
        assert found["a"].flags.writeable


def test_containers_and_python_values(wire):
    """Named tuples, custom classes, ordered dicts and odd values keep their types."""
    tree = {
        "pair": Pair(torch.rand(3), np.arange(100)),
        1: OrderedDict(b=torch.rand(2), a=None),
        ("k", 2): Custom(torch.rand(300), ["x", b"y"]),
        "rest": [1, 2.5, True, None, "s" * 5000, b"b" * 5000, {1, 2}, 1 << 100, 2j, slice(3)],
    }
    assert same(wire.send(tree), tree)


def test_one_object_twice_comes_out_as_one(wire):
    """A tensor that the tree holds twice is one tensor on the other side too."""
    tensor, array = torch.rand(300), np.arange(300.0)
    a, b, c, d = wire.send([tensor, tensor, array, array])
    assert a is b
    assert c is d


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.lists(st.integers(0, 6), max_size=3).map(lambda shape: torch.rand(shape)),
    st.integers(0, 900).map(lambda n: torch.arange(n, dtype=torch.uint8)),
    st.integers(0, 300).map(lambda n: np.arange(n, dtype=np.int32)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=6), st.booleans(), st.sampled_from([MIB, 4096]))
def test_any_tree(trees, copy, capacity):
    """Any trees, all kept: each equals its original, and all memory comes back at the end."""
    wire = Wire(capacity)
    found = [wire.send(tree, copy=copy) for tree in trees]
    assert same(found, trees)
    del found
    gc.collect()
    assert wire.all_free()


def test_tensors_of_the_writer_stay_where_they_are():
    """What was made in the batch's memory is described, not copied; views of it too."""
    wire = Wire(MIB)
    wire.writer.begin()
    memory = wire.writer.empty((4, 100), np.float32)
    memory[...] = 7
    tensor = torch.from_numpy(memory)
    packed, private = pack([tensor, tensor[2], memory], wire.writer)
    extents = wire.writer.commit()
    assert not private
    assert sum(stop - start for start, stop in extents) == 1600
    whole, row, array = unpack(packed, [], wire.lender.open(extents), copy=False)
    whole[2, 5] = 9
    assert row[5] == 9
    assert array[2, 5] == 9


def test_failed_unpickling_returns_the_memory():
    """A tree that cannot be rebuilt raises, and its memory comes back."""
    wire = Wire(MIB)
    wire.writer.begin()
    packed, _ = pack([torch.rand(1000), "x" * 10], wire.writer)
    lease = wire.lender.open(wire.writer.commit())
    with pytest.raises(Exception, match=r"pickle|persistent|opcode|STOP|truncated|EOF|Ran out"):
        unpack(packed._replace(tree=packed.tree[:-3]), [], lease, copy=False)
    gc.collect()
    assert wire.all_free()


def test_what_cannot_be_pickled_raises_and_leaves_nothing(wire):
    """A batch that holds a generator fails in `pack`; the next batch has all the memory."""
    with pytest.raises(TypeError, match="generator"):
        wire.send([torch.rand(100), (i for i in range(3))])
    wire.writer.begin()
    assert wire.all_free()


def test_memory_comes_back_without_the_garbage_collector():
    """Trainings switch the collector off: nothing of a batch may need it."""
    wire = Wire(MIB)
    gc.disable()
    try:
        gc.collect()
        for _ in range(20):
            batch = wire.send({"a": torch.rand(1000), "b": [np.arange(500), "s"]})
            del batch
        assert wire.all_free()
        kinds = {"Lease", "_Watch"}
        assert not [o for o in gc.get_objects() if type(o).__name__ in kinds]
    finally:
        gc.enable()
