"""train-feed: the ways by which batches come to the training step: made up, fastfeed's and DALI's.

torch's own are in `train_torch`.
"""

from __future__ import annotations

from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.systems.train_torch import Torch, Torchvision, finished
from fastfeed_bench.train import MEAN, STD, whole
from fastfeed_bench.windows import SIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastfeed_bench.model import Settings
    from fastfeed_bench.systems.train_torch import Tensors
    from fastfeed_bench.train import Batch, Pace, Trainer, Way


def make_way(name: str, trainer: Trainer, settings: Settings, pace: Pace) -> Way:
    """Return the way of that name, open."""
    return _WAYS[name](trainer, settings, pace)


class Made:
    """The made-up batch, over and over: the reference."""

    note = "made-up batches that lie on the device"
    group = 1

    def __init__(self, trainer: Trainer, _settings: Settings, _pace: Pace) -> None:
        self._batch = trainer.batch

    def epoch(self, steps: int) -> Iterator[Batch]:
        """Return the same batch so many times."""
        return repeat(self._batch, steps)

    def pinned_bytes(self) -> int | None:
        """Return nothing: none are."""
        return 0

    def close(self) -> None:
        """Nothing was started."""


class Fastfeed:
    """fastfeed: batches arrive on the device, normalised."""

    def __init__(self, trainer: Trainer, settings: Settings, pace: Pace) -> None:
        import fastfeed as ff
        from fastfeed.options import resolve_workers

        batch = trainer.network.batch
        workers = int(resolve_workers(ff.AUTO, on_device=True))
        samples = batch * (whole(pace.lead, workers) + whole(pace.steps, workers))
        shards = settings["shards"] * -(-samples // settings["count"])
        name = "npy" if settings["source"] == "raw" else "jpg"
        normalise: Any = ff.Normalize  # takes a dtype beside mean and std
        fields: dict[str, Any] = {
            "image": ff.Image(
                name,
                ff.RandomResizedCrop(SIDE),
                ff.HorizontalFlip(),
                normalise(MEAN, STD, dtype="bfloat16"),
            ),
            "label": ff.Int("cls"),
        }
        decode = settings.get("decode", "auto")
        make: Any = ff.DataLoader
        self._loader = make(
            ff.ShardDataset(shards, fields=fields),
            batch_size=batch,
            shuffle=True,
            num_workers=ff.AUTO,
            device=trainer.device.type,
            decode=decode,
            persistent_workers=True,
            drop_last=True,
        )
        self.group = max(1, int(self._loader.num_workers))
        self.note = f"fastfeed {ff.__version__}; num_workers={self.group}, decode={decode!r}"

    def epoch(self, steps: int) -> Iterator[Batch]:  # noqa: ARG002 - the data set has its length
        """Return the batches of an epoch, which was made a little longer than a turn."""
        for batch in self._loader:
            yield batch["image"], batch["label"]

    def pinned_bytes(self) -> int | None:
        """Return what the loader says."""
        device = self._loader.snapshot().device
        return None if device is None else device.pinned_nbytes

    def close(self) -> None:
        """Let the loader go; its workers end with it."""
        del self._loader


class Dali:
    """DALI's pipeline, which decodes on the JPEG engines, on SMs and on CPU threads."""

    group = 1

    def __init__(self, trainer: Trainer, settings: Settings, _pace: Pace) -> None:
        from fastfeed_bench.systems.gpu_dali import Work, endless, note

        self._trainer = trainer
        raw = settings["source"] == "raw"
        files = sorted(Path(settings["files"]).iterdir()) if raw else []
        photos = [] if raw else photos_of(settings["photos"])
        work = Work(
            files=files or [photo.path for photo in photos],
            labels=settings["labels"] if raw else [photo.label for photo in photos],
            batch=trainer.network.batch,
            threads=settings["threads"],
            hw_load=settings.get("hw_load", 0.0),
            flip=True,
            normalised=settings["out"] == "float16",
            side=settings["side"] if raw else None,
        )
        self._out = settings["out"]
        self._batches: Iterator[Tensors] | None = endless(work)
        told = {"hw_load": "-", **settings, "batch": trainer.network.batch}
        self.note = f"{note(told)}, {settings['out']} out"

    def epoch(self, steps: int) -> Iterator[Batch]:
        """Return so many of its batches; two or three lie ready at the start, as it keeps them."""
        assert self._batches is not None  # noqa: S101 - it was closed
        batches = islice(self._batches, steps)
        if self._out == "float16":
            return ((pictures.to(torch.bfloat16), labels) for pictures, labels in batches)
        return finished(batches, self._trainer)

    def pinned_bytes(self) -> int | None:
        """Return None: DALI does not tell."""
        return None

    def close(self) -> None:
        """Let the pipeline go."""
        self._batches = None


_WAYS: dict[str, Callable[[Trainer, Settings, Pace], Way]] = {
    "synthetic": Made,
    "fastfeed": Fastfeed,
    "fastfeed-gpu": Fastfeed,
    "torch": Torch,
    "dali-gpu": Dali,
    "dali-gpu-wide": Dali,
    "torchvision-gpu": Torchvision,
}
