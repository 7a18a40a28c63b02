"""C61, C62: a loop that is cut, saved and resumed sees what one run would have seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
)

from fastfeed.loader import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Once in a process, if it has met a sparse tensor.
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants"),
]


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


KINDS = {
    "random": lambda **o: DataLoader(range(22), 4, shuffle=True, **o),
    "own generator": lambda **o: DataLoader(
        range(22), 4, shuffle=True, generator=torch.Generator().manual_seed(5), **o
    ),
    "sampler with a generator": lambda **o: DataLoader(
        range(22), 4, sampler=RandomSampler(range(22), generator=torch.Generator()), **o
    ),
    "batch sampler": lambda **o: DataLoader(
        range(22), batch_sampler=BatchSampler(RandomSampler(range(22)), 4, drop_last=False), **o
    ),
    "in order": lambda **o: DataLoader(range(22), 4, drop_last=True, **o),
    "sampler with a state": lambda **o: DataLoader(range(22), 4, sampler=Keeping(), **o),
    "replacement": lambda **o: DataLoader(
        range(22), 4, sampler=RandomSampler(range(22), replacement=True, num_samples=30), **o
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
def test_c61_one_cut_anywhere(golden, joined, kind, options):
    """Saved after any batch, the last of an epoch included, and resumed in a new loader."""

    def make():
        return KINDS[kind](**options)

    whole = golden(make)
    per_epoch = len(whole[0])
    for cut in {1, per_epoch // 2, per_epoch - 1, per_epoch, per_epoch + 1, 2 * per_epoch}:
        assert joined([make], [cut]) == whole, cut


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_c61_between_epochs(golden, travelled, kind, options):
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
        found.append([batch.tolist() for batch in loader])
        state = loader.state_dict()
        assert state["epoch"] == epoch + 1
    assert found == whole


def test_c61_into_workers_that_live_on():
    """A state from before the first epoch, loaded into a loader with persistent workers."""
    torch.manual_seed(3)
    loader = KINDS["random"](num_workers=2, persistent_workers=True)
    state = loader.state_dict()
    whole = [batch.tolist() for batch in loader]
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole


def test_c61_a_state_is_not_lost_when_the_epoch_cannot_begin():
    """What was loaded is still there, for the next try and for an emergency's checkpoint."""
    loader = KINDS["in order"]()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]

    class Failing(Sampler):
        fails = True

        def __len__(self):
            return 22

        def __iter__(self):
            if self.fails:
                raise OSError("no order")
            return iter(range(22))

    loader = DataLoader(range(22), 4, sampler=Failing(), drop_last=True)
    loader.load_state_dict(state)
    with pytest.raises(OSError, match="no order"):
        next(iter(loader))
    Failing.fails = False
    assert loader.state_dict()["delivered"] == 1
    assert [batch.tolist() for batch in loader] == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_c61_a_sampler_that_hands_out_its_own_state(golden, joined, workers):
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
        return DataLoader(range(22), 4, sampler=Live(), num_workers=workers)

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


@pytest.mark.parametrize("kind", KINDS)
def test_c61_many_cuts_and_other_numbers_of_workers(golden, joined, kind):
    """C62: two and three cuts in an epoch, each part with another number of workers."""
    makes = [lambda w=w: KINDS[kind](num_workers=w) for w in (0, 3, 1, 0, 2)]
    whole = golden(makes[0])
    assert joined(makes, [1, 2, 4, 7, 12]) == whole
    assert joined(makes[1:], [3, 4, 5]) == whole


@given(cuts=st.sets(st.integers(1, 17), min_size=1, max_size=4), kind=st.sampled_from([*KINDS]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_c61_any_cuts(golden, joined, cuts, kind):
    """Whatever the cuts, without workers."""

    def make():
        return KINDS[kind]()

    assert joined([make], sorted(cuts)) == golden(make)


def test_c61_at_the_very_end(golden):
    """After the last epoch's end the state is the next one's beginning."""
    whole = golden(KINDS["random"], epochs=2)
    torch.manual_seed(3)
    loader = KINDS["random"]()
    assert [batch.tolist() for batch in loader] == whole[0]
    state = loader.state_dict()
    assert state["epoch"] == 1
    torch.manual_seed(77)
    loader = KINDS["random"](num_workers=2)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole[1]


def test_c61_before_the_first_epoch_and_into_a_live_iterator(golden):
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
    assert [batch.tolist() for batch in loader] == whole[2:]
    loader.load_state_dict(begin)
    assert [batch.tolist() for batch in loader] == whole


def test_c61_batches_in_any_order_are_each_given_once():
    """With `in_order=False` the state knows what came ahead."""

    class Waiting(Dataset):
        """Item 0 waits for item 6, which is another worker's."""

        gate = torch.multiprocessing.Event()

        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == 0:
                self.gate.wait()
            elif index == 6:
                self.gate.set()
            return index

    loader = DataLoader(Waiting(), 2, num_workers=2, in_order=False)
    seen = next(iter(loader)).tolist()
    state = loader.state_dict()
    assert (state["delivered"], state["ahead"]) == (0, (1,))
    loader = DataLoader(range(40), 2, num_workers=2, in_order=False)
    loader.load_state_dict(state)
    for batch in loader:
        seen += batch.tolist()
    assert sorted(seen) == list(range(40))


def test_distributed_sampler_goes_on_in_its_epoch():
    """`set_epoch` is part of the state."""

    def make():
        sampler = DistributedSampler(range(22), num_replicas=2, rank=1)
        return DataLoader(range(22), 3, sampler=sampler)

    loader = make()
    loader.sampler.set_epoch(5)
    whole = [batch.tolist() for batch in loader]
    for number, _ in enumerate(loader):
        if number == 1:
            break
    state = loader.state_dict()
    loader = make()
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole[2:]


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
def test_map_style_data_with_a_state(golden, joined, workers):
    """Each worker's copy goes on where it was."""

    def make():
        return DataLoader(Remembering(), 2, num_workers=workers)

    assert joined([make], [1, 3], epochs=1) == golden(make, epochs=1)
    assert joined([make], [4], epochs=1) == golden(make, epochs=1)
