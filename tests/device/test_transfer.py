"""What comes to the device besides plain tensors: moved by itself, and known to be there."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from fastfeed.device import device as device_module
from fastfeed.device.device import CudaDevice
from fastfeed.device.stage import Stage
from fastfeed.device.transfer import Transfer, map_leaves, tensors_of
from fastfeed.errors import DeviceError, EmptyBatchError


class Boxes:
    """Moves itself, as the batches of some libraries do."""

    __slots__ = ("parts",)

    def __init__(self, parts):
        self.parts = parts

    def to(self, device):
        return Boxes({name: part.to(device, copy=True) for name, part in self.parts.items()})


class View(MutableMapping):
    """A mapping whose shallow copy is the same mapping."""

    def __init__(self, values):
        self.values_of = values

    def __getitem__(self, name):
        return self.values_of[name]

    def __setitem__(self, name, value):
        self.values_of[name] = value

    def __delitem__(self, name):
        del self.values_of[name]

    def __iter__(self):
        return iter(self.values_of)

    def __len__(self):
        return len(self.values_of)


class Marked(torch.Tensor):
    """A tensor that knows more than its elements."""


def test_what_moves_itself_is_handed_over(fake_device):
    """Its tensors are known as those of the batch: their memory waits for the loop's stream."""
    moved, _ = Stage(fake_device).move({"boxes": Boxes({"a": torch.ones(3)}), "x": torch.ones(2)})
    sent = {id(tensor) for tensor in moved.sent}
    assert sent == {id(moved.batch["boxes"].parts["a"]), id(moved.batch["x"])}
    moved.mark.wait()


def test_what_is_read_is_held_whatever_becomes_of_its_container(fake_device):
    """A mapping that changes with its copy lets host tensors go; the copies still read them."""
    tree = View({"x": torch.ones(3)})
    source = weakref.ref(tree["x"])
    moved, held = Stage(fake_device).move(tree)
    assert source() is not None
    assert any(one is source() for one in held)
    moved.mark.wait()


def test_a_packed_sequence_moves_itself():
    """Its sizes belong on the host, so it is not taken apart."""
    packed, seen = pack_sequence([torch.ones(3), torch.ones(2)]), []
    map_leaves({"text": packed}, seen.append)
    assert len(seen) == 1
    assert seen[0] is packed


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_arrive(fake_device, layout):
    """Tensors without strides move by themselves, and their parts are known."""
    source = torch.eye(4).to_sparse(layout=layout)
    transfer = Transfer(fake_device, None)
    assert torch.equal(transfer.send(source).to_dense(), torch.eye(4))
    assert all(part.layout is torch.strided for part in transfer.sent)
    assert len(transfer.sent) == (2 if layout is torch.sparse_coo else 3)


def test_subclasses_keep_their_type(fake_device):
    """A tensor of a type of its own arrives as one."""
    sent = Transfer(fake_device, None).send(torch.ones(3).as_subclass(Marked))
    assert type(sent) is Marked


def test_tensors_are_found_in_circles():
    """Whatever a thing is made of, each of its tensors is found once."""
    one, other = torch.ones(1), torch.ones(2)
    thing = {"a": [one, (other, {"b": one})]}
    thing["self"] = thing
    assert {id(found) for found in tensors_of(thing)} == {id(one), id(other)}
    assert len(tensors_of(thing)) == 2


def test_what_torch_before_2_8_says_of_cuda(monkeypatch):
    """Where CUDA's errors have no type, they are told from those of the batch by their words."""
    monkeypatch.delattr(torch, "AcceleratorError", raising=False)
    monkeypatch.setattr(device_module, "_CUDA_ERROR", None, raising=False)
    device = object.__new__(CudaDevice)
    device._stream, device._target = None, torch.device("cuda", 0)
    with pytest.raises(EmptyBatchError), device.work():
        raise EmptyBatchError("all were skipped")
    with pytest.raises(DeviceError, match="illegal"), device.work():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
