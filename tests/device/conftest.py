"""A device of ordinary memory that notices what is let go early, and numbers to send to it."""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import signal
import threading
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image as Pillow

from device_pictures import jpeg, supports, write
from fastfeed.device.decoders.choose import Choice


class FakeMark:
    """A place in a fake device's work."""

    def __init__(self, device, place):
        self._owner, self._place = device, place

    def is_done(self):
        return self._owner.has_done(self._place)

    def wait(self):
        self._owner.finish_until(self._place)


def in_a_slot(address):
    """Say whether an address lies in a worker's region."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:fastfeed" in line:
            start, stop = (int(one, 16) for one in line.split(" ", 1)[0].split("-"))
            if start <= address < stop:
                return True
    return False


class FakeDevice:
    """Copies at once, and looks at the source again when a mark after the copy is waited for.

    A GPU reads the source at any time up to then, so a slot that is written to before is `torn`.
    """

    def __init__(self, *, refuse_pins=None):
        self.target = torch.device("cpu")
        self.pinned = {}
        self.has_pinned = threading.Event()
        self.refuse_pins = refuse_pins
        self.handed_over = 0
        self.torn = []
        self.threads = set()
        self.fail_at = None  # number of the mark whose wait fails
        self._queue = deque()
        self._given = self._done = 0
        self._lock = threading.RLock()

    def enter_thread(self):
        self.threads.add(threading.current_thread().name)

    @contextmanager
    def work(self):
        yield

    def copy(self, target, source):
        target.copy_(source)
        place = (source.data_ptr(), source.nbytes)
        # A tensor would keep its slot lent; other memory is kept, for it goes away with its tensor.
        kept = None if in_a_slot(place[0]) else source
        with self._lock:
            self._queue.append((place, ctypes.string_at(*place), kept))
            self._given += 1

    def mark(self):
        return FakeMark(self, self._given)

    def finish_until(self, place):
        with self._lock:
            while self._done < place:
                source, before, _ = self._queue.popleft()
                if ctypes.string_at(*source) != before:
                    self.torn.append(source)
                self._done += 1

    def has_done(self, place):
        return self._done >= place

    def hand_over(self, tensors, mark):
        assert all(isinstance(one, torch.Tensor) for one in tensors)
        self.handed_over += 1
        mark.wait()

    def pin(self, address, nbytes):
        if self.refuse_pins is not None:
            return self.refuse_pins
        assert address not in self.pinned
        self.pinned[address] = nbytes
        self.has_pinned.set()
        return None

    def unpin(self, address):
        del self.pinned[address]


@pytest.fixture
def fake_device(monkeypatch):
    """Make `device="cuda"` a fake device, and return it."""
    device = FakeDevice()
    monkeypatch.setattr("fastfeed.device.path.open_device", lambda _: device)

    monkeypatch.setattr(
        "fastfeed.device.transfer.Transfer.fill", lambda _, *copied: device.copy(*copied)
    )
    yield device
    assert device.torn == []


@pytest.fixture(params=[True, False], ids=["beside the loop", "by the loop"])
def is_beside(request, monkeypatch):
    """Have threads of their own move batches, then the loop's."""
    is_so = request.param
    monkeypatch.setattr("fastfeed.device.path.DevicePath._is_beside", lambda *_, **__: is_so)
    return is_so


@pytest.fixture
def beside(monkeypatch):
    """Have threads of their own move batches."""
    monkeypatch.setattr("fastfeed.device.path.DevicePath._is_beside", lambda *_, **__: True)


@pytest.fixture
def no_collector():
    """Leave what goes away to its counts of references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Samples(torch.utils.data.Dataset):
    """Numbers; one sample may end its worker."""

    def __init__(self, count=64, *, deadly=None):
        self.count, self.deadly = count, deadly

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((1000,), index)


@pytest.fixture
def samples():
    """The data set of numbers."""
    return Samples


@pytest.fixture
def first_of():
    """The first number of each batch."""
    return lambda batches: [int(batch[0, 0]) for batch in batches]


@pytest.fixture
def use_decoder(monkeypatch, fake_device):
    """A function that makes a decoder the chosen one."""

    def use(decoder):
        monkeypatch.setattr("fastfeed.device.path.choose", lambda *_, **__: Choice(decoder, ()))
        monkeypatch.setattr("fastfeed.device.path.SUPPORTS", {"fake": supports})
        return decoder

    return use


@pytest.fixture
def mixed(tmp_path):
    """Twenty-four samples: photos of many sizes, and what no GPU decodes among them."""
    samples = []
    for i in range(24):
        data = jpeg(i, height=60 + 3 * i, width=130 - 2 * i)
        if i == 13:
            data = jpeg(i, progressive=True)
        if i == 17:
            data = jpeg(i, mode="CMYK")
        if i == 19:
            file = io.BytesIO()
            Pillow.open(io.BytesIO(data)).save(file, "png")
            data = file.getvalue()
        if i == 21:
            exif = Pillow.Exif()
            exif[0x0112] = 6
            data = jpeg(i, exif=exif)
        samples.append({"jpg": data, "cls": str(i).encode(), "json": json.dumps(i).encode()})
    return write(tmp_path / "mixed-000000.tar", samples)
