"""C61, C62: loops over iterable data that are cut and resumed, by whichever state the data have."""

from __future__ import annotations

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from fastfeed.errors import OptionError
from fastfeed.loader import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Once in a process, if it has met a sparse tensor.
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants"),
]


class Part(IterableDataset):
    """Each worker has its own numbers, of uneven count; no state."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        yield from range(worker, self.count - 3 * worker, workers)


class Counting(Part):
    """The same, with a state on the data set."""

    def __init__(self, count):
        super().__init__(count)
        self.given = 0
        self.asked = 0

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        mine = range(worker, self.count - 3 * worker, workers)
        while self.given < len(mine):
            self.given += 1
            yield mine[self.given - 1]
        self.given = 0

    def state_dict(self):
        self.asked += 1
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Starting(Part):
    """The other usual way: what is loaded is where the next iteration starts, once."""

    def __init__(self, count):
        super().__init__(count)
        self.position = self.start = 0

    def __iter__(self):
        mine = list(super().__iter__())
        start, self.start = self.start, 0
        for self.position in range(start + 1, len(mine) + 1):
            yield mine[self.position - 1]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.start = self.position = state["position"]


class Walk:
    """An iterator that keeps its own state."""

    def __init__(self, numbers):
        self.numbers, self.at = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Walking(Part):
    def __iter__(self):
        return Walk(list(super().__iter__()))


@pytest.mark.parametrize("count", [30, 31])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}],
    ids=str,
)
@pytest.mark.parametrize("data", [Part, Counting, Starting, Walking])
def test_c61_between_epochs_of_iterable_data(golden, travelled, data, options, count):
    """What is saved at the end of an epoch begins the next one, not the end of the last."""

    def make():
        return DataLoader(data(count), 3, **options)

    whole = golden(make)
    loader = make()
    assert [batch.tolist() for batch in loader] == whole[0]
    state = travelled(loader.state_dict())
    loader = make()
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole[1]
    assert [batch.tolist() for batch in loader] == whole[2]


@pytest.mark.parametrize("every", [1, 3])
def test_c61_after_an_epoch_that_was_left(travelled, every):
    """Persistent workers have gone on meanwhile; the new epoch counts from where they begin it."""

    def make():
        return DataLoader(
            Counting(30), 3, num_workers=1, persistent_workers=True, snapshot_every_n_steps=every
        )

    loader = make()
    next(iter(loader))
    batches = iter(loader)
    first = next(batches).tolist()
    state = travelled(loader.state_dict())
    rest = [batch.tolist() for batch in batches]
    loader = make()
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == rest
    assert first not in rest


def test_c61_whose_turn_it_is_comes_with_the_state():
    """Saved right after a resume, before any batch."""
    loader = DataLoader(Part(31), 3, num_workers=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    loader = DataLoader(Part(31), 3, num_workers=2)
    loader.load_state_dict(state)
    iter(loader)
    state = loader.state_dict()
    loader = DataLoader(Part(31), 3, num_workers=2)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == rest


def test_c61_a_worker_that_ends_early_keeps_the_state_small():
    """Jobs that it was given never come; they are not counted for ever."""

    class Uneven(IterableDataset):
        def __iter__(self):
            return iter(range(2 if get_worker_info().id else 600))

    loader = DataLoader(Uneven(), 1, num_workers=2)
    batches = iter(loader)
    for _ in range(500):
        next(batches)
    state = loader.state_dict()
    assert state["delivered"] == 500
    assert state["ahead"] == ()
    loader = DataLoader(Uneven(), 1, num_workers=2)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in batches]


def test_a_loader_lets_go_of_the_data_sets_iterator():
    """Leaving the loop ends a generator at once, as with torch's loader."""
    ended = []

    class Closing(IterableDataset):
        def __iter__(self):
            try:
                yield from range(10)
            finally:
                ended.append(True)

    loader = DataLoader(Closing(), 2)
    for _ in loader:
        break
    assert ended == [True]
    assert loader.state_dict()["delivered"] == 1


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)])
@pytest.mark.parametrize("data", [Part, Counting, Starting, Walking])
def test_c61_iterable(golden, joined, data, workers, persistent, every):
    """Iterable data sets: by their own state, by their iterator's, or made again."""

    def make():
        return DataLoader(
            data(31),
            3,
            num_workers=workers,
            snapshot_every_n_steps=every,
            persistent_workers=persistent,
        )

    whole = golden(make)
    for cuts in ([1], [5], [2, 3, 6], [len(whole[0])], [len(whole[0]) + 2]):
        assert joined([make], cuts) == whole, cuts


def test_c61_a_state_is_asked_for_as_seldom_as_wanted():
    """`snapshot_every_n_steps` is what a costly state is paid for."""
    data = Counting(30)
    list(DataLoader(data, 3, snapshot_every_n_steps=4))
    assert data.asked == 0  # without workers it is asked for when `state_dict` is called


def test_c62_iterable_data_needs_as_many_workers():
    """Each worker has its own part, so their number cannot change."""
    loader = DataLoader(Part(30), 3, num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(OptionError, match="2 workers"):
        DataLoader(Part(30), 3, num_workers=3).load_state_dict(state)
