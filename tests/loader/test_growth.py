"""C45 and C46: memory over many epochs, of the workers alone and of all together."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import fastfeed as ff

MIB = 1 << 20


def kilobytes(pid, *names):
    """Return the sum of some lines of a process's memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1]) for name in names)


def private(pids):
    """Return the megabytes that processes have for themselves."""
    return sum(kilobytes(pid, "Private_Clean", "Private_Dirty") for pid in pids) / 1024


def workers():
    return sorted(child.pid for child in multiprocessing.active_children())


@pytest.fixture
def still_heap():
    """The garbage collector leaves what is here already alone.

    Its marks would make pages private that a fork shares, at some moment or other; that is growth
    of nothing.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_c45_workers_do_not_copy_the_index(number_shards, still_heap, method):
    """20,000 samples read in a shuffled order, epoch after epoch: workers take no memory for it.

    The index is a map of a file, and the order is made in the trainer, a window at a time. (A list
    of Python objects that a user's data set holds is copied page by page as it is read: counting
    references writes to them. Worker threads are the way out.)
    """
    data = ff.ShardDataset(number_shards(10_000, 10_000), {"n": ff.Int("cls")})
    loader = ff.DataLoader(
        data,
        100,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
    )
    used = []
    for _ in range(4):
        assert sum(len(batch["n"]) for batch in loader) == 20_000
        used.append(private(workers()))
    assert used[-1] - used[0] < 4, used


class Varied(Dataset):
    """Items of 1 kB to 8 kB."""

    def __len__(self):
        return 6000

    def __getitem__(self, index):
        return np.zeros(random.Random(index).randrange(1_000, 8_000), np.uint8), index


def collate(batch):
    """Keep the items as they are, and put them into one as well."""
    return torch.cat([torch.from_numpy(item) for item, _ in batch]), [item for item, _ in batch]


@pytest.mark.parametrize("keep", [0, 30])
def test_c46_persistent_workers_keep_no_more_each_epoch(still_heap, keep):
    """Batches of 200 to 800 items of many sizes: after epoch 2 all memory together stays flat."""
    loader = ff.DataLoader(
        Varied(),
        batch_sampler=Sizes(),
        collate_fn=collate,
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=3,
    )
    own, lent = [], []
    for _ in range(6):
        kept = []
        for batch in loader:
            kept = [*kept, batch][-keep:] if keep else []
        del kept, batch
        pids = [os.getpid(), *workers()]
        # Pages that processes share count once: a part in each of them.
        own.append(sum(kilobytes(pid, "Pss_Anon") for pid in pids) / 1024)
        lent.append(sum(kilobytes(pid, "Pss_Shmem") for pid in pids) / 1024)
    largest = 800 * 4.5 / 1024 * 2
    assert max(lent) < 2 * (3 + 3) * largest, lent  # how many lie there at a time is chance
    assert max(own[2:]) < own[1] + 8, own


class Sizes:
    """Batches of many sizes, the same ones in each epoch, of other samples."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        order = random.Random(self.epoch).sample(range(6000), 6000)
        sizes = random.Random(1)
        while order:
            count = sizes.randrange(200, 800)
            yield order[:count]
            order = order[count:]

    def __len__(self):
        return 12
