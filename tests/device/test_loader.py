"""The loader with a device: the same batches, whatever workers there are, and nothing left over."""

from __future__ import annotations

import pytest
import torch

import fastfeed as ff
from fastfeed.errors import OptionError


class Numbers(torch.utils.data.Dataset):
    """Samples of a tensor, a number and a text."""

    def __init__(self, count=24):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": torch.full((3, 40), index), "y": index, "name": f"sample {index}"}


def plain(batch):
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_kind": "thread"}]


@pytest.mark.parametrize("workers", WORKERS, ids=["none", "processes", "threads"])
def test_batches_equal_torchs(fake_device, workers):
    """A device changes where batches are, not what they hold or their order."""
    theirs = [plain(b) for b in torch.utils.data.DataLoader(Numbers(), batch_size=5)]
    loader = ff.DataLoader(Numbers(), batch_size=5, device="cuda", **workers)
    for _ in range(2):
        assert [plain(b) for b in loader] == theirs
    assert fake_device.pinned == {}


@pytest.mark.parametrize("workers", WORKERS, ids=["none", "processes", "threads"])
def test_kept_batches_stay(fake_device, workers):
    """`list(loader)` holds each batch's own values, long after their slots were used again."""
    loader = ff.DataLoader(Numbers(60), batch_size=2, device="cuda", **workers)
    for number, batch in enumerate(list(loader)):
        assert batch["y"].tolist() == [2 * number, 2 * number + 1]
        assert batch["x"][:, 0, 0].tolist() == [2 * number, 2 * number + 1]


def test_slots_are_pinned_and_let_go(fake_device):
    """While workers live their used memory is pinned once, and none of it after them."""
    loader = ff.DataLoader(Numbers(200), batch_size=4, num_workers=2, device="cuda")
    seen = set()
    for _ in loader:
        seen |= set(fake_device.pinned)
    assert seen
    assert fake_device.pinned == {}


def test_static_output_is_the_same_memory(fake_device):
    """With output="static" each batch is in the tensors of the first one."""
    loader = ff.DataLoader(Numbers(20), batch_size=4, num_workers=2, device="cuda", output="static")
    places = set()
    for number, batch in enumerate(loader):
        places.add((batch["x"].data_ptr(), batch["y"].data_ptr()))
        assert batch["y"].tolist() == list(range(4 * number, 4 * number + 4))
    assert len(places) == 1


def test_static_output_refuses_a_short_batch(fake_device):
    """A batch of another shape does not fit the fixed tensors: an error with a way out."""
    loader = ff.DataLoader(Numbers(10), batch_size=4, device="cuda", output="static")
    with pytest.raises(OptionError, match="drop_last"):
        list(loader)


def test_batch_transform_runs_on_each_batch(fake_device):
    """`batch_transform` is the last to touch a batch."""
    loader = ff.DataLoader(
        Numbers(8), batch_size=4, num_workers=1, device="cuda", batch_transform=lambda b: b["y"] * 2
    )
    assert [b.tolist() for b in loader] == [[0, 2, 4, 6], [8, 10, 12, 14]]


def test_early_end_and_persistent_workers(fake_device):
    """An epoch that is left early disturbs neither the next one nor the end."""
    loader = ff.DataLoader(
        Numbers(40), batch_size=4, num_workers=2, device="cuda", persistent_workers=True
    )
    for batch in loader:
        assert batch["y"][0] == 0
        break
    for _ in range(2):
        assert [b["y"][0].item() for b in loader] == list(range(0, 40, 4))


def fail_at(sample):
    if sample == 7:
        raise ValueError("seven")
    return sample


class Failing(Numbers):
    """Fails at one sample."""

    def __getitem__(self, index):
        fail_at(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", WORKERS, ids=["none", "processes", "threads"])
def test_a_failing_sample_raises_in_its_turn(fake_device, workers):
    """Batches before a failing one come; then its exception, of its own type; then the rest."""
    loader = iter(ff.DataLoader(Failing(16), batch_size=4, device="cuda", **workers))
    assert next(loader)["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="seven"):
        next(loader)
    assert next(loader)["y"].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"decode": "fast"}, "no way to decode"),
        ({"decode": 1.5, "device": "cuda"}, "no share"),
        ({"output": "ring", "device": "cuda"}, "neither"),
        ({"output": "static"}, 'Add device="cuda"'),
        ({"decode": "gpu"}, 'Add device="cuda"'),
        ({"batch_transform": 3, "device": "cuda"}, "not callable"),
        ({"pinned_budget": "many", "device": "cuda"}, "not a size"),
        ({"pin_memory": True, "device": "cuda"}, "pins memory itself"),
    ],
)
def test_arguments_that_cannot_be_honoured(arguments, word):
    """What cannot be meant is refused when the loader is made."""
    with pytest.raises(OptionError, match=word):
        ff.DataLoader(Numbers(), **arguments)


@pytest.mark.filterwarnings("ignore")
def test_data_pipes_are_refused():
    """Data pipes run in torch's own loop, so a device would do nothing: that is said."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    with pytest.raises(OptionError, match="data pipes"):
        ff.DataLoader(IterableWrapper(range(3)), device="cuda")


def test_no_cuda_is_said(monkeypatch):
    """Without a CUDA device the first iterator says so."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match="no CUDA device"):
        iter(ff.DataLoader(Numbers(), device="cuda"))
