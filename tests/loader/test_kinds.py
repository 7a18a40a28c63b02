"""Every kind of batch beside torch's loader: what it delivers ours does, what it refuses too."""

from __future__ import annotations

import datetime as dt
import warnings
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Torchs
from torch.utils.data import default_collate, default_convert

from fastfeed.loader import DataLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse",
    "ignore:ComplexHalf",
    "ignore:The PyTorch API of nested",
    "ignore:torch.quantize_per_tensor",
    "ignore:TypedStorage",  # in torch's own pickle of a quantized tensor
)

Pair = namedtuple("Pair", "image label")  # noqa: PYI024 - what users write


@dataclass
class Custom:
    """A batch class of a user's, with its own way to be pinned."""

    x: torch.Tensor
    names: list
    more: dict = field(default_factory=dict)
    pinned: bool = False

    def pin_memory(self):
        self.pinned = True
        return self


class Labelled(torch.Tensor):
    """A tensor class of a user's."""


class Slotted:
    """Has no `__dict__`."""

    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __reduce__(self):
        return Slotted, (self.a, self.b)

    def __eq__(self, other):
        return torch.equal(self.a, other.a) and self.b == other.b

    __hash__ = None


class Missing(dict):
    """A dict of a user's."""

    def __missing__(self, key):
        return key


def is_alike(a, b):
    """Say whether two trees are alike in all that a user can see of them."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if _is_dense(b) and a.stride() != b.stride():  # gaps between elements are not sent
            return False
        return _looks_of(a) == _looks_of(b) and _values_of(a) == _values_of(b)
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and repr(a.tolist()) == repr(b.tolist())
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_alike, a, b))
    if hasattr(a, "__dict__"):
        return is_alike(vars(a), vars(b))
    return repr(a) == repr(b) if isinstance(a, float) else a == b


def _looks_of(tensor):
    looks = [tensor.dtype, tensor.layout, tensor.requires_grad, tensor.is_leaf, tensor.is_quantized]
    if not tensor.is_nested:
        looks.append(tensor.shape)
    if tensor.layout is torch.strided:
        looks += [tensor.is_conj(), tensor.is_neg()]
    return looks


def _is_dense(tensor):
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    return torch.empty_like(tensor).stride() == tensor.stride()


def _values_of(tensor):
    if tensor.is_meta:
        return []
    if tensor.is_nested:
        return [_values_of(part) for part in tensor.unbind()]
    if tensor.layout is torch.sparse_coo:
        return [tensor.is_coalesced(), *map(_values_of, (tensor._indices(), tensor._values()))]
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return [tensor.q_scale(), tensor.q_zero_point(), tensor.int_repr().tolist()]
    flat = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
    return flat.reshape(-1).view(torch.uint8).tolist() if flat.numel() else []


def batches_of(kind, items, collate):
    """Return the batches of a loader over items; exceptions by type and last line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says some things once in a process
        return all_of(kind(items, batch_size=2, num_workers=1, collate_fn=collate))


def all_of(loader):
    """Return a loader's batches; exceptions by type and last line."""
    torch.manual_seed(0)
    found, batches = [], iter(loader)
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except Exception as error:  # noqa: BLE001 - compared with torch's
            found.append([type(error), str(error).strip().splitlines()[-1]])


def rows(make):
    """Return four samples."""
    return [make(i) for i in range(4)]


SAMPLES = {
    "named tuple": lambda i: Pair(torch.rand(3), i),
    "nested": lambda i: {"a": [torch.ones(2) * i, (i, {"b": [Pair(i, "x"), b"y"]})], "c": ()},
    "ordered dict": lambda i: OrderedDict(z=torch.tensor(i), a=i),
    "default dict": lambda i: defaultdict(list, z=torch.tensor(i), a=i),
    "own dict": lambda i: Missing(z=torch.tensor(i)),
    "0-dim": lambda i: torch.tensor(i + 0.5),
    "empty": lambda i: torch.empty(0, 3),
    "empty of no width": lambda i: torch.empty(3, 0, dtype=torch.bfloat16),
    "bool": lambda i: torch.tensor([True, False]),
    "bfloat16": lambda i: torch.full((3, 2), i, dtype=torch.bfloat16),
    "float16": lambda i: torch.full((3, 2), i, dtype=torch.float16),
    "float8": lambda i: torch.full((4,), i, dtype=torch.float8_e4m3fn),
    "float8 5": lambda i: torch.full((4,), i, dtype=torch.float8_e5m2),
    "uint16": lambda i: torch.full((4,), i, dtype=torch.uint16),
    "uint64": lambda i: torch.full((4,), i, dtype=torch.uint64),
    "complex64": lambda i: torch.full((3,), 1 + 2j * i),
    "complex128": lambda i: torch.full((3,), 1 + 2j * i, dtype=torch.complex128),
    "complex32": lambda i: torch.full((3,), 1 + 2j * i).to(torch.complex32),
    "not a number": lambda i: torch.tensor([float("nan"), float("-inf"), -0.0]),
    "transposed": lambda i: torch.rand(2, 3).t(),
    "every other": lambda i: torch.arange(10)[i::2][:3],
    "expanded": lambda i: torch.tensor([i]).expand(4),
    "channels last": lambda i: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "mixed dtypes": lambda i: torch.ones(2, dtype=(torch.float64, torch.float32)[i % 2]),
    "integers and floats": lambda i: torch.ones(2, dtype=(torch.int64, torch.float32)[i % 2]),
    "ragged": lambda i: torch.ones(i + 1),
    "tensor class": lambda i: torch.ones(3).as_subclass(Labelled),
    "parameter": lambda i: torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "meta": lambda i: torch.empty(3, device="meta"),
    "requires grad": lambda i: torch.full((3,), float(i), requires_grad=True),
    "string": lambda i: "é" * i,
    "bytes": lambda i: b"x" * i,
    "bytearray": bytearray,
    "none": lambda i: None,
    "none inside": lambda i: {"a": torch.ones(2), "b": None},
    "set": lambda i: {i},
    "frozen set": lambda i: frozenset({i}),
    "float": lambda i: i / 3,
    "bool number": lambda i: i % 2 == 0,
    "large integer": lambda i: 2**70,
    "complex number": lambda i: 1j * i,
    "range": lambda i: range(i, i + 3),
    "numpy": lambda i: np.full((2, 3), i, dtype=np.int16),
    "numpy 0-dim": lambda i: np.array(i),
    "numpy scalar": lambda i: np.float32(i),
    "numpy bool": lambda i: np.bool_(i),
    "numpy big endian": lambda i: np.full(3, i, dtype=">i4"),
    "numpy negative steps": lambda i: np.arange(4)[::-1],
    "numpy read-only": lambda i: np.frombuffer(b"12345678", np.uint8),
    "numpy uint16": lambda i: np.full(3, i, np.uint16),
    "numpy string": lambda i: np.array(["a", "bc"]),
    "numpy object": lambda i: np.array([None, {}], dtype=object),
    "numpy structured": lambda i: np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "numpy dates": lambda i: np.array(["2020-01-01"], dtype="M8[D]"),
    "numpy text": lambda i: np.str_("t"),
    "dataclass": lambda i: Custom(torch.ones(2), ["n"]),
    "date": lambda i: dt.datetime(2020, 1, 1 + i, tzinfo=dt.UTC),
    "simple namespace": lambda i: SimpleNamespace(a=i),
    "ragged lists": lambda i: [1] * (i + 1),
    "keys that differ": lambda i: {f"k{i}": i},
    "coo": lambda i: torch.eye(3).to_sparse() * i,
    "csr": lambda i: torch.eye(3).to_sparse_csr(),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name):
    """Samples of every kind through default_collate, and as they are without batches."""
    items = rows(SAMPLES[name])
    for options in ({}, {"batch_size": None}):
        found = []
        for kind in (DataLoader, Torchs):
            loader = kind(items, **{"batch_size": 2, "num_workers": 1, **options})
            found.append(all_of(loader))
        assert is_alike(*found), f"{options}\n{found[0]}\n{found[1]}"


base = torch.arange(24.0)
COLLATED = {
    "dataclass with pin_memory": lambda b: Custom(torch.stack(b), ["a", None], {"d": b[0]}),
    "slots": lambda b: Slotted(torch.stack(b), 3),
    "views of one": lambda b: [base[:8], base[4:12], base.view(4, 6)[:, 1:3], base[0], base],
    "the same twice": lambda b: [b[0], b[0], {"again": b[0]}],
    "a view and its base": lambda b: (b[0], b[0][1:]),
    "transposed": lambda b: torch.stack(b).t(),
    "steps": lambda b: torch.stack(b)[:, ::2],
    "expanded": lambda b: b[0].expand(1000, -1),
    "channels last": lambda b: torch.rand(2, 3, 5, 5).to(memory_format=torch.channels_last),
    "coo": lambda b: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 4)),
    "coo coalesced": lambda b: torch.eye(4).to_sparse(),
    "csr": lambda b: torch.eye(4).to_sparse_csr(),
    "csc": lambda b: torch.eye(4).to_sparse_csc(),
    "bsr": lambda b: torch.eye(4).to_sparse_bsr((2, 2)),
    "nested": lambda b: torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)]),
    "requires grad": lambda b: torch.ones(3, requires_grad=True),
    "parameter": lambda b: torch.nn.Parameter(torch.ones(3)),
    "buffer": lambda b: torch.nn.Buffer(torch.ones(3)),
    "tensor class": lambda b: torch.ones(4).as_subclass(Labelled),
    "meta": lambda b: torch.empty(3, device="meta"),
    "empty slice": lambda b: torch.ones(5)[5:],
    "storage": lambda b: list(torch.ones(5).untyped_storage()),
    "strings": lambda b: ["a" * 5, ("é", b"b"), {"c": {"d"}}, None, ...],
    "numbers": lambda b: [1, 2.5, 3j, True, 2**80, float("nan")],
    "a class": lambda b: [Pair, dict, torch.float32, torch.device("cpu"), torch.Size([2])],
    "a module": lambda b: list(torch.nn.Linear(2, 2, bias=False).state_dict()),
    "generators": lambda b: torch.Generator().manual_seed(3).get_state(),
    "recursive": lambda b: recursive(),
    "deep": lambda b: deep(200),
    "structured array": lambda b: np.zeros(300, dtype=[("a", "i4"), ("b", "f8", (2,))]),
    "dates": lambda b: np.arange("2020-01", "2020-03", dtype="M8[D]").repeat(20),
    "spans": lambda b: np.full(300, 3, dtype="m8[s]"),
    "objects": lambda b: np.array([None, {"a": 1}, "x", 3] * 100, dtype=object),
    "text array": lambda b: np.array(["abc", "d"] * 200),
    "fortran order": lambda b: np.asfortranarray(np.arange(400).reshape(20, 20)),
    "array steps": lambda b: np.arange(4000)[::-7],
    "0-dim array": lambda b: np.array(5.0),
    "empty array": lambda b: np.empty((0, 5)),
    "masked array": lambda b: np.ma.masked_array(np.arange(3), [0, 1, 0]).tolist(),
    "matrix": lambda b: np.arange(500).astype(np.complex64).reshape(5, 100),
    "large pickle": lambda b: {"text": "x" * 3_000_000, "list": list(range(100_000))},
    "large bytes": lambda b: bytes(5_000_000),
    "many tensors": lambda b: [torch.full((i % 5,), i) for i in range(700)],
}


def recursive():
    """Return a list that holds itself, as far as one can compare it."""
    found = [torch.ones(2)]
    return [found, found, [found]]


def deep(levels):
    """Return a tensor deep inside of lists."""
    found = torch.ones(3)
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.filterwarnings("ignore:The given NumPy", "ignore:There is a performance")
@pytest.mark.parametrize("name", COLLATED)
def test_collated(name):
    """Whatever a collate function returns: the same tree, values and looks of tensors."""
    items = [torch.arange(6.0) + i for i in range(4)]
    found = [batches_of(kind, items, COLLATED[name]) for kind in (DataLoader, Torchs)]
    assert is_alike(*found), f"{found[0]}\n{found[1]}"
    assert len(found[0]) == 2


UNSENDABLE = {
    "lambda": lambda b: [lambda: 1],
    "generator": lambda b: (i for i in range(3)),
    "file": lambda b: open("/dev/null"),  # noqa: PTH123, SIM115
    "local class": lambda b: type("Local", (), {})(),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", UNSENDABLE)
def test_batches_that_cannot_be_sent_are_an_error(name):
    """Torch prints it beside the loop and waits for ever; here it is the loop's, and it goes on."""
    found = batches_of(DataLoader, [0, 1, 2, 3], UNSENDABLE[name])
    assert len(found) == 2
    for kind, text in found:
        assert issubclass(kind, Exception)
        assert "pickle" in text or "serialize" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.full((3,), 1j).conj(),
        lambda: torch.full((3,), 1j).conj().imag,
        lambda: torch.quantize_per_tensor(torch.rand(4), 0.1, 3, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.jagged),
    ],
    ids=["conjugated", "negated", "quantized", "jagged"],
)
def test_kinds_that_torchs_workers_spoil(make):
    """Torch's workers lose a sign, or the tensor; ours deliver what the collate function made."""
    made = make()
    (batch,) = DataLoader([0], num_workers=1, collate_fn=lambda _: made)
    assert _looks_of(batch) == _looks_of(made)
    assert _values_of(batch) == _values_of(made)


def test_views_of_one_storage_are_each_their_own(request):
    """Tensors of a batch may be changed one by one, as torch's may where they do not overlap."""
    collated = lambda b: [b[0][:3], b[0][3:]]  # noqa: E731
    for kind in (DataLoader, Torchs):
        first, second = next(
            iter(kind([torch.zeros(6)], num_workers=1, collate_fn=collated, batch_size=1))
        )
        first.fill_(1)
        assert second.tolist() == [0, 0, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_is_asked_of_custom_batches(workers, monkeypatch):
    """`pin_memory=True` calls a batch's own `pin_memory`, deep in containers too."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    collate = lambda b: {"a": [Custom(torch.ones(1), b)]}  # noqa: E731
    found = []
    for kind in (DataLoader, Torchs):
        if kind is Torchs and workers:
            continue  # its pinning thread needs a real accelerator
        loader = kind(
            [1, 2], batch_size=1, collate_fn=collate, num_workers=workers, pin_memory=True
        )
        found.append([batch["a"][0].pinned for batch in loader])
    assert found == [[True, True]] * len(found)


def test_convert_of_samples_is_torchs():
    """Without batches, samples pass through default_convert in the worker."""
    items = [np.arange(3), {"a": np.float32(1)}, "text", Pair(np.ones(2), 1), [np.ones(1)]]
    found = list(DataLoader(items, batch_size=None, num_workers=1))
    assert is_alike(found, [default_convert(one) for one in items])


def test_users_entry_for_tensors_is_called(monkeypatch):
    """An entry in torch's table of collate functions reaches the workers."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(
        default_collate_fn_map, torch.Tensor, lambda batch, **_: torch.stack(batch) + 100
    )
    monkeypatch.setitem(default_collate_fn_map, Custom, lambda batch, **_: len(batch))
    for make in (torch.tensor, lambda i: Custom(torch.ones(1), [i])):
        items = rows(make)
        found = [batches_of(kind, items, default_collate) for kind in (DataLoader, Torchs)]
        assert is_alike(*found)
