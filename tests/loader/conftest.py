"""Data sets that show order, seeds and kinds, and how two trees are compared."""

from __future__ import annotations

import io
import itertools
import random
import tarfile

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Draws(Dataset):
    """Each item: its index, draws of the three generators, and who made it."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        info = get_worker_info()
        return {
            "index": index,
            "draws": (random.random(), np.random.rand(), torch.rand(2)),
            "worker": (info.id, info.num_workers, info.seed) if info else (-1, 0, 0),
        }


class Stream(IterableDataset):
    """Workers share the numbers below `count` unevenly."""

    def __init__(self, count, *, length=None):
        self.count, self.length = count, length

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        stop = self.count if first == 0 else self.count // (2 * first)
        for number in range(first, stop, step):
            yield number, torch.rand(3)

    def __len__(self):
        if self.length is None:
            raise TypeError("no length")
        return self.length


class Items(Dataset):
    """What a function gives for each index."""

    def __init__(self, count, make):
        self.count, self.make = count, make

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def is_same(a, b):
    """Say whether two trees have the same types, dtypes, shapes, strides and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a.to_dense(), b.to_dense())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if hasattr(a, "__dict__"):
        return is_same(vars(a), vars(b))
    return a == b


@pytest.fixture(scope="session")
def same():
    """The comparison of two trees."""
    return is_same


@pytest.fixture
def draws():
    """The data set that shows order and seeds, by length."""
    return Draws


@pytest.fixture
def stream():
    """The iterable data set."""
    return Stream


@pytest.fixture
def items():
    """A data set of any items."""
    return Items


@pytest.fixture
def number_shards(tmp_path):
    """A function that writes shards of so many samples, `cls` their number; returns the paths."""

    def write(*counts, text=str):
        folder = tmp_path / "shards"
        folder.mkdir()
        number = 0
        for shard, count in enumerate(counts):
            with tarfile.open(folder / f"n-{shard:03d}.tar", "w", tarfile.USTAR_FORMAT) as tar:
                for _ in range(count):
                    data = text(number).encode()
                    member = tarfile.TarInfo(f"{number:06d}.cls")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
                    number += 1
        return sorted(map(str, folder.iterdir()))

    return write


def _travelled(state):
    """Return a state that went through a file, as checkpoints do, weights only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _golden(make, epochs=3):
    torch.manual_seed(3)
    loader = make()
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]


def _joined(makes, cuts, epochs=3):
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
            loader.load_state_dict(_travelled(state))
            again = loader.state_dict()
            assert repr(again) == repr(state)  # saved before a step: the same
        state = None
        while len(found) <= epochs:
            for batch in loader:
                found[-1].append(batch.tolist())
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


@pytest.fixture(scope="session")
def travelled():
    """Send a state through a file."""
    return _travelled


@pytest.fixture(scope="session")
def golden():
    """The batches of a few epochs of a new loader, by epoch."""
    return _golden


@pytest.fixture(scope="session")
def joined():
    """The same of a run that is cut and resumed."""
    return _joined
