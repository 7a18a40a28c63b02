"""The door to NVML over a library that answers, refuses, or lacks functions."""

from __future__ import annotations

import sys
import types

import pytest

from fastfeed.doctor.nvml import Nvml, open_nvml


class NVMLError(Exception):
    """As the library's own."""


def refuse(*arguments):
    raise NVMLError("not supported")


def library(**functions):
    """A library of two GPUs, the second of which may not be opened."""

    def handle(index):
        if index:
            refuse()
        return "handle"

    answers = {
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
    }
    return types.SimpleNamespace(NVMLError=NVMLError, **answers | functions)


def values(**fields):
    return types.SimpleNamespace(**fields)


def full_library():
    processes = [values(pid=7, usedGpuMemory=5 << 30), values(pid=8, usedGpuMemory=None)]
    uses = [
        values(pid=7, smUtil=40, timeStamp=10),
        values(pid=7, smUtil=60, timeStamp=30),
        values(pid=8, smUtil=1, timeStamp=20),
    ]
    return library(
        nvmlSystemGetDriverVersion=lambda: b"575.1",
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetPciInfo=lambda handle: values(busId=b"00000000:3B:00.0"),
        nvmlDeviceGetMemoryInfo=lambda handle: values(total=100, used=40),
        nvmlDeviceGetMigMode=lambda handle: [1, 1],
        nvmlDeviceGetCpuAffinity=lambda handle, words: [0b11, 0b1, *[0] * (words - 2)],
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetUtilizationRates=lambda handle: values(gpu=50, memory=20),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4,
        nvmlDeviceGetPcieThroughput=lambda handle, way: 10 if way else 3,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
        nvmlDeviceGetProcessUtilization=lambda handle, last: [
            u for u in uses if u.timeStamp > last
        ],
    )


def test_what_nvml_tells():
    """Facts and samples carry NVML's answers in our units; a GPU that is not ours is left out."""
    nvml = Nvml(full_library())
    assert nvml.found == 1
    (facts,) = nvml.facts()
    assert (facts.index, facts.name, facts.driver) == (0, "NVIDIA H200", "575.1")
    assert (facts.address, facts.mig, facts.cores) == ("0000:3b:00.0", True, {0, 1, 64})
    assert (facts.clock_most, facts.power_limit, facts.persistent) == (1980, 700.0, None)
    (sample,) = nvml.sample()
    assert (sample.busy, sample.memory_used, sample.reasons) == (50, 40, 4)
    assert (sample.received, sample.sent) == (10 * 1024, 3 * 1024)
    assert [(one.pid, one.memory, one.busy) for one in sample.processes] == [
        (7, 5 << 30, 60),
        (8, None, 1),
    ]
    assert nvml.sample()[0].processes[0].busy is None  # nothing newer than what was told


@pytest.mark.parametrize("missing", [False, True])
def test_what_nvml_refuses(missing):
    """Refusals and functions that an old package lacks are None, never an exception."""
    names = [name for name in vars(full_library()) if name.startswith("nvmlDeviceGet")]
    kept = {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
    nvml = Nvml(library(**{} if missing else dict.fromkeys(set(names) - kept, refuse)))
    (facts,), (sample,) = nvml.facts(), nvml.sample()
    assert (facts.name, facts.address, facts.mig) == ("unnamed GPU", None, None)
    assert (sample.busy, sample.reasons, sample.processes) == (None, None, ())


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (None, "without nvidia-ml-py"),
        (library(nvmlInit=refuse), "NVML does not answer (not supported)"),
        (library(nvmlDeviceGetCount=lambda: 0), "NVML shows no GPU"),
    ],
)
def test_no_nvml(monkeypatch, installed, reason):
    """A missing package, a missing driver and no GPU are three reasons, and none an exception."""
    monkeypatch.setitem(sys.modules, "pynvml", installed)
    with open_nvml() as (nvml, why):
        assert nvml is None
        assert reason in why


def test_nvml_is_shut_down(monkeypatch):
    """What was opened is closed, also when the look fails."""
    closed = []
    monkeypatch.setitem(sys.modules, "pynvml", library(nvmlShutdown=lambda: closed.append(1)))
    with pytest.raises(KeyboardInterrupt), open_nvml() as (nvml, why):
        assert nvml.found == 1
        assert why == ""
        raise KeyboardInterrupt
    assert closed == [1]
