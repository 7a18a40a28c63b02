"""A loader that has measured what a test says, and a small real one."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from fastfeed.loader import DataLoader
from fastfeed.stats import Delivery, StageTimes, Stats


class FakeLoader:
    """Counts what it is told that it delivered."""

    def __init__(self):
        self.collector = Stats()
        self.num_workers = self.workers_in_use = 2
        self._number = 0

    def stats(self):
        return self.collector.snapshot()

    def deliver(self, *, asked=None, wait=0.25, worker=None, stage=False, **more):
        """Deliver a batch; one comes a second, from two workers in turn."""
        number, self._number = self._number, self._number + 1
        asked = float(number) if asked is None else asked
        began = asked - 1.0
        given = {
            "samples": 4,
            "nbytes": 100,
            "copied": False,
            "busy_s": 0.5,
            "times": (began, 0.1, 0.2, 0.05),
            "stage": StageTimes(began + 0.5, 0.1, 0.01, 0.02, 0.03) if stage else None,
            **more,
        }
        worker = number % 2 if worker is None else worker
        self.collector.delivered(Delivery(asked, asked + wait, number, worker=worker, **given))


class Numbers(Dataset):
    """The index of each sample."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.fixture
def fake_loader():
    """A loader without workers, samples or time."""
    return FakeLoader()


@pytest.fixture
def small_loader():
    """A function that makes a loader of eight batches."""

    def make(**options):
        return DataLoader(Numbers(), batch_size=8, **options)

    return make
