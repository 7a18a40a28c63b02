"""What the scripts that run as ranks share."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

import fastfeed as ff


class Numbers(Dataset):
    """The numbers below a count, as tensors."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return torch.tensor(index)


def shards(folder):
    """Return the data set over the shards of numbers."""
    return ff.ShardDataset(f"{folder}/numbers-{{000000..000003}}.tar", {"n": ff.Int("cls")})


def numbers_of(batch):
    """Return the numbers of a batch."""
    return (batch["n"] if isinstance(batch, dict) else batch).tolist()
