"""The sampler behind `shuffle=` for shards: one plan for all ranks, and epochs that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch.distributed
from torch.utils.data import DistributedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fastfeed.plan import Plan

# Indices are handed on as Python ints; this many are converted at a time.
_CHUNK = 8192


class Planned(Protocol):
    """A data set that lays out the order of its epochs."""

    seed: int

    def __len__(self) -> int: ...
    def plan(self, epoch: int) -> Plan:
        """Return the plan of an epoch."""
        ...


class ShardSampler(DistributedSampler[int]):
    """Gives each rank its part of the data set's order; every epoch has another one by itself.

    It is a DistributedSampler, so that trainers recognise it and nothing is split twice. Ranks
    come from the process group as it is when an epoch starts, or from the arguments. Sample
    positions go round the ranks; all ranks get the same number: without `drop_last` the first
    samples of the order are repeated to fill up the last round.

    `epoch` is the epoch that the next iteration will have. It advances when an iteration starts;
    `set_epoch` sets it.
    """

    def __init__(
        self,
        dataset: Planned,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        world, own = _world(num_replicas, rank)
        super().__init__(
            dataset,  # type: ignore[arg-type]
            num_replicas=world,
            rank=own,
            shuffle=shuffle,
            seed=dataset.seed,
            drop_last=drop_last,
        )
        self._planned = dataset
        self._asked = (num_replicas, rank)

    def __len__(self) -> int:
        world, _ = _world(*self._asked)
        count = len(self._planned)
        return count // world if self.drop_last else -(-count // world)

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's sample indices; the epoch is taken when the first one is asked for."""
        epoch = self.epoch
        self.epoch = epoch + 1
        self.num_replicas, self.rank = _world(*self._asked)
        self.num_samples = len(self)
        self.total_size = self.num_samples * self.num_replicas
        for indices in self._share(epoch):
            for chunk in np.array_split(indices, range(_CHUNK, len(indices), _CHUNK)):
                yield from chunk.tolist()

    def _share(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's part of the order, a window at a time."""
        position, head = 0, np.empty(0, dtype=np.int64)
        for window in self._windows(epoch):
            kept = window[: self.total_size - position]  # shorter only with drop_last
            if len(head) < self.num_replicas:
                head = np.concatenate([head, kept])[: self.num_replicas]
            yield kept[(self.rank - position) % self.num_replicas :: self.num_replicas]
            position += len(kept)
        missing = self.total_size - position
        if missing > 0 and len(head):
            padding = np.resize(head, missing)
            yield padding[(self.rank - position) % self.num_replicas :: self.num_replicas]

    def _windows(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        if self.shuffle:
            yield from self._planned.plan(epoch).order()
            return
        for first in range(0, len(self._planned), _CHUNK):
            yield np.arange(first, min(first + _CHUNK, len(self._planned)), dtype=np.int64)


def _world(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    if num_replicas is not None and rank is not None:
        return num_replicas, rank
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0
