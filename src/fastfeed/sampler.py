"""The sampler behind `shuffle=` for shards: one plan for all ranks, and epochs that differ."""

from __future__ import annotations

from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch.distributed
from torch.utils.data import DistributedSampler

from fastfeed.plan import PIECE

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

    def fingerprint(self) -> str:
        """Return a digest of all that the plan depends on."""
        ...


class ShardSampler(DistributedSampler[int]):
    """Gives each rank its part of the data set's order; every epoch has another one by itself.

    It is a DistributedSampler, so that trainers recognise it and nothing is split twice. Ranks
    come from the process group as it is when an epoch starts, or from the arguments. Sample
    positions go round the ranks; all ranks get the same number: without `drop_last` the first
    samples of the order are repeated to fill up the last round.

    `epoch` is the epoch that the next iteration will have. It advances when an iteration starts;
    `set_epoch` sets it. `state_dict` counts samples over all ranks, so an epoch goes on right on
    another number of ranks.
    """

    draws_nothing = True
    """The order comes from the data set's seed and the epoch, not from a generator."""

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
        self._at: tuple[int, int, Iterator[int]] | None = None
        """Of the iteration that is under way: epoch, position over all ranks behind the indices
        that are being handed on, and what is left of these."""
        self._first = 0
        """Position at which the next iteration starts."""

    def __len__(self) -> int:
        world, _ = _world(*self._asked)
        count = len(self._planned)
        return count // world if self.drop_last else -(-count // world)

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's sample indices; the epoch is taken when the first one is asked for."""
        return chain.from_iterable(self._chunks())

    def _chunks(self) -> Iterator[Iterator[int]]:
        epoch, first = self.epoch, self._first
        self.epoch, self._first = epoch + 1, 0
        self._at = (epoch, first, iter(()))
        self.num_replicas, self.rank = _world(*self._asked)
        self.num_samples = len(self)
        left = len(self._planned) - first
        ranks = self.num_replicas
        self.total_size = first + (left // ranks if self.drop_last else -(-left // ranks)) * ranks
        for indices in self._share(epoch, first):
            for chunk in np.array_split(indices, range(_CHUNK, len(indices), _CHUNK)):
                first += ranks * len(chunk)
                given = iter(chunk.tolist())
                self._at = (epoch, first, given)
                yield given
        self._at = None

    def fingerprint(self) -> str:
        """Return a digest of what the order depends on, besides the epoch and the ranks."""
        return f"{self._planned.fingerprint()}-{'shuffled' if self.shuffle else 'in order'}"

    def follows_plan_of(self, dataset: Planned) -> bool:
        """Say whether this is the shuffled order of a data set: ours, or one with the same plan."""
        if not self.shuffle:
            return False
        return dataset is self._planned or dataset.fingerprint() == self._planned.fingerprint()

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and how many samples all ranks together were given in it."""
        if self._at is None:
            return {"epoch": self.epoch, "position": self._first}
        epoch, position, left = self._at
        return {"epoch": epoch, "position": position - self.num_replicas * length_hint(left)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a state at the next iteration."""
        self.epoch, self._first = state["epoch"], state["position"]
        self._at = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; one that is resumed goes on if it is the same."""
        if epoch != self.epoch:
            self._first = 0
        self.epoch = epoch

    def _share(self, epoch: int, first: int) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's part of the order from a position on, a window at a time."""
        position, head = 0, np.empty(0, dtype=np.int64)
        for window in self._windows(epoch):
            if len(head) < self.num_replicas:
                head = np.concatenate([head, window])[: self.num_replicas]
            kept = window[: self.total_size - position]  # shorter only with drop_last
            start = max(0, first - position)
            if start < len(kept):
                after = position + start - first
                yield kept[start + (self.rank - after) % self.num_replicas :: self.num_replicas]
            position += len(kept)
        missing = self.total_size - max(position, first)
        if missing > 0 and len(head):
            after = max(position, first) - first
            padding = np.resize(head, missing)
            yield padding[(self.rank - after) % self.num_replicas :: self.num_replicas]

    def _windows(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        if self.shuffle:
            yield from self._planned.plan(epoch).order(min(_CHUNK, PIECE * self.num_replicas))
            return
        for first in range(0, len(self._planned), _CHUNK):
            yield np.arange(first, min(first + _CHUNK, len(self._planned)), dtype=np.int64)


def _world(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    if num_replicas is not None and rank is not None:
        return num_replicas, rank
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0
