"""train-feed by torch's loader, tuned: decode on the CPU, or by torchvision on the GPU.

Pictures arrive as uint8; flip and normalisation are done by one compiled kernel of the trainer's,
and copies run on a stream beside the training, as the usual prefetchers have it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fastfeed_bench.machine import versions
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.systems.gpu_jpeg import decoded, encoded_loader, torchvision_note
from fastfeed_bench.systems.gpu_meter import new_stream
from fastfeed_bench.systems.jpeg_torch import stack_as_stored
from fastfeed_bench.windows import SIDE, draw_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from fastfeed_bench.model import Settings
    from fastfeed_bench.train import Batch, Pace, Trainer

Tensors = Sequence[torch.Tensor]
"""Pictures and labels."""


class Counted(Sampler[int]):
    """Random indices, as many as the next epoch is to have."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        rounds = -(-self.count // self._samples)
        orders = (torch.randperm(self._samples).tolist() for _ in range(rounds))
        return islice(chain.from_iterable(orders), self.count)


class Photos(Dataset["tuple[torch.Tensor, int]"]):
    """Pictures that are cut and resized with torch's own antialiased uint8 kernel."""

    def __init__(self, load: Callable[[int], NDArray[np.uint8]], labels: Sequence[int]) -> None:
        self._load = load
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = self._load(index)
        left, top, width, height = draw_window(picture.shape[1], picture.shape[0], random)
        cut = torch.from_numpy(picture[top : top + height, left : left + width])[None]
        resize = torch.ops.aten._upsample_bilinear2d_aa  # noqa: SLF001 - torchvision's own, called directly
        # Seen as a batch first and permuted then, so that the kernel writes channels last as well.
        resized: torch.Tensor = resize(cut.permute(0, 3, 1, 2), [SIDE, SIDE], False)[0]
        return resized, self._labels[index]


def jpeg_photos(settings: Settings) -> Photos:
    """Return the photos of the class folders, decoded with simplejpeg."""
    import simplejpeg

    files = photos_of(settings["photos"])

    def load(index: int) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = simplejpeg.decode_jpeg(files[index].path.read_bytes())
        return picture

    return Photos(load, [photo.label for photo in files])


def raw_photos(settings: Settings) -> Photos:
    """Return the ready-made pictures: one array, mapped, so that not even a read is needed."""
    array = np.load(settings["array"], mmap_mode="c")
    return Photos(array.__getitem__, settings["labels"])


class Torch:
    """torch's loader, tuned: pinned memory, persistent workers, four batches ahead each."""

    def __init__(self, trainer: Trainer, settings: Settings, _pace: Pace) -> None:
        self._trainer = trainer
        self.group = settings["workers"]
        raw = settings["source"] == "raw"
        photos = (raw_photos if raw else jpeg_photos)(settings)
        self._sampler = Counted(len(photos))
        self._loader = DataLoader(
            photos,
            batch_size=trainer.network.batch,
            sampler=self._sampler,
            num_workers=self.group,
            collate_fn=stack_as_stored,
            pin_memory=trainer.device.type == "cuda",
            persistent_workers=True,
            prefetch_factor=4,
        )
        used = versions(("torch",) if raw else ("torch", "simplejpeg"))
        self.note = (
            f"{', '.join(' '.join(one) for one in used.items())}; num_workers={self.group}, "
            "prefetch_factor=4, pin_memory, persistent, resize by torch's uint8 kernel, "
            "copied on a stream of its own, normalised by a compiled kernel"
        )

    def epoch(self, steps: int) -> Iterator[Batch]:
        """Return the batches of an epoch of so many."""
        self._sampler.count = steps * self._trainer.network.batch
        reset_pinned()
        return finished(sent(self._loader, self._trainer.device), self._trainer)

    def pinned_bytes(self) -> int | None:
        """Return the most of torch's pinned memory that was in use during the last epoch."""
        return pinned_in_use()

    def close(self) -> None:
        """Let the loader go; its workers end with it."""
        del self._loader


class Torchvision:
    """Workers read the files, torchvision decodes on the GPU in the trainer's thread."""

    def __init__(self, trainer: Trainer, settings: Settings, _pace: Pace) -> None:
        self._trainer = trainer
        self.group = 1  # nothing is decoded ahead
        photos = photos_of(settings["photos"])
        self._sampler = Counted(len(photos))
        told = {**settings, "batch": trainer.network.batch, "sampler": self._sampler}
        self._loader = encoded_loader(photos, told)
        self.note = torchvision_note(settings)

    def epoch(self, steps: int) -> Iterator[Batch]:
        """Return the batches of an epoch of so many."""
        self._sampler.count = steps * self._trainer.network.batch
        return finished(decoded(self._loader, self._trainer.device), self._trainer)

    def pinned_bytes(self) -> int | None:
        """Return nothing: the encoded bytes are not pinned."""
        return 0

    def close(self) -> None:
        """Let the loader go; its workers end with it."""
        del self._loader


def sent(batches: Iterable[Tensors], device: torch.device) -> Iterator[Tensors]:
    """Yield batches on the device, copied on a stream of their own."""
    if device.type != "cuda":
        yield from batches
        return
    side, main = new_stream(device), torch.cuda.current_stream(device)
    for batch in batches:
        with torch.cuda.stream(side):
            moved = [tensor.to(device, non_blocking=True) for tensor in batch]
        main.wait_stream(side)
        for tensor in moved:
            tensor.record_stream(main)
        yield moved


def finished(batches: Iterable[Tensors], trainer: Trainer) -> Iterator[Batch]:
    """Yield uint8 batches flipped by chance and normalised."""
    for pictures, labels in batches:
        flips = torch.rand(len(pictures), device=pictures.device) < 0.5
        yield trainer.normalise(pictures, flips), labels


def reset_pinned() -> None:
    """Begin to watch torch's pinned memory anew."""
    reset = getattr(torch.cuda, "reset_peak_host_memory_stats", None)
    if reset is not None and torch.cuda.is_available():
        reset()


def pinned_in_use() -> int | None:
    """Return the most bytes of torch's pinned memory in use since then, None if it cannot tell."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None or not torch.cuda.is_available():
        return None
    most: int | None = stats().get("active_bytes.peak")
    return most
