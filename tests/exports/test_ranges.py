"""Profilers see the loader's steps by name, and only while somebody asked for that."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fastfeed import exports
from fastfeed.errors import OptionError


class FakeNvtx:
    """Keeps the names of ranges."""

    def __init__(self, *, there=True):
        self.there, self.names, self.depth = there, [], 0

    @contextmanager
    def range(self, name):
        if not self.there:
            raise RuntimeError("NVTX functions not installed")
        self.names.append(name)
        self.depth += 1
        yield
        self.depth -= 1


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"num_workers": 0}, {"fastfeed.fetch": 8}),
        (
            {"num_workers": 1, "worker_kind": "thread"},
            {"fastfeed.wait": 8, "fastfeed.open": 8, "fastfeed.sample": 8},
        ),
    ],
    ids=["no workers", "workers"],
)
def test_profiler_shows_the_steps(small_loader, options, steps):
    """torch.profiler counts each step once a batch; none after the export has ended."""
    loader = small_loader(**options)
    with exports.profiler(loader), profile(activities=[ProfilerActivity.CPU]) as seen:
        assert len(list(loader)) == 8
    counts = {one.key: one.count for one in seen.key_averages() if one.key[:9] == "fastfeed."}
    assert counts == steps
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        assert len(list(loader)) == 8
    assert not [one for one in seen.key_averages() if one.key.startswith("fastfeed.")]


def test_nvtx_marks_the_steps(small_loader, monkeypatch):
    """NVTX ranges open and close around each step of the next epoch."""
    ranges = FakeNvtx()
    monkeypatch.setattr(torch.cuda, "nvtx", ranges)
    loader = small_loader()
    with exports.nvtx(loader):
        ranges.names.clear()
        assert len(list(loader)) == 8
    assert ranges.names == ["fastfeed.fetch"] * 8
    assert ranges.depth == 0
    assert len(list(loader)) == 8
    assert len(ranges.names) == 8


def test_nvtx_without_cuda_says_what_else_there_is(small_loader, monkeypatch):
    """A torch that was built without CUDA has no NVTX: an error, not a silent nothing."""
    monkeypatch.setattr(torch.cuda, "nvtx", FakeNvtx(there=False))
    with pytest.raises(OptionError, match=r"no NVTX here.*ff\.exports\.profiler"):
        exports.nvtx(small_loader())


def test_only_loaders_that_measure_themselves(fake_loader):
    """Torch's own loader, or what a trainer made of ours, is refused with a way out."""
    other = torch.utils.data.DataLoader([1, 2])
    for export in (exports.profiler, exports.log, exports.prometheus):
        with pytest.raises(OptionError, match="a DataLoader does not measure itself"):
            export(other)
    with pytest.raises(OptionError, match="does not measure itself"):
        exports.trace(other, "trace.json")
