"""Workers that die and are replaced: no batch is lost, none comes twice."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fastfeed.errors import WorkerError
from fastfeed.loader import DataLoader


class Once:
    """Dies at some item the first time that any worker comes to it; files remember that."""

    def __init__(self, folder, at, how=None):
        self.folder, self.at = str(folder), set(at)
        self.how = how or (lambda: os.kill(os.getpid(), signal.SIGKILL))

    def come_to(self, item):
        if item not in self.at:
            return
        try:
            os.close(os.open(f"{self.folder}/{item}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.how()


class Map(Dataset):
    def __init__(self, once, count=40):
        self.once, self.count = once, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.once.come_to(index)
        return torch.full((2000,), index)


class Stream(IterableDataset):
    def __init__(self, once, count=40):
        self.once, self.count = once, count

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for item in range(worker, self.count, workers):
            self.once.come_to(item)
            yield torch.full((2000,), item)


class Counting(Stream):
    """With a state, and a count of how often an item was made."""

    def __init__(self, once, count=40):
        super().__init__(once, count)
        self.given = 0

    def __iter__(self):
        mine = range(get_worker_info().id, self.count, get_worker_info().num_workers)
        while self.given < len(mine):
            item = mine[self.given]
            self.once.come_to(item)
            self.given += 1
            yield torch.full((2000,), item)
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def items(loader):
    return [batch[:, 0].tolist() for batch in loader]


@pytest.mark.parametrize("at", [[0], [7], [7, 8, 21], [39]])
@pytest.mark.parametrize("kind", [Map, Stream, Counting])
def test_c30_dead_workers_are_replaced(tmp_path, kind, at, leak_gauge, caplog):
    """The batches are those of a run without deaths, and each death is told."""
    whole = items(DataLoader(kind(Once(tmp_path, [])), 2, num_workers=2))
    loader = DataLoader(kind(Once(tmp_path, at)), 2, num_workers=2, restart_workers=3)
    assert items(loader) == whole
    told = [record.message for record in caplog.records if "SIGKILL" in record.message]
    assert len(told) == len(at)
    assert all("another one takes its place" in text.lower() for text in told)


@pytest.mark.parametrize("kind", [Map, Stream])
def test_persistent_workers_are_replaced_in_later_epochs(tmp_path, kind, leak_gauge):
    """The new worker begins in the epoch that is under way."""
    loader = DataLoader(
        kind(Once(tmp_path, [])), 2, num_workers=2, restart_workers=1, persistent_workers=True
    )
    whole = items(loader)
    pids = [one.process.pid for one in loader._iterator._pool._workers]
    batches = iter(loader)
    found = [next(batches)[:, 0].tolist() for _ in range(3)]
    os.kill(pids[1], signal.SIGKILL)
    found += [batch[:, 0].tolist() for batch in batches]
    assert found == whole
    assert items(loader) == whole


def test_c30_more_deaths_than_restarts_are_an_error(tmp_path, leak_gauge):
    """A batch that always kills its worker is named when the restarts are used up."""

    class Always(Once):
        def come_to(self, item):
            if item in self.at:
                self.how()

    loader = DataLoader(
        Map(Always(tmp_path, [11], lambda: os._exit(9))), 2, num_workers=2, restart_workers=2
    )
    with pytest.raises(WorkerError, match=r"exit code 9 while it made batch 5 of samples \[10, 11"):
        items(loader)


def test_batches_of_the_dead_stay_valid(tmp_path, leak_gauge):
    """What the loop keeps lies in the dead worker's memory, or was copied out of it."""
    loader = DataLoader(
        Map(Once(tmp_path, [4, 9, 14, 21])), 1, num_workers=2, restart_workers=4, prefetch_factor=4
    )
    kept = list(loader)
    assert [batch[0, 0].item() for batch in kept] == list(range(40))
    assert all((batch == batch[0, 0]).all() for batch in kept)


def test_a_checkpoint_after_a_death_is_right(tmp_path):
    """What was delivered counts, whoever made it."""
    loader = DataLoader(Stream(Once(tmp_path, [6])), 2, num_workers=2, restart_workers=1)
    whole = items(DataLoader(Stream(Once(tmp_path, [])), 2, num_workers=2))
    batches = iter(loader)
    found = [next(batches)[:, 0].tolist() for _ in range(7)]
    state = loader.state_dict()
    del batches
    loader = DataLoader(Stream(Once(tmp_path, [])), 2, num_workers=2)
    loader.load_state_dict(state)
    assert found + items(loader) == whole


@pytest.mark.parametrize("number", [-1, 1.5, "2"])
def test_wrong_numbers(number):
    """An option of ours that makes no sense is refused."""
    with pytest.raises(ValueError, match="restart_workers"):
        DataLoader(range(3), restart_workers=number)


@pytest.mark.parametrize("at", [0, 12])
def test_stateful_data_is_whole_after_a_death_in_a_later_epoch(tmp_path, at, leak_gauge):
    """The new worker begins where the epoch began, not where the last one ended."""
    once = Once(tmp_path, [])
    loader = DataLoader(
        Counting(once), 4, num_workers=1, restart_workers=1, persistent_workers=True
    )
    whole = items(loader)
    batches = iter(loader)
    found = [next(batches)[:, 0].tolist() for _ in range(at // 4)]
    os.kill(loader._iterator._pool._workers[0].process.pid, signal.SIGKILL)
    found += [batch[:, 0].tolist() for batch in batches]
    assert found == whole
    assert items(loader) == whole


def test_a_death_after_a_resume_into_persistent_workers(tmp_path, leak_gauge):
    """Workers that were started anew know in which epoch they are."""
    loader = DataLoader(
        Map(Once(tmp_path, [])), 2, num_workers=2, restart_workers=1, persistent_workers=True
    )
    whole = items(loader)
    state = loader.state_dict()
    loader.load_state_dict(state)
    batches = iter(loader)
    found = [next(batches)[:, 0].tolist()]
    os.kill(loader._iterator._pool._workers[1].process.pid, signal.SIGKILL)
    assert found + [batch[:, 0].tolist() for batch in batches] == whole


def test_a_failing_restart_ends_the_iterator(tmp_path, monkeypatch, leak_gauge):
    """No descriptors, say: the error is raised, and the next call does not wait for ever."""
    loader = DataLoader(Map(Once(tmp_path, [6])), 1, num_workers=2, restart_workers=1)
    batches = iter(loader)
    monkeypatch.setattr(
        "fastfeed.workers.WorkerProcess", lambda *_: (_ for _ in ()).throw(OSError(24, "too many"))
    )
    with pytest.raises(OSError, match="too many"):
        for _ in range(40):
            next(batches)
    with pytest.raises(WorkerError, match="ended"):
        next(batches)


def test_a_death_while_an_epoch_begins(tmp_path, leak_gauge):
    """The worker that was to say how it begins is gone; the one in its place begins anyway."""

    class Dying(Counting):
        deaths = 0

        def state_dict(self):
            if self.given == 0 and self.deaths:
                self.once.come_to(100)
            Dying.deaths = 1
            return super().state_dict()

    loader = DataLoader(
        Dying(Once(tmp_path, [100])), 4, num_workers=1, restart_workers=1, persistent_workers=True
    )
    whole = items(loader)
    assert items(loader) == whole
    assert items(loader) == whole
    assert (tmp_path / "100").exists()
