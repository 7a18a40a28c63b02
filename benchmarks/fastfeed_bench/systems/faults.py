"""steady: page faults and descriptors that each batch of images costs, by either loader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from fastfeed_bench.consume import digest_epoch, read_tree
from fastfeed_bench.processes import children, descriptors, minor_faults
from fastfeed_bench.systems.steady import held
from fastfeed_bench.systems.transport import pool_loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

_STEP, _KEPT = 100, 8
"""Batches between two readings, and how many are kept at a time to see what each holds."""


@dataclass(frozen=True, slots=True)
class FaultSession:
    """Each run reads the counters before and after some batches of one endless run."""

    note: str
    loader: Any
    batches: Iterator[Any]

    def run(self) -> Mapping[str, float]:
        """Consume some batches and return what each cost; then keep some, for what each holds."""
        pids = [os.getpid(), *children()]
        faults, opened = sum(map(minor_faults, pids)), sum(map(descriptors, pids))
        for _ in range(_STEP):
            read_tree(next(self.batches))
        faults = sum(map(minor_faults, pids)) - faults
        grown = sum(map(descriptors, pids)) - opened
        figures = held()
        kept = list(islice(self.batches, _KEPT))
        holding = descriptors(pids[0])
        kept.clear()
        holding -= descriptors(pids[0])
        return {
            "value": figures["value"],
            "faults_per_batch": faults / _STEP,
            "descriptors_grown_per_batch": grown / _STEP,
            "descriptors_per_kept_batch": holding / _KEPT,
            "shared_mb": figures["shared_mb"],
        }

    def evidence(self) -> Evidence:
        """Describe an epoch; all memory that a steady run needs has been touched by its end."""
        return digest_epoch(self.loader)

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""


def torch_session(settings: Settings) -> FaultSession:
    """Return the session of torch's loader."""
    return _session(DataLoader, f"torch {torch.__version__}", settings)


def fastfeed_session(settings: Settings) -> FaultSession:
    """Return the session of ours."""
    import fastfeed

    return _session(fastfeed.DataLoader, f"fastfeed {fastfeed.__version__}", settings)


def _session(kind: Any, name: str, settings: Settings) -> FaultSession:
    loader = pool_loader(kind, settings)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    return FaultSession(
        note=f"{name}; num_workers={settings['workers']}, prefetch_factor={settings['prefetch']}",
        loader=loader,
        batches=endless(),
    )
