"""Small jobs with one bottleneck each, run for real, and the verdict they were built for.

They are short and the machine may be busy with other things, so bottlenecks are large and only the
first verdict is looked at.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

import fastfeed as ff
from fastfeed.diagnosis.run import diagnose

pytestmark = [
    pytest.mark.usefixtures("leak_gauge"),
    # On one core two workers are more than torch suggests.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

# The sleep is the disk: a process of its own that gives a page every two milliseconds. The test
# itself waits for nothing but the bytes.
PIECE = 4096  # a pipe of one page holds no more, so nothing comes early
SLOW_DISK = """
import os, sys, time
pipe = int(sys.argv[1])
while True:
    time.sleep(0.002)
    os.write(pipe, bytes(4096))
"""


def compute(seconds):
    """Keep a core busy in Python; time in which others have the core does not count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Rows(Dataset):
    """Rows that cost what `work` does, which is given the index."""

    def __init__(self, work, length=20_000):
        self.work, self.length = work, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.work(index)
        return torch.full((64,), float(index))


def light(batch):
    compute(0.002)


def first_of(loader, step, seconds=1.0):
    found = diagnose(loader, step, seconds=seconds)
    return found.verdict.name, str(found)


@pytest.fixture
def slow_disk():
    """Read from a pipe that another process fills at a given rate."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIECE)
    helper = subprocess.Popen([sys.executable, "-c", SLOW_DISK, str(writing)], pass_fds=[writing])
    os.close(writing)
    yield lambda index: os.read(reading, PIECE)
    helper.terminate()
    helper.wait()
    os.close(reading)


@pytest.mark.parametrize(
    ("kind", "workers"), [(ff.DataLoader, 2), (DataLoader, 2), (DataLoader, 0)]
)
def test_slow_storage(slow_disk, kind, workers):
    """Workers that wait for bytes are bound by storage, whoever's loader it is."""
    name, text = first_of(kind(Rows(slow_disk), batch_size=8, num_workers=workers), light)
    assert name == "storage-bound", text


class Waits:
    """A transform that waits for what never comes, as long as a request takes."""

    def __call__(self, sample):
        threading.Event().wait(0.004)
        return sample


@pytest.mark.parametrize(
    ("kind", "workers"), [(ff.DataLoader, 2), (DataLoader, 2), (DataLoader, 0)]
)
def test_code_that_waits(kind, workers):
    """A data set that waits for no data is not bound by storage, and is named."""
    rows = Rows(lambda index: select.select([], [], [], 0.004))
    name, text = first_of(kind(rows, batch_size=8, num_workers=workers), light)
    assert name == "waiting in user code", text
    assert "Rows.__getitem__ (test_jobs.py:" in text


def test_transforms_that_wait(tmp_path):
    """Reads of shards are timed, so that a wait elsewhere is the transform's."""
    with ff.ShardWriter(tmp_path / "shards") as writer:
        for number in range(400):
            writer.write({"__key__": f"{number:04}", "cls": number})
    data = ff.ShardDataset(tmp_path / "shards", {"label": ff.Int("cls")}, transform=Waits())
    name, text = first_of(ff.DataLoader(data, batch_size=8, num_workers=2), light)
    assert name == "waiting in user code", text
    assert "transform=Waits (test_jobs.py:" in text


@pytest.mark.parametrize(
    ("kind", "workers"), [(ff.DataLoader, 1), (DataLoader, 1), (DataLoader, 0)]
)
def test_slow_decode(kind, workers):
    """Workers that compute are bound by preprocessing."""
    rows = Rows(lambda index: compute(0.003))
    name, text = first_of(kind(rows, batch_size=8, num_workers=workers), light)
    assert name == "preprocessing-bound", text


def test_gil():
    """Worker threads that compute in Python are held up by one another."""
    rows = Rows(lambda index: sum(range(60_000)))
    loader = ff.DataLoader(rows, batch_size=16, num_workers=2, worker_kind="thread")
    name, text = first_of(loader, light, seconds=2.0)
    assert name == "GIL", text


def test_one_slow_worker():
    """A worker that takes longer than the others is found, and named by its number."""

    def work(index):
        if get_worker_info().id == 1:
            compute(0.004)

    loader = ff.DataLoader(Rows(work), batch_size=8, num_workers=2)
    name, text = first_of(loader, light)
    assert name == "one slow worker", text
    assert "Worker 1" in text


def test_many_tiny_operators():
    """A step of many small operators takes its time whatever the size of the batch."""

    def step(batch):
        for _ in range(500):
            batch.add_(1)

    name, text = first_of([torch.ones(64, 8) for _ in range(40)], step)
    assert name == "submission-bound", text


def test_too_small_batches():
    """A step that costs the same for two samples as for four wants more of them."""

    def step(batch):
        compute(0.01 + 0.0001 * len(batch))

    name, text = first_of([torch.ones(2, 8) for _ in range(40)], step)
    assert name == "too small batches", text


def test_garbage_collection():
    """A step that collects garbage all the time is told so."""
    name, text = first_of([torch.ones(64, 8) for _ in range(40)], lambda _: gc.collect())
    assert name == "garbage collection", text


def test_heavy_step():
    """A step that takes longer than its batch takes to make is the limit itself."""

    def step(batch):
        compute(0.0005 * len(batch))

    name, text = first_of([torch.ones(64, 8) for _ in range(40)], step)
    assert name == "GPU-bound", text
