"""Whole combinations of arguments beside torch's loader: batches, draws, lengths, words, states."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data import DataLoader as Torchs

from fastfeed.loader import DataLoader

COUNT = 13


def drawn(index):
    """Return an item: its index, draws of the three generators, and who makes it."""
    info = get_worker_info()
    who = (info.id, info.num_workers, info.seed, info.dataset.count) if info else ()
    return {"index": index, "draws": (random.random(), np.random.rand(), torch.rand(2)), "who": who}


class Plain(Dataset):
    """A map; one item of it may fail."""

    def __init__(self, fails_at=None):
        self.count, self.fails_at = COUNT, fails_at

    def __repr__(self):
        return type(self).__name__

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.fails_at:
            raise LookupError(f"no item {index}")
        return drawn(index)


class Many(Plain):
    """A map that gives the items of a batch at once, the last one first."""

    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


class Bare:
    """A map that is no Dataset."""

    count = COUNT

    def __init__(self, fails_at=None):
        self._plain = Plain(fails_at)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self._plain[index]


class Stream(IterableDataset):
    """Workers share the numbers unevenly; without a length."""

    def __init__(self, fails_at=None):
        self.count, self.fails_at = COUNT, fails_at

    def __repr__(self):
        return type(self).__name__

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, COUNT - 3 * first, step):
            if number == self.fails_at:
                raise LookupError(f"no item {number}")
            yield drawn(number)


class Sized(Stream):
    """The same with a length, which is too small."""

    def __len__(self):
        return COUNT - 4


class AtStart(Sampler):
    """Draws when its iteration begins, as some do."""

    def __init__(self, generator=None):
        self.generator = generator

    def __iter__(self):
        first = int(torch.randint(0, 2, (), generator=self.generator))
        return iter(range(first, COUNT, 2))

    def __len__(self):
        return COUNT // 2


def reseed(worker):
    """Seed the worker in another way, as some users do."""
    torch.manual_seed(1000 + worker)
    np.random.seed(worker)


def count_more(worker):
    """Change the worker's copy of the data set."""
    get_worker_info().dataset.count += worker


SAMPLERS = {
    "none": lambda _: None,
    "list": lambda _: [5, 1, 9, 1],
    "empty": lambda _: [],
    "random": lambda own: RandomSampler(range(COUNT), generator=own),
    "replacing": lambda own: RandomSampler(
        range(COUNT), replacement=True, num_samples=9, generator=own
    ),
    "weighted": lambda own: WeightedRandomSampler([1.0, 2.0, 3.0], 8, generator=own),
    "subset": lambda own: SubsetRandomSampler([2, 4, 6, 8], generator=own),
    "at start": lambda own: AtStart(own),
}
BATCH_SAMPLERS = {
    "none": lambda _: None,
    "lists": lambda _: [[3, 1], [4], [1, 5, 9]],
    "batches": lambda own: BatchSampler(RandomSampler(range(COUNT), generator=own), 5, True),
    "nested": lambda own: BatchSampler(AtStart(own), 2, drop_last=False),
}
MAPS, STREAMS = (Plain, Many, Bare), (Stream, Sized)
COLLATES = (None, list, lambda items: [default_collate(items), len(items), torch.rand(1)])
INITS = (None, None, reseed, count_more)


@dataclass(frozen=True)
class Recipe:
    """What a loader is made of, and how it is used; each loader gets everything anew."""

    dataset: type
    options: tuple[tuple[str, Any], ...]
    sampler: str = "none"
    batch_sampler: str = "none"
    own_generator: bool = False
    samplers_generator: bool = False
    fails_at: int | None = None
    stops: tuple[int | None, ...] = (None,)
    """After how many batches each epoch is left."""
    asks_length: bool = False

    @property
    def workers(self):
        return dict(self.options).get("num_workers", 0)

    @property
    def ordered(self):
        return dict(self.options).get("in_order", True) or self.workers < 2


def seed():
    """Seed the three generators."""
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)


def told(kind, recipe):
    """Return all that a loader of a recipe tells."""
    seed()
    own = torch.Generator().manual_seed(8) if recipe.own_generator else None
    theirs = torch.Generator().manual_seed(9) if recipe.samplers_generator else None
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loader = kind(
                recipe.dataset(recipe.fails_at),
                sampler=SAMPLERS[recipe.sampler](theirs),
                batch_sampler=BATCH_SAMPLERS[recipe.batch_sampler](theirs),
                generator=own,
                **dict(recipe.options),
            )
            if recipe.asks_length:
                found.append(len(loader))
            found.extend(epoch(loader, stop) for stop in recipe.stops)
        except Exception as error:  # noqa: BLE001 - compared with torch's
            found.append((type(error), str(error)))
    generators = [torch.default_generator, own, theirs]
    return {
        "found": found,
        "torch": [one.get_state().tolist() for one in generators if one is not None],
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        # Once: of too many workers torch warns again with each iterator.
        "warnings": list(dict.fromkeys((one.category, str(one.message)) for one in caught)),
    }


def epoch(loader, stop):
    """Return the batches of an epoch, perhaps left early; exceptions do not end it."""
    batches = []
    iterator = iter(loader)
    while stop is None or len(batches) < stop:
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - compared with torch's
            text = str(error).strip().splitlines()  # between them stands the worker's traceback
            batches.append([type(error), text[0], text[-1]])
    return batches


def indices(batches):
    """Return the indices of all items, sorted."""
    found = []
    for batch in batches:
        for part in batch if isinstance(batch, list) else [batch]:
            if isinstance(part, dict):
                found += torch.as_tensor(part["index"]).reshape(-1).tolist()
    return sorted(found)


@st.composite
def recipes(draw, workers):
    """Draw a whole combination of arguments that a loader accepts."""
    dataset = draw(st.sampled_from(MAPS + STREAMS))
    count = draw(workers)
    options = {"num_workers": count, "collate_fn": draw(st.sampled_from(COLLATES))}
    sampler = batch_sampler = "none"
    if dataset in MAPS:
        order = draw(st.sampled_from(["shuffle", "in order", "sampler", "batches"]))
        if order == "shuffle":
            options["shuffle"] = True
        if order == "sampler":
            sampler = draw(st.sampled_from(list(SAMPLERS)))
        if order == "batches":
            batch_sampler = draw(st.sampled_from(list(BATCH_SAMPLERS)))
    if batch_sampler == "none":
        options["batch_size"] = draw(st.sampled_from([1, 2, 4, 5, COUNT, 20, None]))
        if options["batch_size"] is not None:
            options["drop_last"] = draw(st.booleans())
    if count:
        options["worker_init_fn"] = draw(st.sampled_from(INITS))
        options["prefetch_factor"] = draw(st.sampled_from([None, 1, 2, 5]))
        options["persistent_workers"] = draw(st.booleans())
        options["in_order"] = draw(st.sampled_from([True, True, True, False]))
        options["timeout"] = draw(st.sampled_from([0, 60]))
        options["multiprocessing_context"] = draw(st.sampled_from([None, "fork"]))
    recipe = Recipe(
        dataset,
        tuple(options.items()),
        sampler,
        batch_sampler,
        own_generator=draw(st.booleans()),
        samplers_generator=draw(st.booleans()),
        fails_at=draw(st.sampled_from([None, None, 0, 6, COUNT - 1])),
        stops=tuple(draw(st.lists(st.sampled_from([None, None, 0, 1, 3]), min_size=1, max_size=3))),
        asks_length=draw(st.booleans()),
    )
    if not recipe.ordered:  # who gets what is chance: only whole epochs without faults compare
        recipe = replace(recipe, stops=(None,) * len(recipe.stops), fails_at=None)
    return recipe


def check(recipe, same):
    """Assert that both loaders tell the same of a recipe."""
    ours, theirs = told(DataLoader, recipe), told(Torchs, recipe)
    if not recipe.ordered:
        for one in (ours, theirs):
            one["found"] = [indices(p) if isinstance(p, list) else p for p in one["found"]]
    for what in ours:
        assert same(ours[what], theirs[what]), f"{what}:\n{ours[what]}\n{theirs[what]}"


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes(st.just(0)))
def test_c53_any_combination_without_workers(same, recipe):
    """Whatever is combined: torch's batches, draws, lengths, warnings, errors and states."""
    check(recipe, same)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=recipes(st.integers(1, 3)))
@example(Recipe(Sized, (("num_workers", 2), ("batch_size", 3)), asks_length=True))
@example(Recipe(Stream, (("num_workers", 1),), asks_length=True))
def test_c53_any_combination_with_workers(same, recipe):
    """The same with one to three workers."""
    check(recipe, same)
