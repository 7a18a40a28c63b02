"""startup: from nothing to the first batch, and what a worker takes by then."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.consume import read_tensor
from fastfeed_bench.processes import children, unshared_bytes
from fastfeed_bench.systems.jpeg_torch import pillow_recipe, stack_as_stored
from fastfeed_bench.windows import SIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fastfeed_bench.consume import Tensors
    from fastfeed_bench.model import Evidence, Settings


@dataclass(frozen=True, slots=True)
class StartupSession:
    """One run makes data set and loader anew; its figure is seconds to the first batch."""

    note: str
    make: Callable[[], Any]
    """Makes the data set and the loader."""
    tensors: Callable[[Any], Tensors]
    """The tensors of a batch."""
    context: str | None = None
    """How workers start, None for torch's default."""

    def run(self) -> Mapping[str, float]:
        """Take the first batch, then end the workers."""
        idle = _idle_worker(self.context)
        begin = time.perf_counter()
        loader = self.make()
        batches = iter(loader)
        for tensor in self.tensors(next(batches)):
            read_tensor(tensor)
        seconds = time.perf_counter() - begin
        workers = [unshared_bytes(pid) for pid in children()]
        most = max(workers, default=0)
        return {"value": seconds, "unshared_mb_above_idle": max(0, most - idle) / 1e6}

    def evidence(self) -> Evidence:
        """Describe the first batch."""
        batch = next(iter(self.make()))
        forms = [f"{list(tensor.shape)} {tensor.dtype}" for tensor in self.tensors(batch)]
        return {"first batch": forms}

    def close(self) -> None:
        """Nothing is left open between runs."""


class _Nothing(Dataset[int]):
    """Needs nothing: its worker is one that has only imported torch."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return index


def _idle_worker(context: str | None) -> int:
    """Return the unshared bytes of a worker that has only imported torch."""
    batches = iter(DataLoader(_Nothing(), num_workers=1, multiprocessing_context=context))
    next(batches)
    return max((unshared_bytes(pid) for pid in children()), default=0)


# Photos


@dataclass(frozen=True, slots=True)
class Folder(Dataset[tuple[torch.Tensor, int]]):
    """A folder of class folders, looked through at the start as torchvision's ImageFolder does."""

    files: list[tuple[str, int]]
    recipe: Callable[[bytes], torch.Tensor]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        return self.recipe(Path(path).read_bytes()), label


def _folder(settings: Settings) -> Folder:
    root = Path(settings["photos"])
    files: list[tuple[str, int]] = []
    for label, folder in enumerate(sorted(root.iterdir())):
        files += [(entry.path, label) for entry in os.scandir(folder)]
    return Folder(sorted(files), pillow_recipe())


def torch_folder(settings: Settings) -> StartupSession:
    """Return the session of torch's loader over a folder of photos."""
    return _folder_session(DataLoader, f"torch {torch.__version__}", settings)


def fastfeed_folder(settings: Settings) -> StartupSession:
    """Return the session of our loader over the same data set."""
    import fastfeed

    return _folder_session(fastfeed.DataLoader, f"fastfeed {fastfeed.__version__}", settings)


def _folder_session(kind: Any, name: str, settings: Settings) -> StartupSession:
    _folder(settings)  # imports are no part of the figure
    return StartupSession(
        note=f"{name}; num_workers={settings['workers']}, batch_size={settings['batch']}",
        make=lambda: kind(
            _folder(settings),
            batch_size=settings["batch"],
            shuffle=True,
            num_workers=settings["workers"],
            collate_fn=stack_as_stored,
        ),
        tensors=tuple,
    )


def fastfeed_shards(settings: Settings) -> StartupSession:
    """Return the session of our loader over shards of photos."""
    import fastfeed as ff

    fields: dict[str, Any] = {
        "image": ff.Image("jpg", ff.RandomResizedCrop(SIDE)),
        "label": ff.Int("cls"),
    }
    return StartupSession(
        note=f"fastfeed {ff.__version__}, shards; num_workers={settings['workers']}, "
        f"batch_size={settings['batch']}",
        make=lambda: ff.DataLoader(
            ff.ShardDataset(settings["shards_folder"], fields=fields),
            batch_size=settings["batch"],
            shuffle=True,
            num_workers=settings["workers"],
        ),
        tensors=lambda batch: (batch["image"], batch["label"]),
    )


# Ten million samples


@dataclass(frozen=True, slots=True)
class Indexed(Dataset[torch.Tensor]):
    """Samples of one size in files of one length, found by arithmetic: the least that torch needs.

    Peers of a real index have more to do; this one is the fastest that can be.
    """

    paths: list[str]
    per_file: int
    stride: int
    size: int

    def __len__(self) -> int:
        return len(self.paths) * self.per_file

    def __getitem__(self, index: int) -> torch.Tensor:
        number, row = divmod(index, self.per_file)
        data = torch.empty(self.size, dtype=torch.uint8)
        with open(self.paths[number], "rb", buffering=0) as file:  # noqa: PTH123 - as users do
            os.preadv(file.fileno(), [data.numpy().data], row * self.stride + 512)
        return data


def torch_indexed(settings: Settings) -> StartupSession:
    """Return the session of torch's loader, shuffled, over the ten million samples."""
    root = Path(settings["folder"])
    return StartupSession(
        note=f"torch {torch.__version__}; num_workers={settings['workers']}, offsets by arithmetic",
        make=lambda: DataLoader(
            Indexed(
                sorted(str(path) for path in root.glob("*.tar")),
                settings["per_shard"],
                settings["stride"],
                settings["size"],
            ),
            batch_size=settings["batch"],
            shuffle=True,
            num_workers=settings["workers"],
        ),
        tensors=lambda batch: (batch.reshape(-1),),
    )


def fastfeed_indexed(settings: Settings) -> StartupSession:
    """Return the session of ours, shuffled, over the same samples with their index."""
    import fastfeed as ff

    return StartupSession(
        note=f"fastfeed {ff.__version__}; num_workers={settings['workers']}, index and manifest",
        make=lambda: ff.DataLoader(
            ff.ShardDataset(settings["folder"], fields={"bin": ff.Bytes("bin")}),
            batch_size=settings["batch"],
            shuffle=True,
            num_workers=settings["workers"],
        ),
        tensors=lambda batch: (torch.cat(list(batch["bin"])),),
    )


# An array, and workers that are spawned


@dataclass(frozen=True, slots=True)
class Rows(Dataset[torch.Tensor]):
    """A data set that holds all its samples in one array."""

    array: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.array[index])


def torch_spawned(settings: Settings) -> StartupSession:
    """Return the session of torch's loader, with spawned workers, over the array."""
    return _spawned_session(DataLoader, f"torch {torch.__version__}", settings)


def fastfeed_spawned(settings: Settings) -> StartupSession:
    """Return the session of our loader, with spawned workers, over the array."""
    import fastfeed

    return _spawned_session(fastfeed.DataLoader, f"fastfeed {fastfeed.__version__}", settings)


def _spawned_session(kind: Any, name: str, settings: Settings) -> StartupSession:
    columns = 1000
    rows = settings["nbytes"] // (columns * 4)
    array = np.random.default_rng(0).random((rows, columns), np.float32)
    return StartupSession(
        note=f"{name}; num_workers={settings['workers']}, batch_size={settings['batch']}, spawn",
        make=lambda: kind(
            Rows(array),
            batch_size=settings["batch"],
            shuffle=True,
            num_workers=settings["workers"],
            multiprocessing_context="spawn",
        ),
        tensors=lambda batch: (batch,),
        context="spawn",
    )
