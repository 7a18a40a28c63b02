# ruff: noqa: T201 - it speaks by printing
"""A program: both loaders under one start method, set of options by set; it says what differs."""

from __future__ import annotations

import multiprocessing
import random
import sys
import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data import DataLoader as Torchs

import fastfeed as ff


class Item(NamedTuple):
    """What the data sets give."""

    index: int
    draws: tuple
    image: torch.Tensor
    row: np.ndarray
    text: str
    who: tuple


def item(index):
    """Return an item with random parts, and who made it."""
    info = get_worker_info()
    image = torch.full((3, 40, 40), index, dtype=torch.uint8)
    image = image.flip(-1) if random.random() < 0.5 else image + torch.randint(0, 3, (1, 40, 40))
    return Item(
        index,
        (random.random(), np.random.rand(), torch.rand(2)),
        image.to(torch.uint8),
        np.random.permutation(30),
        "x" * index,
        (info.id, info.num_workers, info.seed, info.dataset.mark),
    )


class Pictures(Dataset):
    """A map; one of its items may fail."""

    mark = 0

    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def __len__(self):
        return 17

    def __getitem__(self, index):
        if index == self.fails_at:
            raise LookupError("no such picture")
        return item(index)


class Many(Pictures):
    """A map that is asked for whole batches."""

    def __getitems__(self, indices):
        return [item(index) for index in sorted(indices)]


class Stream(IterableDataset):
    """Shared unevenly among the workers."""

    mark = 0

    def __init__(self, length=None):
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        yield from map(item, range(info.id, 17 - 5 * info.id, info.num_workers))

    def __len__(self):
        if self.length is None:
            raise TypeError("no length")
        return self.length


def init(worker):
    """Mark the worker's copy of the data set, and draw."""
    get_worker_info().dataset.mark = 100 + worker
    torch.rand(worker + 1)
    np.random.rand(3)


def collate(batch):
    """Collate with draws of its own."""
    return [default_collate([one.image for one in batch]), batch[0], torch.rand(2), len(batch)]


SETS = {
    "persistent, own generator, init": lambda: {
        "dataset": Pictures(),
        "batch_size": 4,
        "shuffle": True,
        "num_workers": 2,
        "persistent_workers": True,
        "worker_init_fn": init,
        "generator": torch.Generator().manual_seed(11),
        "stops": (None, 2, None),
    },
    "iterable": lambda: {
        "dataset": Stream(length=3),
        "batch_size": 3,
        "drop_last": True,
        "num_workers": 2,
        "worker_init_fn": init,
        "persistent_workers": True,
        "stops": (None, None),
    },
    "batches at once": lambda: {
        "dataset": Many(),
        "batch_sampler": BatchSampler(RandomSampler(range(17)), 5, drop_last=False),
        "collate_fn": collate,
        "num_workers": 1,
        "prefetch_factor": 3,
        "stops": (1, None),
    },
    "no batches, iterable": lambda: {
        "dataset": Stream(),
        "batch_size": None,
        "num_workers": 1,
        "timeout": 60,
    },
    "an exception": lambda: {
        "dataset": Pictures(fails_at=6),
        "batch_size": 4,
        "num_workers": 1,
        "in_order": False,
    },
}


def told(kind, method, *, stops=(None,), **options):
    """Return all that a loader tells: batches, exceptions, warnings, states of the generators."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = kind(**options, multiprocessing_context=method)
        if getattr(options["dataset"], "length", None):
            found.append(len(loader))
        for stop in stops:
            batches = iter(loader)
            number = 0
            while number != stop:
                number += 1
                try:
                    found.append(next(batches))
                except StopIteration:
                    break
                except LookupError as error:
                    lines = str(error).splitlines()
                    found.append([type(error), lines[0], lines[-1]])
            del batches
    states = [torch.get_rng_state(), random.random(), np.random.rand()]
    if options.get("generator") is not None:
        states.append(options["generator"].get_state())
    words = [str(one.message) for one in caught if "multi-threaded" not in str(one.message)]
    return found, states, [word.split(" object at ")[0] for word in words]


def is_same(a, b):
    """Say whether two trees are equal in types, dtypes, shapes, strides and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and a.equal(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return a == b


def main(method):
    """Compare them all."""
    multiprocessing.set_forkserver_preload(["fastfeed.loader"])  # or each worker imports torch
    # torch's batches do not depend on the method, so all but one set take its quickest.
    theirs = dict.fromkeys(SETS, "fork")
    theirs["an exception"] = method
    for name, options in SETS.items():
        ours = told(ff.DataLoader, method, **options())
        other = told(Torchs, theirs[name], **options())
        verdicts = [is_same(a, b) for a, b in zip(ours, other, strict=True)]
        if not all(verdicts):
            print(name, *zip(verdicts, ours, other, strict=True), sep="\n")
        print(f"{name}: {'same' if all(verdicts) else 'DIFFERENT'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
