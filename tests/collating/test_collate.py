"""default_collate into a batch's memory equals what torch's own worker makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from fastfeed.collating.collate import HeapWriter, stack_into


class CountingWriter(HeapWriter):
    """Heap memory, with a count of what was asked for."""

    def __init__(self):
        self.asked = 0

    def empty(self, shape, dtype):
        """Return a fresh array and count it."""
        self.asked += 1
        return super().empty(shape, dtype)


@pytest.fixture
def writer(monkeypatch):
    """Collate into a writer during the test, in worker mode, as in a worker process."""
    monkeypatch.setattr(
        torch_collate, "default_collate_fn_map", dict(torch_collate.default_collate_fn_map)
    )
    monkeypatch.setattr(torch_worker, "_worker_info", torch_worker.WorkerInfo(0, 1, 0, None))
    writer = CountingWriter()
    writer.theirs = dict(torch_collate.default_collate_fn_map)
    stack_into(writer)
    return writer


def outcome(batch, table):
    """Return the collated batch, or the type of error it gives."""
    try:
        found = torch_collate.collate(batch, collate_fn_map=table)
    except Exception as error:  # noqa: BLE001
        return type(error)
    return found


KINDS = {
    "uint8": [torch.ones(3, 4, dtype=torch.uint8)] * 3,
    "bfloat16": [torch.rand(3).bfloat16()] * 2,
    "scalar": [torch.tensor(1.5), torch.tensor(2.5)],
    "empty": [torch.empty(0, 3)] * 2,
    "channels_last": [torch.rand(1, 3, 4, 4).to(memory_format=torch.channels_last)] * 2,
    "transposed": [torch.rand(3, 4).t(), torch.rand(3, 4).t()],
    "mixed dtypes": [torch.rand(3).double(), torch.rand(3)],
    "integer first": [torch.ones(3, dtype=torch.int64), torch.rand(3)],
    "ragged": [torch.rand(3), torch.rand(4)],
    "other ranks": [torch.rand(3), torch.rand(3, 1)],
    "sparse": [torch.eye(3).to_sparse()] * 2,
    "sparse second": [torch.eye(3), torch.eye(3).to_sparse()],
    "differentiable second": [torch.rand(3), torch.rand(3, requires_grad=True)],
    "differentiable": [torch.rand(3, requires_grad=True)] * 2,
    "parameter": [torch.nn.Parameter(torch.rand(2))] * 2,
    "meta": [torch.empty(3, device="meta")] * 2,
    "numpy": [np.arange(5.0), np.ones(5)],
    "numpy scalar": [np.float32(1), np.float32(2)],
    "numpy strings": [np.array(["a"]), np.array(["b"])],
    "numbers": [1, 2, 3],
    "floats": [1.0, 2.0],
    "strings": ["a", "b"],
    "nothing": [None, None],
    "dicts": [{"a": torch.rand(2), "b": [1, "x"]}] * 3,
    "tuples": [(torch.rand(2), 1), (torch.rand(2), 2)],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_as_torchs_worker(writer, kind):
    """The same batch or the same type of error, for every kind."""
    batch = KINDS[kind]
    theirs, ours = (
        outcome(batch, writer.theirs),
        outcome(batch, torch_collate.default_collate_fn_map),
    )
    if kind == "differentiable":
        assert theirs is RuntimeError  # torch refuses what its main process does
        return
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype, theirs.shape, theirs.stride(),
        )  # fmt: skip
        assert ours.device.type == "meta" or torch.equal(ours, theirs)
    else:
        assert str(ours) == str(theirs)


def test_a_users_collate_function_is_served_too(writer):
    """default_collate called by anybody in the process takes the batch's memory."""
    default_collate([{"a": torch.rand(3)}, {"a": torch.rand(3)}])
    assert writer.asked == 1


def test_a_users_entry_for_tensors_stays(monkeypatch):
    """What the user put into torch's table for tensors is not replaced."""
    table = {torch.Tensor: lambda batch, **_: "mine"}
    monkeypatch.setattr(torch_collate, "default_collate_fn_map", table)
    stack_into(HeapWriter())
    assert default_collate([torch.rand(3)]) == "mine"
