"""transport: ready-made samples from worker processes to the consumer, by either loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.consume import digest_epoch, read_tree
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.shapes import SHAPES, samples_of

if TYPE_CHECKING:
    from fastfeed_bench.model import Settings


@dataclass(frozen=True, slots=True)
class Pool(Dataset[Any]):
    """Samples made beforehand, handed out over and over: nothing but their way is measured."""

    made: list[Any]
    samples: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return self.made[index % len(self.made)]


def torch_session(settings: Settings) -> LoaderSession:
    """Return the session of torch's loader."""
    return _session(DataLoader, f"torch {torch.__version__}", settings)


def fastfeed_session(settings: Settings) -> LoaderSession:
    """Return the session of ours."""
    import fastfeed

    return _session(fastfeed.DataLoader, f"fastfeed {fastfeed.__version__}", settings)


def pool_loader(kind: Any, settings: Settings) -> Any:
    """Return a loader of that class over the samples of the settings' shape."""
    shape = SHAPES[settings["shape"]]
    return kind(
        Pool(samples_of(shape), settings["samples"]),
        batch_size=settings["batch"],
        num_workers=settings["workers"],
        collate_fn=shape.collate,
        prefetch_factor=settings["prefetch"],
        persistent_workers=True,
    )


def _session(kind: Any, name: str, settings: Settings) -> LoaderSession:
    loader = pool_loader(kind, settings)
    batch = settings["batch"]

    def consume(tree: Any) -> int:
        read_tree(tree)
        return int(batch)

    return LoaderSession(
        note=f"{name}; num_workers={settings['workers']}, prefetch_factor={settings['prefetch']}",
        samples=settings["samples"],
        epoch=lambda: loader,
        consume=consume,
        describe=lambda: digest_epoch(loader),
    )
