"""C62: what a state is, and what it is refused for."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, Sampler, Subset

from fastfeed.errors import OptionError
from fastfeed.loader import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # Once in a process, if it has met a sparse tensor.
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants"),
]


class Odd(Sampler):
    """Draws from numpy's global generator, keeps no state: cannot be come back to."""

    def __iter__(self):
        return iter(np.random.permutation(20).tolist())

    def __len__(self):
        return 20


def test_c62_a_sampler_that_cannot_come_back_is_refused():
    """It draws from a generator that nobody knows of: no silent repetition, but an error."""
    np.random.seed(1)
    loader = DataLoader(range(20), 4, sampler=Odd())
    next(iter(loader))
    state = loader.state_dict()
    loader = DataLoader(range(20), 4, sampler=Odd())
    loader.load_state_dict(state)
    with pytest.raises(OptionError, match="same indices"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: DataLoader(range(23), 4), "samples 22"),
        (lambda: DataLoader(range(22), 5), "batch size 4"),
        (lambda: DataLoader(range(22), 4), "drop_last True"),
        (
            lambda: DataLoader(
                range(22),
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
    loader = DataLoader(range(22), 4, drop_last=True)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(OptionError, match=words):
        other().load_state_dict(state)
    other().load_state_dict(state, strict=False)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"fastfeed": 99},
        {"fastfeed": 1},
        {"fastfeed": 1, "more": 1},
        {**DataLoader(range(3)).state_dict(), "delivered": -1},
        {**DataLoader(range(3)).state_dict(), "epoch": "a"},
    ],
)
def test_what_is_no_state_is_refused(state):
    """An error that says so, not a wrong epoch."""
    with pytest.raises(OptionError, match="state"):
        DataLoader(range(3)).load_state_dict(state)


def test_a_state_is_small_and_plain():
    """A few kilobytes, however large the data."""
    loader = DataLoader(range(1_000_000), 256, shuffle=True, num_workers=2)
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    assert file.tell() < 40_000


def test_a_subset_is_no_stateful_data():
    """What a wrapped data set keeps is not looked for."""
    loader = DataLoader(Subset(range(9), range(4)), 2)
    next(iter(loader))
    assert loader.state_dict()["places"] is None
