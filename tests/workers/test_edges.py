"""Rare moments of a pool: deaths between epochs, cut messages, stopped workers, native code."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
import weakref

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fastfeed.errors import WorkerError
from fastfeed.loader import DataLoader
from fastfeed.slots.lease import Lender
from fastfeed.slots.region import Region


class Numbers(Dataset):
    """Forty of them."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((100,), index)


class Stream(IterableDataset):
    """The same, one after the other."""

    def __iter__(self):
        return iter(range(5))


class Cut:
    """A channel whose next message is interrupted."""

    def __init__(self, channel):
        self._channel = channel

    def __getattr__(self, name):
        return getattr(self._channel, name)

    def take(self):
        """Be cut by Ctrl-C."""
        raise KeyboardInterrupt


def persistent():
    return DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)


def check(batches):
    assert torch.cat(batches)[:, 0].tolist() == list(range(40))


def test_c30_worker_killed_between_epochs(leak_gauge):
    """The epoch that begins with a dead worker says so; the one after has new workers."""
    loader = persistent()
    check(list(loader))
    process = loader._iterator._pool._workers[1].process
    os.kill(process.pid, signal.SIGKILL)
    process.join(5)
    with pytest.raises(WorkerError, match=r"worker 1 .* was killed by SIGKILL"):
        list(loader)
    check(list(loader))


def test_c38_interrupted_message_ends_the_pool(leak_gauge):
    """What follows a message that Ctrl-C cut means nothing: the next epoch has new workers."""
    loader = persistent()
    batches = iter(loader)
    pool = batches._pool
    for worker in pool._workers:
        worker.channel = Cut(worker.channel)
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert pool.closed
    check(list(loader))


def test_a_replaced_pool_is_let_go_of():
    """After a death nothing holds on to the workers that were."""
    loader = persistent()
    pool = weakref.ref(iter(loader)._pool)
    pool().close()
    check(list(loader))
    assert pool() is None


def test_ended_workers_leave_no_jobs_behind():
    """Jobs that an iterable data set's worker never does are struck off, epoch after epoch."""
    loader = DataLoader(
        Stream(), batch_size=2, num_workers=2, persistent_workers=True, prefetch_factor=8
    )
    for _ in range(3):
        assert len(list(loader)) == 6
        assert [len(worker.jobs) for worker in loader._iterator._pool._workers] == [0, 0]


def test_c32_closing_does_not_wait_for_a_stopped_worker(leak_gauge):
    """A worker that reads nothing, with its channel full, is killed in good time."""
    batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=1))
    next(batches)
    worker = batches._pool._workers[0]
    os.kill(worker.process.pid, signal.SIGSTOP)
    descriptor = worker.channel.fileno()
    os.set_blocking(descriptor, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(descriptor, bytes(1 << 16))
    os.set_blocking(descriptor, True)
    started = time.monotonic()
    batches._pool.close()
    assert time.monotonic() - started < 4
    del worker, batches


NATIVE = """
import ctypes, os, time
from fastfeed.loader import DataLoader

class Native:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        print(os.getpid(), flush=True)
        ctypes.PyDLL(None).sleep(60)  # holds the interpreter's lock
        return index

for batch in DataLoader(Native(), num_workers=2):
    pass
"""


def test_c37_workers_inside_native_code_end_with_the_trainer():
    """Both of two workers that hold their interpreters' locks are gone with a killed trainer."""
    with subprocess.Popen(
        [sys.executable, "-c", NATIVE], stdout=subprocess.PIPE, text=True
    ) as trainer:
        pids = [int(trainer.stdout.readline()) for _ in range(2)]
        watches = [os.pidfd_open(pid) for pid in pids]
        trainer.kill()
        trainer.wait(10)
    outlived = []
    for watch in watches:
        if not select.select([watch], [], [], 5)[0]:
            outlived.append(watch)
            signal.pidfd_send_signal(watch, signal.SIGKILL)
        os.close(watch)
    assert not outlived


def test_c49_a_forked_child_keeps_its_batch(leak_gauge):
    """A batch handed to a forked process stays as it was until that process ends."""
    fork = multiprocessing.get_context("fork")
    go, seen = fork.Event(), fork.SimpleQueue()

    def look(batch):
        go.wait(30)
        seen.put(batch.tolist())

    children, expected = [], []
    loader = DataLoader(list(range(400)), batch_size=4, num_workers=1)
    for number, batch in enumerate(loader):
        if number in {1, 5}:
            expected.append(batch.tolist())
            child = fork.Process(target=look, args=(batch,))
            child.start()
            children.append(child)
    go.set()
    found = sorted(seen.get() for _ in children)
    for child in children:
        child.join()
        child.close()
    seen.close()
    assert found == sorted(expected)


def test_memory_comes_back_when_a_fork_has_ended():
    """What a fork held is lent again once the fork is gone, so forks cost no memory for long."""
    region = Region(1 << 20)
    lender = Lender(region)
    lease = lender.open([(0, 4096)])
    array = lease.array((16,), "u1", 0)
    lease.seal()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    os.close(hold)
    del array
    assert lender.returned() == []
    assert lender.lends()
    os.close(release)
    os.waitpid(child, 0)
    assert lender.returned() == [[(0, 4096)]]
    assert not lender.lends()
    region.close_descriptor()
