"""A device that fails, wherever that shows: an error of ours with a way out, and the next batch."""

from __future__ import annotations

import pytest
import torch

import fastfeed as ff
from fastfeed.device import device as device_module
from fastfeed.device.device import CudaDevice, open_device
from fastfeed.errors import DeviceError

Failed = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8


# Made anew for each test: what was raised holds on to where that was.


def out_of_memory():
    return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def gone():
    return Failed("CUDA error: device lost")


def captured():
    return Failed("CUDA error: dependency created on uncaptured work in another stream")


FAILURES = pytest.mark.parametrize(
    "failing",
    [
        (out_of_memory, "no memory left", "smaller batch"),
        (gone, "device lost", "restart the job from its last checkpoint"),
        (captured, "in another stream", "before the capture"),
    ],
    ids=["out of memory", "lost", "captured"],
)
WORKERS = pytest.mark.parametrize("workers", [0, 1])


def fail_once(monkeypatch, place, name, failure, *, at=1):
    """Have the call of a number from 0 up fail."""
    calls = iter(range(1000))
    real = getattr(place, name)

    def call(*args, **more):
        if next(calls) == at:
            raise failure()
        return real(*args, **more)

    monkeypatch.setattr(place, name, call)


@FAILURES
@WORKERS
def test_what_the_loops_stream_refuses(
    fake_device, monkeypatch, samples, first_of, workers, failing
):
    """Where the loop's stream cannot have a batch, its `next` says why; the next batch comes."""
    failure, fact, way_out = failing
    fail_once(monkeypatch, fake_device, "hand_over", failure)
    batches = iter(ff.DataLoader(samples(16), batch_size=4, num_workers=workers, device="cuda"))
    assert first_of([next(batches)]) == [0]
    with pytest.raises(DeviceError, match=fact) as raised:
        next(batches)
    assert way_out in raised.value.way_out
    assert first_of(batches) == [8, 12]


@FAILURES
def test_what_the_loaders_stream_refuses(failing):
    """What fails among copies and decoding is named, and other errors stay what they are."""
    failure, fact, way_out = failing
    device = object.__new__(CudaDevice)
    device._stream, device._target = None, torch.device("cuda", 0)
    with pytest.raises(DeviceError, match=fact) as raised, device.work():
        raise failure()
    assert way_out in raised.value.way_out
    with pytest.raises(ValueError, match="of the batch"), device.work():
        raise ValueError("of the batch")


@FAILURES
def test_a_device_that_cannot_be_opened(monkeypatch, failing):
    """A GPU that others have filled, or that has failed, says so when the loader begins."""
    failure, fact, way_out = failing

    def refuse(_target):
        raise failure()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_module, "CudaDevice", refuse)
    with pytest.raises(DeviceError, match=fact) as raised:
        open_device("cuda")
    assert way_out in raised.value.way_out


def test_a_copy_that_failed_shows_at_its_mark():
    """Who waits for the end of a copy on a lost GPU gets an error of the device."""

    class Lost:
        def synchronize(self):
            raise gone()

    with pytest.raises(DeviceError, match="device lost"):
        device_module._Event(Lost(), torch.device("cuda", 0)).wait()


@WORKERS
def test_the_users_own_transform_keeps_its_errors(fake_device, samples, workers):
    """What a batch_transform raises is not taken for a failure of the loader."""

    def fails(_batch):
        raise out_of_memory()

    loader = ff.DataLoader(
        samples(16), batch_size=4, num_workers=workers, device="cuda", batch_transform=fails
    )
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(iter(loader))
