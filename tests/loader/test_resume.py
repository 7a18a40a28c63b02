"""C61, C62: a loop that is cut, saved and resumed sees what one run would have seen."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    get_worker_info,
)

from fastfeed.errors import OptionError
from fastfeed.loader import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Once in a process, if it has met a sparse tensor.
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants"),
]


class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


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


class Odd(Sampler):
    """Draws from numpy's global generator, keeps no state: cannot be come back to."""

    def __iter__(self):
        return iter(np.random.permutation(20).tolist())

    def __len__(self):
        return 20


class Keeping(Sampler):
    """Keeps its own state, drawn from nobody's generator."""

    def __init__(self, count=20):
        self.count, self.epoch, self.at = count, 0, 0

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(self.count)
        while self.at < self.count:
            self.at += 1
            yield int(order[self.at - 1])
        self.at = 0
        self.epoch += 1

    def __len__(self):
        return self.count

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state["at"]


def travelled(state):
    """Return a state that went through a file, as checkpoints do, weights only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def flat(batch):
    return batch.tolist()


def golden(make, epochs=3):
    torch.manual_seed(3)
    loader = make()
    return [[flat(batch) for batch in loader] for _ in range(epochs)]


def joined(makes, cuts, epochs=3):
    """Return the batches of a run that is cut after so many batches, and resumed each time.

    Each part has a new loader and another state of the global generator, as a new process has.
    """
    torch.manual_seed(3)
    found, state, seen = [[]], None, 0
    makes = itertools.cycle(makes)
    for cut in [*cuts, None]:
        loader = next(makes)()
        if state is not None:
            torch.manual_seed(1000 + seen)
            loader.load_state_dict(travelled(state))
            again = loader.state_dict()
            assert repr(again) == repr(state)  # saved before a step: the same
        state = None
        while len(found) <= epochs:
            for batch in loader:
                found[-1].append(flat(batch))
                seen += 1
                if seen == cut:
                    state = loader.state_dict()
                    break
            if state is not None:
                break
            found.append([])
        if state is None:
            break
    return found[:epochs]


KINDS = {
    "random": lambda **o: DataLoader(Numbers(22), 4, shuffle=True, **o),
    "own generator": lambda **o: DataLoader(
        Numbers(22), 4, shuffle=True, generator=torch.Generator().manual_seed(5), **o
    ),
    "sampler with a generator": lambda **o: DataLoader(
        Numbers(22), 4, sampler=RandomSampler(range(22), generator=torch.Generator()), **o
    ),
    "batch sampler": lambda **o: DataLoader(
        Numbers(22), batch_sampler=BatchSampler(RandomSampler(range(22)), 4, drop_last=False), **o
    ),
    "in order": lambda **o: DataLoader(Numbers(22), 4, drop_last=True, **o),
    "sampler with a state": lambda **o: DataLoader(Numbers(22), 4, sampler=Keeping(), **o),
    "replacement": lambda **o: DataLoader(
        Numbers(22), 4, sampler=RandomSampler(range(22), replacement=True, num_samples=30), **o
    ),
}
WAYS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 3, "prefetch_factor": 1},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_c61_one_cut_anywhere(kind, options):
    """Saved after any batch, the last of an epoch included, and resumed in a new loader."""

    def make():
        return KINDS[kind](**options)

    whole = golden(make)
    per_epoch = len(whole[0])
    for cut in {1, per_epoch // 2, per_epoch - 1, per_epoch, per_epoch + 1, 2 * per_epoch}:
        assert joined([make], [cut]) == whole, cut


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_c61_between_epochs(kind, options):
    """Saved when an epoch has ended, and resumed in a new process."""

    def make():
        return KINDS[kind](**options)

    whole = golden(make)
    torch.manual_seed(3)
    found, state = [], None
    for epoch in range(3):
        loader = make()
        if state is not None:
            torch.manual_seed(500 + epoch)
            loader.load_state_dict(travelled(state))
        found.append([flat(batch) for batch in loader])
        state = loader.state_dict()
        assert state["epoch"] == epoch + 1
    assert found == whole


@pytest.mark.parametrize("count", [30, 31])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}],
    ids=str,
)
@pytest.mark.parametrize("data", [Part, Counting, Starting, Walking])
def test_c61_between_epochs_of_iterable_data(data, options, count):
    """What is saved at the end of an epoch begins the next one, not the end of the last."""

    def make():
        return DataLoader(data(count), 3, **options)

    whole = golden(make)
    loader = make()
    assert [flat(batch) for batch in loader] == whole[0]
    state = travelled(loader.state_dict())
    loader = make()
    loader.load_state_dict(state)
    assert [flat(batch) for batch in loader] == whole[1]
    assert [flat(batch) for batch in loader] == whole[2]


@pytest.mark.parametrize("every", [1, 3])
def test_c61_after_an_epoch_that_was_left(every):
    """Persistent workers have gone on meanwhile; the new epoch counts from where they begin it."""

    def make():
        return DataLoader(
            Counting(30), 3, num_workers=1, persistent_workers=True, snapshot_every_n_steps=every
        )

    loader = make()
    next(iter(loader))
    batches = iter(loader)
    first = flat(next(batches))
    state = travelled(loader.state_dict())
    rest = [flat(batch) for batch in batches]
    loader = make()
    loader.load_state_dict(state)
    assert [flat(batch) for batch in loader] == rest
    assert first not in rest


def test_c61_into_workers_that_live_on():
    """A state from before the first epoch, loaded into a loader with persistent workers."""
    torch.manual_seed(3)
    loader = KINDS["random"](num_workers=2, persistent_workers=True)
    state = loader.state_dict()
    whole = [flat(batch) for batch in loader]
    loader.load_state_dict(state)
    assert [flat(batch) for batch in loader] == whole


def test_c61_whose_turn_it_is_comes_with_the_state():
    """Saved right after a resume, before any batch."""
    loader = DataLoader(Part(31), 3, num_workers=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [flat(batch) for batch in batches]
    loader = DataLoader(Part(31), 3, num_workers=2)
    loader.load_state_dict(state)
    iter(loader)
    state = loader.state_dict()
    loader = DataLoader(Part(31), 3, num_workers=2)
    loader.load_state_dict(state)
    assert [flat(batch) for batch in loader] == rest


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
    assert [flat(batch) for batch in loader] == [flat(batch) for batch in batches]


def test_c61_a_state_is_not_lost_when_the_epoch_cannot_begin():
    """What was loaded is still there, for the next try and for an emergency's checkpoint."""
    loader = KINDS["in order"]()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [flat(batch) for batch in batches]

    class Failing(Sampler):
        fails = True

        def __len__(self):
            return 22

        def __iter__(self):
            if self.fails:
                raise OSError("no order")
            return iter(range(22))

    loader = DataLoader(Numbers(22), 4, sampler=Failing(), drop_last=True)
    loader.load_state_dict(state)
    with pytest.raises(OSError, match="no order"):
        next(iter(loader))
    Failing.fails = False
    assert loader.state_dict()["delivered"] == 1
    assert [flat(batch) for batch in loader] == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_c61_a_sampler_that_hands_out_its_own_state(workers):
    """Not a copy of it: what the prefetching changes later does not change the checkpoint."""

    class Live(Keeping):
        def __init__(self):
            self.state = {"epoch": 0, "at": 0}
            super().__init__()

        epoch = property(lambda self: self.state["epoch"], lambda self, v: self.put("epoch", v))
        at = property(lambda self: self.state["at"], lambda self, v: self.put("at", v))

        def put(self, name, value):
            self.state[name] = value

        def state_dict(self):
            return self.state

    def make():
        return DataLoader(Numbers(22), 4, sampler=Live(), num_workers=workers)

    assert joined([make], [2, 3]) == golden(make)


def test_c52_an_epoch_set_between_epochs_is_in_the_state():
    """`set_epoch` after an epoch's end counts, and is no reason to forget a state."""
    loader = KINDS["random"]()
    list(loader)
    loader.set_epoch(7)
    state = loader.state_dict()
    assert state["epoch"] == 7
    loader = KINDS["random"]()
    loader.load_state_dict(state)
    loader.set_epoch(7)
    assert repr(loader.state_dict()) == repr(state)
    loader.set_epoch(8)
    assert loader.state_dict()["epoch"] == 8


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


@pytest.mark.parametrize("kind", KINDS)
def test_c61_many_cuts_and_other_numbers_of_workers(kind):
    """C62: two and three cuts in an epoch, each part with another number of workers."""
    makes = [lambda w=w: KINDS[kind](num_workers=w) for w in (0, 3, 1, 0, 2)]
    whole = golden(makes[0])
    assert joined(makes, [1, 2, 4, 7, 12]) == whole
    assert joined(makes[1:], [3, 4, 5]) == whole


@given(cuts=st.sets(st.integers(1, 17), min_size=1, max_size=4), kind=st.sampled_from([*KINDS]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_c61_any_cuts(cuts, kind):
    """Whatever the cuts, without workers."""

    def make():
        return KINDS[kind]()

    assert joined([make], sorted(cuts)) == golden(make)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, False), (2, True)])
@pytest.mark.parametrize("data", [Part, Counting, Starting, Walking])
def test_c61_iterable(data, workers, persistent, every):
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


def test_c61_at_the_very_end():
    """After the last epoch's end the state is the next one's beginning."""
    whole = golden(KINDS["random"], epochs=2)
    torch.manual_seed(3)
    loader = KINDS["random"]()
    assert [flat(batch) for batch in loader] == whole[0]
    state = loader.state_dict()
    assert state["epoch"] == 1
    torch.manual_seed(77)
    loader = KINDS["random"](num_workers=2)
    loader.load_state_dict(state)
    assert [flat(batch) for batch in loader] == whole[1]


def test_c61_before_the_first_epoch_and_into_a_live_iterator():
    """`iter()` before `load_state_dict` does not count; the next one does."""
    whole = golden(KINDS["random"], epochs=1)[0]
    torch.manual_seed(3)
    loader = KINDS["random"]()
    begin = loader.state_dict()
    batches = iter(loader)
    next(batches)
    next(batches)
    middle = loader.state_dict()
    torch.manual_seed(4)
    loader.load_state_dict(middle)
    assert [flat(batch) for batch in loader] == whole[2:]
    loader.load_state_dict(begin)
    assert [flat(batch) for batch in loader] == whole


def test_c61_batches_in_any_order_are_each_given_once():
    """With `in_order=False` the state knows what came ahead."""

    class Waiting(Numbers):
        """Item 0 waits for item 6, which is another worker's."""

        gate = torch.multiprocessing.Event()

        def __getitem__(self, index):
            if index == 0:
                self.gate.wait()
            elif index == 6:
                self.gate.set()
            return index

    loader = DataLoader(Waiting(40), 2, num_workers=2, in_order=False)
    seen = flat(next(iter(loader)))
    state = loader.state_dict()
    assert (state["delivered"], state["ahead"]) == (0, (1,))
    loader = DataLoader(Numbers(40), 2, num_workers=2, in_order=False)
    loader.load_state_dict(state)
    for batch in loader:
        seen += flat(batch)
    assert sorted(seen) == list(range(40))


def test_c62_a_sampler_that_cannot_come_back_is_refused():
    """It draws from a generator that nobody knows of: no silent repetition, but an error."""
    np.random.seed(1)
    loader = DataLoader(Numbers(20), 4, sampler=Odd())
    next(iter(loader))
    state = loader.state_dict()
    loader = DataLoader(Numbers(20), 4, sampler=Odd())
    loader.load_state_dict(state)
    with pytest.raises(OptionError, match="same indices"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: DataLoader(Numbers(23), 4), "samples 22"),
        (lambda: DataLoader(Numbers(22), 5), "batch size 4"),
        (lambda: DataLoader(Numbers(22), 4), "drop_last True"),
        (
            lambda: DataLoader(
                Numbers(22),
                4,
                sampler=DistributedSampler(range(22), num_replicas=2, rank=0),
                drop_last=True,
            ),
            "ranks 1",
        ),
    ],
)
def test_c62_other_data_is_refused(other, words):
    """The message says what differs; `strict=False` goes on all the same."""
    loader = KINDS["in order"]()
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(OptionError, match=words):
        other().load_state_dict(state)
    other().load_state_dict(state, strict=False)


def test_c62_iterable_data_needs_as_many_workers():
    """Each worker has its own part, so their number cannot change."""
    loader = DataLoader(Part(30), 3, num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(OptionError, match="2 workers"):
        DataLoader(Part(30), 3, num_workers=3).load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"fastfeed": 99},
        {"fastfeed": 1},
        {"fastfeed": 1, "more": 1},
        {**DataLoader(Numbers(3)).state_dict(), "delivered": -1},
        {**DataLoader(Numbers(3)).state_dict(), "epoch": "a"},
    ],
)
def test_what_is_no_state_is_refused(state):
    """An error that says so, not a wrong epoch."""
    with pytest.raises(OptionError, match="state"):
        DataLoader(Numbers(3)).load_state_dict(state)


def test_distributed_sampler_goes_on_in_its_epoch():
    """`set_epoch` is part of the state."""

    def make():
        sampler = DistributedSampler(range(22), num_replicas=2, rank=1)
        return DataLoader(Numbers(22), 3, sampler=sampler)

    loader = make()
    loader.sampler.set_epoch(5)
    whole = [flat(batch) for batch in loader]
    for number, _ in enumerate(loader):
        if number == 1:
            break
    state = loader.state_dict()
    loader = make()
    loader.load_state_dict(state)
    assert [flat(batch) for batch in loader] == whole[2:]


def test_a_state_is_small_and_plain():
    """A few kilobytes, however large the data."""
    loader = DataLoader(Numbers(1_000_000), 256, shuffle=True, num_workers=2)
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    assert file.tell() < 40_000


class Remembering(Dataset):
    """A map-style data set with a state of its own."""

    def __init__(self):
        self.sum = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.sum += index
        return self.sum

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_map_style_data_with_a_state(workers):
    """Each worker's copy goes on where it was."""

    def make():
        return DataLoader(Remembering(), 2, num_workers=workers)

    assert joined([make], [1, 3], epochs=1) == golden(make, epochs=1)
    assert joined([make], [4], epochs=1) == golden(make, epochs=1)


def test_a_subset_is_no_stateful_data():
    """What a wrapped data set keeps is not looked for."""
    loader = DataLoader(Subset(Numbers(9), range(4)), 2)
    next(iter(loader))
    assert loader.state_dict()["places"] is None
