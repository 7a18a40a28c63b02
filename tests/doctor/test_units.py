"""Counters of memory traffic and tensor cores, over a library that counts or refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastfeed.doctor.nvml import Nvml
from fastfeed.doctor.units import UnitUse, unit_use, use_by

ADDRESS = "0000:3b:00.0"


class NVMLError(Exception):
    """As the library's own."""


def refuse(*arguments):
    raise NVMLError("no permission")


class Library:
    """One GPU whose counters give what is told; samples that are not given back are in `held`."""

    NVMLError = NVMLError
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, *, code=0, **functions):
        self.held, self.code = [], code
        answers = {
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: "handle",
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId="00000000:3B:00.0"),
            "nvmlGpmSampleGet": lambda handle, sample: sample,
            "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=1),
        }
        vars(self).update(answers | functions)

    def nvmlGpmSampleAlloc(self):
        sample = object()
        self.held.append(sample)
        return sample

    def nvmlGpmSampleFree(self, sample):
        self.held.remove(sample)

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=self.code) for _ in range(210)])

    def nvmlGpmMetricsGet(self, asked):
        assert asked.sample1 is not asked.sample2
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = {10: 62.0, 5: 21.0}[metric.metricId]
        return asked


def test_what_work_used():
    """The work is done between two samples, and per cent become parts."""
    library, done = Library(), []
    used = use_by(Nvml(library), ADDRESS, lambda: done.append(len(library.held)))
    assert used == UnitUse(memory=0.62, tensor=0.21)
    assert done == [1]
    assert not library.held


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (Library(nvmlGpmQueryDeviceSupport=refuse), "not granted"),
        (
            Library(nvmlGpmQueryDeviceSupport=lambda handle: SimpleNamespace(isSupportedDevice=0)),
            "Hopper",
        ),
        (Library(nvmlGpmSampleAlloc=refuse), "can't be read"),
        (Library(nvmlGpmSampleGet=refuse), "can't be read"),
        (Library(nvmlGpmMetricsGet=refuse), "can't be read"),
        (Library(code=3), "does not count"),
    ],
)
def test_counters_that_are_not_there(library, words):
    """Each refusal is a reason; no sample is kept."""
    told = use_by(Nvml(library), ADDRESS, lambda: None)
    assert isinstance(told, str)
    assert words in told
    assert not library.held


def test_samples_are_given_back_when_the_work_fails():
    """An error of the work goes on, and what was taken is given back."""
    library = Library()
    with pytest.raises(ZeroDivisionError):
        use_by(Nvml(library), ADDRESS, lambda: 1 / 0)
    assert not library.held


@pytest.mark.parametrize("address", [None, "0000:99:00.0"])
def test_another_gpu(address):
    """The counters of a GPU that is not the step's are not taken for its own."""
    assert "does not show" in use_by(Nvml(Library()), address, lambda: None)


def test_without_nvml():
    """Where there is no driver the reason is told."""
    assert isinstance(unit_use(ADDRESS, lambda: None), str)
