"""The GPU's side, over traces and a device of paper."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fastfeed.diagnosis import device
from fastfeed.diagnosis.evidence import Times
from fastfeed.diagnosis.run import _Target, diagnose
from fastfeed.doctor.units import UnitUse
from fastfeed.errors import OptionError


class Phases:
    """Counts the steps that it is asked to run."""

    def __init__(self):
        self.steps = {}

    def some(self, phase, steps):
        self.steps[phase] = steps


@pytest.fixture
def paper_gpu(monkeypatch):
    """A device with facts and no driver; traces are given by phase."""
    facts = SimpleNamespace(name="paper", total_memory=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda which: facts)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda which: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda which: 900)

    def counted(address, work):
        work()
        return UnitUse(memory=0.7, tensor=0.1)

    monkeypatch.setattr(device, "unit_use", counted)

    def install(*traces):
        left = list(traces)

        def profiled(steps, *, on_device):
            assert on_device
            steps()
            return left.pop(0)

        monkeypatch.setattr(device, "profiled", profiled)

    return install


TIMES = Times(ceiling_s=0.1, cached_s=0.1, real_s=0.15, wait_s=0.05, noise=0.0)


def kernels(count, length, every):
    return [
        {"cat": "kernel", "ts": number * every, "dur": length, "args": {"blocks per SM": 0.5}}
        for number in range(count)
    ]


def test_gpu_from_two_traces(paper_gpu):
    """Kernels come from the step alone, copies from the loop that is fed, each by its steps."""
    copy = {
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "ts": 0,
        "dur": 4000,
        "args": {"bytes": 8e6},
    }
    paper_gpu(kernels(300, 500, 1000), [copy])
    phases = Phases()
    gpu = device.gpu_of(phases, TIMES, torch.device("cuda"))
    assert phases.steps == {"ceiling": 5, "real": 2}  # the counters' steps came last
    assert gpu.kernels_a_step == 100
    assert gpu.busy == pytest.approx(0.5)  # 50 ms of kernels in a step of 100 ms
    assert gpu.filled == 0.5
    assert gpu.copied_bytes == 4e6
    assert gpu.copy_s == pytest.approx(2e-3)
    assert gpu.pageable == 1.0
    assert gpu.memory_used == 0.9
    assert (gpu.dram, gpu.tensor, gpu.uncounted) == (0.7, 0.1, "")


def test_units_that_are_not_counted(paper_gpu, monkeypatch):
    """Without counters the figures are none, and the reason is kept."""
    paper_gpu(kernels(300, 500, 1000), [])
    monkeypatch.setattr(device, "unit_use", lambda address, work: "not granted")
    gpu = device.gpu_of(Phases(), TIMES, torch.device("cuda"))
    assert (gpu.dram, gpu.tensor, gpu.uncounted) == (None, None, "not granted")


def test_where_a_gpu_is():
    """Torch's numbers become an address as sysfs writes it; older ones do not tell."""
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=59, pci_device_id=0)
    assert device._address(facts) == "0000:3b:00.0"
    assert device._address(SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("traces", "words"),
    [
        (("no permission", []), "no permission"),
        (([], "too long"), "too long"),
        (([], []), "no kernel"),
    ],
)
def test_what_could_not_be_profiled_is_said(paper_gpu, traces, words):
    """A profiler that refuses, and a trace without kernels, are reasons and no figures."""
    paper_gpu(*traces)
    assert words in device.gpu_of(Phases(), TIMES, torch.device("cuda"))


def test_which_device(monkeypatch):
    """The device is the one asked for, else the loader's, else CUDA once the step has used it."""
    loader = SimpleNamespace(device="cuda:1")
    assert _Target(loader, None).device == torch.device("cuda:1")
    assert _Target(loader, "cuda:0").device == torch.device("cuda:0")
    assert _Target(loader, "cpu").device is None
    assert _Target([], None).device is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert _Target([], None).device == torch.device("cuda")


def test_ranks_are_refused(monkeypatch):
    """Ranks that run different numbers of steps would hang, so several are refused."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(OptionError, match="one rank alone"):
        diagnose([torch.ones(1)], print)
