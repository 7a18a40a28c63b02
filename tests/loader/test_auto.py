"""num_workers=AUTO: how many workers get jobs changes while the loop runs, the batches never do."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastfeed as ff
from fastfeed.errors import WorkerError
from fastfeed.options import AutoWorkers
from fastfeed.tuner.decision import Decision
from fastfeed.workers import WorkerPool
from fastfeed.workforce import Workforce

# The machine that tests may have fewer cores than the workers that are asked for here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Scripted:
    """A tuner that sets one number after the other, one a window."""

    def __init__(self, numbers):
        self._numbers = list(numbers)
        self.workers = self._numbers.pop(0)
        self.decisions = []
        self.windows = []

    def __getstate__(self):
        return {name: copy.copy(value) for name, value in self.__dict__.items()}

    def observe(self, window):
        self.windows.append(window)
        if self._numbers:
            was, self.workers = self.workers, self._numbers.pop(0)
            self.decisions.append(Decision(len(self.windows), was, self.workers, "the script"))


class Squares(torch.utils.data.Dataset):
    """Samples that say which they are."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.tensor([index, index * index])


def loader_with(numbers, monkeypatch, *, most=3, **more):
    """Return a loader of `most` workers whose number in use follows a script, a batch a window."""
    monkeypatch.setattr("fastfeed.workforce._WINDOW_S", 0.0)
    monkeypatch.setattr("fastfeed.workforce._WINDOW_STOCKS", 0)
    monkeypatch.setattr("fastfeed.loader.resolve_workers", lambda *_, **__: AutoWorkers(most))
    loader = ff.DataLoader(Squares(), batch_size=4, num_workers=ff.AUTO, **more)
    loader._workforce = Workforce(most, fixed=False)
    loader._workforce._tuner = Scripted(numbers)
    return loader


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=60), st.integers(1, 3))
def test_any_changes_give_the_same_batches(numbers, prefetch):
    """Whatever number is in use when, every batch comes once and in its place."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        loader = loader_with(numbers, monkeypatch, prefetch_factor=prefetch)
        for _ in range(2):
            seen = torch.cat([batch[:, 0] for batch in loader])
            assert seen.tolist() == list(range(400))


def test_jobs_under_way_follow_the_number(monkeypatch):
    """Jobs under way are never more than the workers in use had when they were given out."""
    loader = loader_with([3, 1, 1, 1, 1, 1, 1, 1, 2, 3], monkeypatch, prefetch_factor=2)
    iterator = iter(loader)
    under_way = []
    for _ in range(12):
        next(iterator)
        under_way.append(len(iterator._given))
    assert under_way[0] == 6
    assert 2 in under_way
    assert under_way[-1] == 6
    assert loader.report().count("in use") == 0
    assert [d.now for d in loader.tuning][:2] == [1, 1]
    del iterator


def test_state_does_not_depend_on_the_number(monkeypatch):
    """A checkpoint taken while the number changes goes on where it was."""
    loader = loader_with([3, 1, 2, 3, 1], monkeypatch, shuffle=True)
    iterator = iter(loader)
    seen = [next(iterator)[:, 0] for _ in range(10)]
    state = loader.state_dict()
    rest = torch.cat(list(iterator))[:, 0]
    again = loader_with([2, 1, 3], monkeypatch, shuffle=True)
    again.load_state_dict(state)
    assert torch.equal(torch.cat(list(again))[:, 0], rest)
    assert sorted([*torch.cat(seen).tolist(), *rest.tolist()]) == list(range(400))


def test_the_report_says_how_to_pin(monkeypatch):
    """The report names the number in use and what to write to keep it."""
    loader = loader_with([3, 2], monkeypatch)
    list(loader)
    assert "2 of 3 workers in use (num_workers=2 pins that)" in loader.report()


def test_a_given_number_is_kept():
    """A number that the user gives is never changed."""
    loader = ff.DataLoader(Squares(), batch_size=4, num_workers=2)
    list(loader)
    assert loader.tuning == ()
    assert not loader._workforce.is_tuned


class Stream(torch.utils.data.IterableDataset):
    """Each worker has its own numbers."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return iter(range(worker.id, 40, worker.num_workers))


def test_iterable_data_keeps_all_workers():
    """Workers that each have a part of the data are all in use."""
    loader = ff.DataLoader(Stream(), batch_size=4, num_workers=AutoWorkers(2))
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(40))
    assert not loader._workforce.is_tuned


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_workers_added_later_make_the_same_batches(kind, monkeypatch):
    """Workers that are started while the loop runs, and in the next epoch, change no batch."""
    loader = loader_with([2], monkeypatch, most=2, worker_kind=kind, shuffle=True)
    loader._workforce = Workforce(2, fixed=False, grows=True)
    loader._workforce._tuner = Scripted([2, 2, 5, 5, 5, 5, 3, 6])
    for _ in range(3):
        epoch = iter(loader)
        used = set()
        seen = []
        for batch in epoch:
            seen.append(batch[:, 0])
            used.add(loader.workers_in_use)
        assert sorted(torch.cat(seen).tolist()) == list(range(400))
    assert used == {6}
    assert "6 of 16 workers in use (num_workers=6 pins that)" in loader.report()


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_two_iterators_each_have_their_own_workers(kind, monkeypatch):
    """One that grows has no effect on another, and the next begins where the last one stands."""
    loader = loader_with([2], monkeypatch, most=2, worker_kind=kind)
    loader._workforce = Workforce(2, fixed=False, grows=True)
    loader._workforce._tuner = Scripted([2])
    first = iter(loader)
    second = iter(loader)
    first._workforce._tuner = Scripted([2, 5])
    for iterator in (first, second):
        assert torch.cat([batch[:, 0] for batch in iterator]).tolist() == list(range(400))
    assert first._workforce.in_use == 5
    assert second._workforce.in_use == loader.workers_in_use == 2


def test_an_iterator_begins_with_what_the_one_before_found(monkeypatch):
    """The number of the last epoch is that of the next, and its changes are told as well."""
    loader = loader_with([2, 3, 1], monkeypatch)
    next(iter(loader))
    list(loader)
    before = loader.tuning
    next(iter(loader))
    assert loader.workers_in_use == 1
    assert loader.tuning == before


def test_workers_that_stay_are_one_iterators(monkeypatch):
    """Asked for a second iterator, a loader whose workers stay begins anew with the one it has."""
    loader = loader_with([2], monkeypatch, most=2, persistent_workers=True)
    loader._workforce = Workforce(2, fixed=False, grows=True)
    loader._workforce._tuner = Scripted([2, 5])
    first = iter(loader)
    for _ in range(30):
        next(first)
    assert iter(loader) is first
    assert torch.cat([batch[:, 0] for batch in first]).tolist() == list(range(400))
    assert loader.workers_in_use == first._workforce.in_use
    del loader._iterator


def test_workers_added_later_know_the_epoch(monkeypatch):
    """One that is started in the second epoch of workers that stay begins in that epoch."""
    loader = loader_with([2], monkeypatch, most=2, persistent_workers=True)
    loader._workforce = Workforce(2, fixed=False, grows=True)
    loader._workforce._tuner = Scripted([2])
    list(loader)
    loader._workforce._tuner = Scripted([2, 4])
    for _ in range(2):
        assert torch.cat([batch[:, 0] for batch in loader]).tolist() == list(range(400))
    assert loader._iterator._pool.employ(4) == 4
    del loader._iterator


def test_workers_without_room_are_not_waited_for(monkeypatch):
    """Without room for another worker the loop goes on with those there are."""
    monkeypatch.setattr("fastfeed.workers.room_for", lambda _pid: 1)
    loader = loader_with([2], monkeypatch, most=2)
    loader._workforce = Workforce(2, fixed=False, grows=True)
    loader._workforce._tuner = Scripted([2, 5])
    assert torch.cat([batch[:, 0] for batch in loader]).tolist() == list(range(400))
    assert loader._workforce._tuner.most in {2, 3}  # two if they compute all the time
    assert loader.workers_in_use <= 3


def test_a_worker_that_fails_to_start_is_the_last(monkeypatch, caplog):
    """Out of processes or descriptors the loop goes on with the workers there are, and says so."""
    start = WorkerPool._make

    def make(pool, number, **more):
        if number >= 2:
            raise BlockingIOError(11, "no more processes")
        return start(pool, number, **more)

    monkeypatch.setattr(WorkerPool, "_make", make)
    loader = loader_with([2], monkeypatch, most=2)
    loader._workforce = Workforce(2, fixed=False, grows=True)
    loader._workforce._tuner = Scripted([2, 5])
    assert torch.cat([batch[:, 0] for batch in loader]).tolist() == list(range(400))
    assert loader._workforce._tuner.most == 2
    assert caplog.text.count("no more than 2 workers can be started") == 1


class Kept(Squares):
    """Squares with a state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_data_with_a_state_gets_no_more_workers():
    """Workers that each keep a state of their own are those that a checkpoint knows."""
    loader = ff.DataLoader(Kept(), batch_size=4, num_workers=AutoWorkers(2))
    list(loader)
    assert loader._workforce.is_tuned
    assert loader._workforce.most == 2


def test_ended_workers_are_no_hands(monkeypatch):
    """Workers that have ended are not looked at, and no more of them are started."""
    iterator = iter(loader_with([2], monkeypatch, most=2))
    next(iterator)
    assert len(iterator._pool.tasks(2)) >= 2
    iterator._pool.close()
    assert iterator._pool.tasks(2) == []
    with pytest.raises(WorkerError):
        iterator._pool.employ(3)


@pytest.mark.parametrize(("workers", "times"), [(9, 1), (ff.AUTO, 0)])
def test_too_many_workers_are_said_once(monkeypatch, workers, times):
    """Torch warns when the loader is made, not again with every epoch; of our number never."""
    monkeypatch.setattr("torch._utils.cpu_count", lambda: 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = ff.DataLoader(Squares(), batch_size=4, num_workers=workers, worker_kind="thread")
        for _ in range(2):
            next(iter(loader))
    assert sum("will create" in str(one.message) for one in caught) == times
    assert "AUTO(" not in f"{loader.num_workers!r} {loader.tuning} {loader.report()}"
