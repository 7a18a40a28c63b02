"""transport: ready-made tensors from worker processes to the consumer, by either loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.consume import dense, digest, read_tensor
from fastfeed_bench.sessions import LoaderSession

if TYPE_CHECKING:
    from fastfeed_bench.model import Evidence, Settings

_SHAPE = (3, 224, 224)
_POOL = 128


@dataclass(frozen=True, slots=True)
class Pool(Dataset[torch.Tensor]):
    """Tensors made beforehand, handed out over and over: nothing but their way is measured."""

    tensors: list[torch.Tensor]
    samples: int

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensors[index % len(self.tensors)]


def torch_session(settings: Settings) -> LoaderSession:
    """Return the session of torch's loader."""
    return _session(DataLoader, f"torch {torch.__version__}", settings)


def fastfeed_session(settings: Settings) -> LoaderSession:
    """Return the session of ours."""
    import fastfeed

    return _session(fastfeed.DataLoader, f"fastfeed {fastfeed.__version__}", settings)


def _session(kind: Any, name: str, settings: Settings) -> LoaderSession:
    loader = kind(
        _pool(settings),
        batch_size=settings["batch"],
        num_workers=settings["workers"],
        prefetch_factor=settings["prefetch"],
        persistent_workers=True,
    )
    return LoaderSession(
        note=f"{name}; num_workers={settings['workers']}, prefetch_factor={settings['prefetch']}",
        samples=settings["samples"],
        epoch=lambda: loader,
        consume=_consume,
        describe=lambda: _describe(loader),
    )


def _pool(settings: Settings) -> Pool:
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, settings["dtype"])
    tensors = [
        torch.randint(0, 256, _SHAPE, dtype=torch.uint8, generator=generator).to(dtype)
        for _ in range(_POOL)
    ]
    return Pool(tensors, settings["samples"])


def _consume(batch: torch.Tensor) -> int:
    read_tensor(batch)
    return len(batch)


def _describe(loader: Any) -> Evidence:
    count, total, forms = 0, 0, set()
    for batch in loader:
        count += len(batch)
        total += digest(dense(sample.numpy()).data for sample in batch)
        forms.add(f"{list(batch.shape[1:])} {batch.dtype}")
    return {"samples": count, "digest": f"{total & (2**64 - 1):016x}", "form": sorted(forms)}
