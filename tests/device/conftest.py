"""A device of ordinary memory: copies happen late, so that what is let go too early shows."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager

import pytest
import torch

from fastfeed.device.device import Device


class FakeMark:
    """A place in a fake device's work."""

    def __init__(self, device, place):
        self._device, self._place = device, place

    def wait(self):
        self._device.run_until(self._place)


class FakeDevice:
    """Runs what it is asked for at once, except copies, which it does when a mark is waited for.

    So a slot that is given back before its copy is done is read too late, and the batch is wrong.
    """

    def __init__(self, *, refuse_pins=None):
        self.target = torch.device("cpu")
        self.pinned = {}
        self.refuse_pins = refuse_pins
        self.handed_over = 0
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

    def later(self, what):
        with self._lock:
            self._queue.append(what)
            self._given += 1

    def mark(self):
        return FakeMark(self, self._given)

    def run_until(self, place):
        with self._lock:
            while self._done < place:
                self._queue.popleft()()
                self._done += 1

    def hand_over(self, tensors, mark):
        assert all(isinstance(one, torch.Tensor) for one in tensors)
        self.handed_over += 1
        mark.wait()

    def pin(self, address, nbytes):
        if self.refuse_pins is not None:
            return self.refuse_pins
        assert address not in self.pinned
        self.pinned[address] = nbytes
        return None

    def unpin(self, address):
        del self.pinned[address]


@pytest.fixture
def fake_device(monkeypatch):
    """Make `device="cuda"` a fake device, and return it."""
    device: Device = FakeDevice()
    monkeypatch.setattr("fastfeed.device.path.open_device", lambda _: device)

    def fill(self, target, source):
        if target.numel():
            device.later(lambda: target.copy_(source))

    # Decoded pictures that lie in the slot are copied late; what is computed from them is not here.
    monkeypatch.setattr("fastfeed.device.transfer.Transfer.fill", fill)
    return device
