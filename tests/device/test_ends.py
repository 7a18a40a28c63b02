"""Ends of workers, threads and iterators with a device: said once, rightly, with nothing lost."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from itertools import islice

import pytest

import fastfeed as ff
from fastfeed.device import pool as device_pool
from fastfeed.device.intake import AHEAD
from fastfeed.device.pinning import Pinner
from fastfeed.device.stage import Stage
from fastfeed.errors import DeviceError, WorkerError
from fastfeed.workers import WorkerPool

KINDS = [{"num_workers": 1}, {"num_workers": 1, "worker_kind": "thread"}]


def test_batches_before_a_death_come_while_the_others_are_stopped(
    fake_device, beside, monkeypatch, samples, first_of
):
    """Stopping workers takes a while; who asks then gets what was made, and then the death."""
    ended, go_on = threading.Event(), threading.Event()
    close, await_staged = WorkerPool.close, device_pool.DevicePool.await_staged

    def asks(self, arrival):
        go_on.set()
        await_staged(self, arrival)

    def slow_close(self, **grace):
        close(self, **grace)
        ended.set()
        assert go_on.wait(60)

    monkeypatch.setattr(WorkerPool, "close", slow_close)
    iterator = iter(ff.DataLoader(samples(deadly=21), batch_size=4, num_workers=1, device="cuda"))
    seen = first_of(next(iterator) for _ in range(4))
    assert ended.wait(60)
    monkeypatch.setattr(device_pool.DevicePool, "await_staged", asks)
    try:
        seen += first_of([next(iterator)])
    finally:
        go_on.set()
    assert seen == [0, 4, 8, 12, 16]
    with pytest.raises(WorkerError, match="SIGKILL"):
        next(iterator)


def test_a_death_between_two_epochs_is_raised_once(fake_device, is_beside, samples, first_of):
    """A worker that dies after an epoch was left early is an error of the next, and no more."""
    loader = ff.DataLoader(
        samples(), batch_size=4, num_workers=1, device="cuda", persistent_workers=True
    )
    iterator = iter(loader)
    next(iterator)
    pool = iterator._pool
    worker = pool._inner._workers[0].process
    os.kill(worker.pid, signal.SIGKILL)
    if is_beside:
        intake = pool._intake
        with intake.change:
            assert intake.change.wait_for(lambda: intake.failure is not None, 60)
    else:
        worker.join(60)
    with pytest.raises(WorkerError, match="SIGKILL"):
        list(loader)
    assert first_of(loader) == list(range(0, 64, 4))


@pytest.mark.parametrize("workers", KINDS, ids=["processes", "threads"])
def test_a_pool_ends_with_its_iterator(fake_device, is_beside, workers, samples, no_collector):
    """Nobody waits for the collector: memory of workers would stay pinned and mapped so long."""
    for length in (1, 100):
        iterator = iter(ff.DataLoader(samples(), batch_size=4, device="cuda", **workers))
        for _ in islice(iterator, length):
            pass
        pool = weakref.ref(iterator._pool)
        del iterator, _
        assert pool() is None


@pytest.mark.parametrize("workers", KINDS, ids=["processes", "threads"])
def test_a_fork_that_asks_for_a_batch_gets_an_error(
    fake_device, is_beside, workers, samples, first_of
):
    """The threads of an iterator stay behind in the parent: a child does not wait for them."""
    iterator = iter(ff.DataLoader(samples(), batch_size=4, device="cuda", **workers))
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            list(iterator)
        except WorkerError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first_of(iterator) == list(range(4, 64, 4))


@pytest.mark.parametrize("workers", KINDS, ids=["processes", "threads"])
@pytest.mark.parametrize("device", ["cuda", None])
def test_an_ended_iterator_says_so(fake_device, is_beside, workers, device, samples):
    """After its workers have ended, as at an interrupt, asking for more is an error at once."""
    iterator = iter(ff.DataLoader(samples(), batch_size=4, device=device, **workers))
    next(iterator)
    iterator._pool.close()
    with pytest.raises(WorkerError, match="have ended"):
        list(iterator)


def test_batches_that_fail_take_no_place(fake_device, beside, monkeypatch, samples, first_of):
    """However many batches fail on their way, those after them are moved ahead of the loop."""
    failing = 1 + AHEAD
    moved = threading.Semaphore(0)
    move = Stage.move

    def fails(self, batch):
        if int(batch[0, 0]) < 4 * failing:
            raise DeviceError("no memory left")
        result = move(self, batch)
        moved.release()
        return result

    monkeypatch.setattr(Stage, "move", fails)
    iterator = iter(
        ff.DataLoader(samples(), batch_size=4, num_workers=1, prefetch_factor=8, device="cuda")
    )
    for _ in range(failing):
        with pytest.raises(DeviceError, match="no memory left"):
            next(iterator)
    for _ in range(AHEAD):
        assert moved.acquire(timeout=20)
    assert first_of(iterator) == list(range(4 * failing, 64, 4))


def test_a_slot_goes_back_when_its_copy_is_done(
    fake_device, beside, monkeypatch, samples, first_of
):
    """Batches that wait on the device, or were taken, hold no memory of workers."""
    lent = []
    next_one = device_pool.DevicePool.next

    def watches(self, walk):
        if not walk.under_way:
            lent.append(sum(worker.lender.lent for worker in self._inner._workers))
        return next_one(self, walk)

    monkeypatch.setattr(device_pool.DevicePool, "next", watches)
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=1, device="cuda")
    assert first_of(loader) == list(range(0, 64, 4))
    assert set(lent) == {0}


def test_an_iterator_may_end_in_a_thread_of_its_own(fake_device, beside, monkeypatch, samples):
    """Where the garbage collector ends it, copies are done before memory is ordinary again."""
    under_way, asked, ended = [], threading.Event(), threading.Event()
    move, close, unpin = Stage.move, Pinner.close, type(fake_device).unpin
    holder = []

    def drops(self, batch):
        moved = move(self, batch)
        if int(batch[0, 0]) == 8:
            assert asked.wait(60)
            holder.clear()  # the last reference: its end begins here
        return moved

    def closes(self):
        close(self)
        ended.set()

    def unpins(self, address):
        under_way.append(self._given - self._done)
        unpin(self, address)

    monkeypatch.setattr(Stage, "move", drops)
    monkeypatch.setattr(Pinner, "close", closes)
    monkeypatch.setattr(type(fake_device), "unpin", unpins)
    before = set(threading.enumerate())
    holder.append(iter(ff.DataLoader(samples(), batch_size=4, num_workers=1, device="cuda")))
    next(holder[0])
    asked.set()
    assert ended.wait(60)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert under_way
    assert set(under_way) == {0}
    assert fake_device.pinned == {}
