"""work: photos by Pillow and torchvision's transforms, as a map-style data set in either loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.consume import digest_epoch
from fastfeed_bench.machine import versions
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.systems.jpeg_torch import consume
from fastfeed_bench.windows import SIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed_bench.model import Evidence, Settings
    from fastfeed_bench.systems.files import Photo


@dataclass(frozen=True, slots=True)
class Photos(Dataset[tuple[torch.Tensor, int]]):
    """What torchvision's ImageFolder does: open with Pillow, then transform."""

    files: list[Photo]
    transform: Callable[[Any], torch.Tensor]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        path, label = self.files[index]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


def torch_session(settings: Settings) -> LoaderSession:
    """Return the session of torch's loader."""
    return _session(DataLoader, f"torch {torch.__version__}", settings)


def fastfeed_session(settings: Settings) -> LoaderSession:
    """Return the session of ours."""
    import fastfeed

    return _session(fastfeed.DataLoader, f"fastfeed {fastfeed.__version__}", settings)


def _session(kind: Any, name: str, settings: Settings) -> LoaderSession:
    photos = photos_of(settings["photos"])
    dataset = Photos(photos * settings["repeats"], _transform(settings["dtype"]))
    once = Photos(photos, dataset.transform)
    loader = _loader(kind, dataset, settings, persistent=True)
    used = versions(("torchvision", "pillow", "pillow-simd")).items()
    return LoaderSession(
        note=f"{name}; {', '.join(' '.join(package) for package in used)}; "
        f"num_workers={settings['workers']}, batch_size={settings['batch']}",
        samples=len(dataset),
        epoch=lambda: loader,
        consume=consume,
        describe=lambda: _describe(_loader(kind, once, settings, persistent=False)),
    )


def _loader(kind: Any, dataset: Photos, settings: Settings, *, persistent: bool) -> Any:
    return kind(
        dataset,
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        persistent_workers=persistent,
    )


def _describe(loader: Any) -> Evidence:
    """Return the digest of an epoch; with one seed both loaders make the same, to the bit."""
    torch.manual_seed(0)
    return digest_epoch(loader)


def _transform(dtype: str) -> Callable[[Any], torch.Tensor]:
    from torchvision.transforms import v2

    ends: dict[str, list[Any]] = {
        "float32": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
        "uint8": [v2.PILToTensor()],
    }
    made: Callable[[Any], torch.Tensor] = v2.Compose(
        [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), *ends[dtype]]
    )
    return made
