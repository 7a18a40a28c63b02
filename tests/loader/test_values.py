"""Right and wrong values of torch's arguments and attributes: torch's effect, or torch's error."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as Torchs
from torch.utils.data import Dataset, IterableDataset, RandomSampler

from fastfeed.loader import DataLoader

COUNT = 13


class Drawn(Dataset):
    """A map whose items show draws of the three generators."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"index": index, "draws": (random.random(), np.random.rand(), torch.rand(2))}


class Many(Drawn):
    """A map that gives the items of a batch at once, the last one first."""

    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


class Stream(IterableDataset):
    """Some numbers and draws, without a length."""

    def __iter__(self):
        for number in range(COUNT):
            yield number, torch.rand(2)


class Sized(Stream):
    """The same with a length, which is too small."""

    def __len__(self):
        return COUNT - 4


def reseed(worker):
    """Seed the worker in another way, as some users do."""
    torch.manual_seed(1000 + worker)
    np.random.seed(worker)


def seed():
    """Seed the three generators."""
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)


GENERATOR = torch.Generator()
# The first of each one is its default.
VALUES = {
    "batch_size": [1, None, 2, 0, -1, True, 2.5, "4"],
    "shuffle": [None, False, True, 0, 1, "yes"],
    "sampler": [None, [1, 2], [], 5, iter([1]), RandomSampler(range(COUNT))],
    "batch_sampler": [None, [[1], [2, 0]], [], [1], 5],
    "num_workers": [0, 0, 0, 1, 2, True, -1, 1.5, "2", None],
    "collate_fn": [None, list, 5],
    "pin_memory": [False],
    "drop_last": [False, True, None, 1, "no"],
    "timeout": [0, 2.5, -1, None, "1"],
    "worker_init_fn": [None, reseed, 5],
    "multiprocessing_context": [
        None,
        "fork",
        "spawn",
        "teleport",
        5,
        multiprocessing.get_context("spawn"),
        torch.multiprocessing,
    ],
    "generator": [None, GENERATOR, 5],
    "prefetch_factor": [None, 1, 0, -1, "2", 1.5],
    "persistent_workers": [False, True, 1],
    "pin_memory_device": ["", "cuda", None],
    "in_order": [True, False, None],
}
DATASETS = [Drawn(), Many(), Stream(), Sized(), list(range(4)), {0: 1}, (), None, 5, "abc"]


def made(kind, dataset, options):
    """Return what becomes of a loader: its attributes and first batches, or its error."""
    seed()
    GENERATOR.manual_seed(2)
    if "sampler" in options and hasattr(options["sampler"], "__next__"):
        options = {**options, "sampler": iter([1])}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loader = kind(dataset, **options)
            found = {name: vars(loader)[name] for name in sorted(public(loader))}
            for name, value in found.items():
                if not isinstance(value, str | int | float | None):
                    found[name] = type(value)
            if options.get("num_workers", 0) == 0:
                found["batches"] = first_batches(loader)
                found["length"] = len(loader)
        except Exception as error:  # noqa: BLE001 - compared with the other's
            found = {"error": type(error), "text": str(error)}
    found["warnings"] = [str(one.message) for one in caught]
    found["state"] = torch.get_rng_state().tolist()
    return found


def first_batches(loader):
    """Return three batches at most; one that fails is its exception, and does not end it."""
    found, batches = [], iter(loader)
    while len(found) < 3:
        try:
            found.append(next(batches))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - compared with torch's
            found.append([type(error), str(error)])
    return found


def public(loader):
    """Return the names of a loader's public attributes that torch's has too."""
    return {name for name in vars(loader) if not name.startswith("_")} & set(vars(Torchs([])))


@settings(deadline=None, max_examples=600)
@given(
    dataset=st.sampled_from(DATASETS),
    options=st.lists(st.sampled_from(list(VALUES)), unique=True, max_size=5).flatmap(
        lambda names: st.fixed_dictionaries({n: st.sampled_from(VALUES[n]) for n in names})
    ),
)
def test_any_values_right_or_wrong(same, dataset, options):
    """For every value of every argument: the same attributes, or the same exception and text."""
    ours, theirs = made(DataLoader, dataset, options), made(Torchs, dataset, options)
    if isinstance(options.get("sampler"), type(iter([]))):
        for one in (ours, theirs):  # its address is in the text
            one.pop("text", None)
    assert same(ours, theirs), f"{ours}\n{theirs}"


INVALID = [
    (Drawn(), {"num_workers": -1}),
    (Drawn(), {"timeout": -1}),
    (Drawn(), {"prefetch_factor": 2}),
    (Drawn(), {"prefetch_factor": -1, "num_workers": 1}),
    (Drawn(), {"persistent_workers": True}),
    (Stream(), {"shuffle": True}),
    (Stream(), {"sampler": [1]}),
    (Stream(), {"batch_sampler": [[1]]}),
    (Drawn(), {"shuffle": True, "sampler": [1]}),
    (Drawn(), {"batch_sampler": [[1]], "batch_size": 2}),
    (Drawn(), {"batch_sampler": [[1]], "batch_size": None}),
    (Drawn(), {"batch_sampler": [[1]], "shuffle": True}),
    (Drawn(), {"batch_sampler": [[1]], "sampler": [1]}),
    (Drawn(), {"batch_sampler": [[1]], "drop_last": True}),
    (Drawn(), {"batch_size": None, "drop_last": True}),
    (Drawn(), {"batch_size": 0}),
    (Drawn(), {"batch_size": 2.5}),
    (Drawn(), {"drop_last": "no"}),
    (Drawn(), {"multiprocessing_context": "fork"}),
    (Drawn(), {"multiprocessing_context": "teleport", "num_workers": 1}),
    (Drawn(), {"multiprocessing_context": 5, "num_workers": 1}),
    (Drawn(), {"unheard_of": 1}),
    (5, {"shuffle": True}),
    ([], {"shuffle": True}),
]


@pytest.mark.parametrize(("dataset", "options"), INVALID, ids=lambda value: str(value)[:60])
def test_every_invalid_combination(dataset, options):
    """Each check of torch's: the same exception type with the same text, from either loader."""
    texts = []
    for kind in (DataLoader, Torchs):
        with pytest.raises((ValueError, TypeError)) as caught:
            iter(kind(dataset, **options))
        texts.append((caught.type, str(caught.value)))
    assert texts[0] == texts[1]


def test_signature():
    """Torch's parameters with their defaults, in their order; ours come after, by keyword only."""
    ours = list(inspect.signature(DataLoader.__init__).parameters.values())
    theirs = list(inspect.signature(Torchs.__init__).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    more = ours[len(theirs) :]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", 0),
        ("num_workers", 2),
        ("prefetch_factor", 5),
        ("collate_fn", list),
        ("generator", "own"),
        ("worker_init_fn", reseed),
        ("timeout", 30),
        ("in_order", False),
        ("multiprocessing_context", "fork"),
        ("multiprocessing_context", "teleport"),
        ("batch_size", 3),
        ("batch_sampler", []),
        ("sampler", []),
        ("drop_last", True),
        ("dataset", []),
        ("persistent_workers", True),
    ],
)
def test_attributes_set_later(same, name, value):
    """What may be set after construction has torch's effect; what may not, torch's error."""
    found = []
    for kind in (DataLoader, Torchs):
        seed()
        loader = kind(Drawn(), 4, shuffle=True, num_workers=1)
        own = torch.Generator().manual_seed(4) if value == "own" else value
        try:
            setattr(loader, name, own)
        except ValueError as error:
            found.append(str(error))
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append([list(loader), list(loader), torch.get_rng_state().tolist()])
    assert same(*found)


def test_iterators_are_as_torchs():
    """`len`, `iter` and `next` of an iterator, and the kept one of persistent workers."""
    for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
        for kind in (DataLoader, Torchs):
            loader = kind(Drawn(), 4, **options)
            batches = iter(loader)
            assert iter(batches) is batches
            assert len(batches) == len(loader) == 4
            assert len(list(batches)) == 4
            assert next(batches, None) is None
            assert (iter(loader) is batches) is ("persistent_workers" in options)


def test_subclasses_and_copies(same):
    """A subclass may override what it likes; a loader pickles, as trainers send it to ranks."""
    batches = []
    for kind in (DataLoader, Torchs):

        class Doubled(kind):
            def __iter__(self):
                for batch in super().__iter__():
                    yield batch["index"] * 2

            def __len__(self):
                return 2 * super().__len__()

        loader = Doubled(Drawn(), batch_size=4, num_workers=1)
        copied = pickle.loads(pickle.dumps(kind(list(range(9)), 2, num_workers=1)))
        batches.append([list(loader), len(loader), list(copied), list(copied)])
    assert same(*batches)
