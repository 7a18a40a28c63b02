"""Packs photos into shards, trains a small network on them, and compares with torch's loader.

Run it with `make demo`. It takes less than a minute on two cores; a GPU is used if there is one.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fastfeed as ff
from fastfeed_bench.photos import IMAGENET_LIKE, find_sources, photos
from fastfeed_bench.windows import draw_window
from fastfeed_shard.main import main as fastfeed_shard

PHOTOS = 256
BATCH = 32
WORKERS = 2
EPOCHS = 2
SIDE = 224


def main() -> int:
    """Run the demonstration; returns the exit code of the command."""
    with tempfile.TemporaryDirectory() as folder:
        source, shards = Path(folder) / "photos", Path(folder) / "shards"
        write_photos(source)
        code = fastfeed_shard(["build", str(source), str(shards), "--shard-size", "8MiB"])
        if code:
            return code
        compare(fastfeed_loader(shards), torch_loader(source))
        loader = fastfeed_loader(shards)
        train(loader)
        print(loader.report())
    return 0


def fastfeed_loader(shards: Path) -> ff.DataLoader:
    """Return our loader over the shards: the crop is drawn first, and only the crop decoded."""
    return ff.DataLoader(
        ff.ShardDataset(
            shards,
            fields={
                "image": ff.Image("jpg", ff.RandomResizedCrop(SIDE), ff.HorizontalFlip()),
                "label": ff.Int("cls"),
            },
        ),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )


def write_photos(folder: Path) -> None:
    """Write a few hundred different photos, made from those of the repository."""
    print(f"making {PHOTOS} photos of about 500x375 pixels from examples/photos")
    photo_set = replace(IMAGENET_LIKE, count=PHOTOS)
    for name, content in photos(find_sources(None), photo_set):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class PhotoFolder(Dataset[tuple[torch.Tensor, int]]):
    """The same photos as files in class folders, decoded and cropped by Pillow."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.rglob("*.jpg"))
        self.labels = {path.name: label for label, path in enumerate(sorted(folder.iterdir()))}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import random

        import numpy as np

        path = self.files[index]
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            left, top, width, height = draw_window(image.width, image.height, random)
            crop = image.convert("RGB").crop((left, top, left + width, top + height))
            picture = np.array(crop.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        if random.random() < 0.5:
            picture = picture[:, ::-1].copy()
        return torch.from_numpy(picture).permute(2, 0, 1), self.labels[path.parent.name]


def torch_loader(folder: Path) -> DataLoader[Any]:
    """Return torch's loader over the files: torchvision's ImageFolder, or the class above."""
    try:
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2
    except ImportError:
        dataset: Dataset[Any] = PhotoFolder(folder)
    else:
        transform = v2.Compose(
            [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )
        dataset = ImageFolder(str(folder), transform)
    return DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )


def compare(ours: DataLoader[Any], theirs: DataLoader[Any]) -> None:
    """Print how fast both loaders go through the photos, in turns, without training."""
    rates: dict[str, list[float]] = {"torch": [], "fastfeed": []}
    for turn in range(4):
        for name, loader in (("torch", theirs), ("fastfeed", ours)):
            rate = epoch_rate(loader)
            if turn:  # the first epoch starts the workers
                rates[name].append(rate)
    torch_rate, our_rate = (statistics.median(rates[name]) for name in ("torch", "fastfeed"))
    print(f"same photos, same crops, {WORKERS} workers, batches of {BATCH}, no training:")
    print(f"  torch.utils.data.DataLoader  {torch_rate:7,.0f} img/s")
    print(f"  fastfeed.DataLoader          {our_rate:7,.0f} img/s   {our_rate / torch_rate:.1f} x")


def epoch_rate(loader: DataLoader[Any]) -> float:
    """Return the photos a second of one epoch."""
    begin, seen = time.perf_counter(), 0
    for batch in loader:
        labels = batch["label"] if isinstance(batch, dict) else batch[1]
        seen += len(labels)
    return seen / (time.perf_counter() - begin)


def train(loader: DataLoader[Any]) -> None:
    """Train a small network for a few epochs and print how it goes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = network().to(device, memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(1, EPOCHS + 1):
        begin, seen, right, total = time.perf_counter(), 0, 0, 0.0
        for batch in loader:
            images = batch["image"].to(device, non_blocking=True).float().div_(255)
            labels = batch["label"].to(device, non_blocking=True)
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen += len(labels)
            right += int((scores.argmax(1) == labels).sum())
            total += loss.item() * len(labels)
        rate = seen / (time.perf_counter() - begin)
        print(
            f"epoch {epoch} on {device}: loss {total / seen:.3f}, "
            f"{right / seen:.0%} right, {rate:,.0f} img/s"
        )


def network() -> nn.Sequential:
    """Return a network small enough for two cores."""
    layers: list[nn.Module] = []
    channels = [3, 16, 32, 64]
    for number, (before, after) in enumerate(pairwise(channels)):
        stride = 2 if number else 4
        layers += [
            nn.Conv2d(before, after, 3 if number else 7, stride=stride, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))


if __name__ == "__main__":
    sys.exit(main())
