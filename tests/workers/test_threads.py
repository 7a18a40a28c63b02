"""Worker threads: the same loop without processes."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fastfeed.assignment import Assignment
from fastfeed.errors import OptionError
from fastfeed.loader import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Items(Dataset):
    """What a function gives, and in which thread; a lock, which cannot be pickled."""

    def __init__(self, count, make=lambda index: index):
        self.count, self.make, self.lock = count, make, threading.Lock()
        self.threads = set()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.lock:
            self.threads.add(threading.current_thread().name)
        return self.make(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def threads(dataset, batch_size, **options):
    return DataLoader(dataset, batch_size, worker_kind="thread", **{"num_workers": 3, **options})


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_those_of_processes(leak_gauge, persistent):
    """Same order, same shuffle, more than one thread at work, in this process."""
    found = []
    for kind in ("process", "thread"):
        torch.manual_seed(1)
        data = Items(50)
        loader = DataLoader(
            data, 4, shuffle=True, num_workers=3, worker_kind=kind, persistent_workers=persistent
        )
        found.append([[batch.tolist() for batch in loader] for _ in range(3)])
    assert found[0] == found[1]
    assert len(data.threads) == 3
    del loader


def test_batches_are_not_copied(leak_gauge):
    """What the data set gives reaches the loop as it is."""
    array = np.arange(5)
    loader = threads(Items(3, lambda _: array), None)
    assert all(batch is not array and np.shares_memory(batch, array) for batch in loader)
    loader = threads(Items(3, lambda _: array), 1, collate_fn=lambda batch: batch[0])
    assert all(batch is array for batch in loader)


def test_exceptions_are_raised_as_they_are(leak_gauge):
    """The very object, with the thread in a note; the loop may go on."""

    class MyError(Exception):
        def __init__(self, one, two):
            super().__init__(one, two)

    def make(index):
        if index == 3:
            raise MyError(1, 2)
        if index == 5:
            raise StopIteration
        return index

    batches = iter(threads(Items(8, make), 1))
    assert [next(batches).item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(MyError) as raised:
        next(batches)
    assert "worker thread 0" in raised.value.__notes__[0]
    assert next(batches).item() == 4
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(batches)
    assert [batch.item() for batch in batches] == [6, 7]


def test_a_batch_of_shards_goes_to_who_has_least_to_do():
    """Not to a worker that is behind, nor to one whose memory is full; else in turn."""
    given = Assignment(4, prefetch=2, in_order=True)
    for number, worker in enumerate((0, 0, 1, 1, 2, 2, 2, 3)):
        given.give(number, worker)
    under_way = [2, 0, 0, 1]
    assert given.least_busy(4, 3, under_way.__getitem__) == 1
    under_way[1] = 1
    assert given.least_busy(4, 3, under_way.__getitem__) == 3
    assert given.least_busy(2, 3, under_way.__getitem__) == 1
    for number, worker in enumerate((0, 1, 3, 3), start=8):
        given.give(number, worker)
    assert given.least_busy(4, 3, under_way.__getitem__) == 2


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_jobs_under_way_are_counted(kind):
    """A job counts from when it is sent until its result was received."""
    options = {"num_workers": 2, "worker_kind": kind, "persistent_workers": True}
    loader = DataLoader(Items(7), 1, **options)
    for _ in range(2):
        batches = iter(loader)
        list(batches)
        assert [batches._pool.under_way(worker) for worker in (0, 1)] == [0, 0]
    batches = iter(DataLoader(Items(7), 1, **options))
    assert [batches._pool.under_way(worker) for worker in (0, 1)] == [2, 2]
    assert len(list(batches)) == 7


def test_failing_start():
    """An init function that fails is raised, every time."""

    def init(worker):
        raise OSError(f"no {worker}")

    batches = iter(threads(Items(8), 1, worker_init_fn=init))
    for worker in (0, 1):
        with pytest.raises(OSError, match=f"no {worker}"):
            next(batches)


def test_iterable_in_one_thread(leak_gauge):
    """One thread reads ahead; several cannot share an iterator."""
    for persistent in (False, True):
        loader = threads(Stream(), 3, num_workers=1, persistent_workers=persistent)
        for _ in range(2):
            assert [b.tolist() for b in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        del loader
    with pytest.raises(OptionError, match="one iterator"):
        iter(threads(Stream(), 3))


def test_timeout_and_leaving(leak_gauge):
    """A thread that hangs is told of in time, and does not hold the trainer up."""
    gate = threading.Event()
    batches = iter(threads(Items(9, lambda i: gate.wait() if i == 1 else i), 1, timeout=0.2))
    next(batches)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2"):
        next(batches)
    gate.set()
    del batches


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_resume(workers):
    """A checkpoint of threads is one of processes."""
    torch.manual_seed(2)
    loader = threads(Items(30), 4, shuffle=True, num_workers=4)
    batches = iter(loader)
    found = [next(batches).tolist() for _ in range(3)]
    state = loader.state_dict()
    whole = found + [batch.tolist() for batch in batches]
    loader = DataLoader(Items(30), 4, shuffle=True, num_workers=workers)
    loader.load_state_dict(state)
    if workers == 0:
        assert found + [batch.tolist() for batch in loader] == whole
    else:
        loader = threads(Items(30), 4, shuffle=True, num_workers=workers)
        loader.load_state_dict(state)
        assert found + [batch.tolist() for batch in loader] == whole


@pytest.mark.parametrize(
    "options",
    [
        {"worker_kind": "fibre"},
        {"worker_kind": "thread", "num_workers": 1, "multiprocessing_context": "fork"},
        {"worker_kind": "thread", "num_workers": 1, "restart_workers": 1},
        {"worker_kind": "thread"},
    ],
)
def test_wrong_options(options):
    """What threads cannot do is said when the loader is made."""
    with pytest.raises(OptionError, match=r"worker_kind|threads"):
        DataLoader(Items(3), **options)


def test_a_fork_may_not_use_the_threads():
    """In a forked child the threads are not there: an error, not a wait for ever."""
    batches = iter(threads(Items(9), 1))
    next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(9):
                next(batches)
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    del batches


def test_one_epoch_that_cannot_begin_does_not_spoil_the_next():
    """As with worker processes."""

    class Moody(IterableDataset):
        calls = 0

        def __iter__(self):
            self.calls += 1
            if self.calls == 2:
                raise ValueError("not now")
            return iter(range(3))

    loader = threads(Moody(), 3, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 1
    with pytest.raises(ValueError, match="not now"):
        list(loader)
    assert len(list(loader)) == 1


def test_no_thread_is_left_if_not_all_can_start(monkeypatch, leak_gauge):
    """A limit of the system: the error is raised, those that began end."""
    start = threading.Thread.start
    begun = []

    def limited(thread):
        if thread.name.startswith("fastfeed") and len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="new thread"):
        iter(threads(Items(9), 1))
    monkeypatch.undo()
    for thread in begun:
        thread.join()


def test_persistent_threads_in_a_fork_are_started_anew():
    """The child's loader makes an iterator of its own."""
    loader = threads(Items(9), 3, persistent_workers=True)
    whole = [batch.tolist() for batch in loader]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if [batch.tolist() for batch in loader] == whole else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del loader
