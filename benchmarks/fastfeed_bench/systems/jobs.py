"""diagnose: training jobs with one bottleneck each, and the same jobs with its cure.

A step that waits stands for a device at work: the host has only submitted it. What a job costs is
so large beside what machines do meanwhile that only one verdict is right; where a sample's cost is
the machine's, the step's is a part of it.
"""

from __future__ import annotations

import gc
import http.client
import mmap
import os
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

import fastfeed as ff
from fastfeed_bench.link import Link
from fastfeed_bench.memory import MemoryLimit

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

_MIB = 1 << 20
_PAGES = 256
_LATENCY_S, _WORK_S, _RATE = 0.01, 0.003, 20e6
# Samples whose cost is measured, and those before, which import and open what is needed.
_MEASURED, _WARM = 32, 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs, and how."""

    photos: str
    """Folder of photos in class folders."""
    shards: str
    """Folder of the same photos as shards."""
    cured: bool
    """Whether the first advice was followed."""
    stack: ExitStack
    """Ends what the job started, after its last step."""
    device: str = "cuda"
    """Where the step of a job for a GPU computes."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its verdicts, largest first, words of the first advice, and how it is made."""

    verdicts: tuple[str, ...]
    advice: str
    """Words that the first advice must hold: the cure is just what they say."""
    make: Callable[[Place], tuple[Any, Callable[[Any], Any]]]
    """Returns loader and step."""


class Rows(Dataset[torch.Tensor]):
    """Rows that cost what `work` does, which is given the index."""

    def __init__(self, work: Callable[[int], object]) -> None:
        self._work = work

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self._work(index)
        return torch.full((64,), float(index))


class Pictures(Dataset[torch.Tensor]):
    """Photos by Pillow, whole, then made small: what most people begin with."""

    def __init__(self, folder: str) -> None:
        self._paths = sorted(Path(folder).rglob("*.jpg"))
        for path in self._paths:  # so that they come from memory, not from a disk
            path.read_bytes()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        from PIL import Image

        with Image.open(self._paths[index]) as picture:
            small = picture.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small))


class FarFiles(Dataset[torch.Tensor]):
    """Files of a server, a request each; what is done with them may cost more."""

    def __init__(self, folder: str, port: int, *, seconds: float = 0.0) -> None:
        self._paths = sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*.jpg"))
        self._port = port
        self._seconds = seconds
        self._connection: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        self._connection.request("GET", "/" + self._paths[index].replace(" ", "%20"))
        content = self._connection.getresponse().read()
        compute(self._seconds)
        return torch.frombuffer(bytearray(content[:64]), dtype=torch.uint8)


class Pages(Dataset[torch.Tensor]):
    """Samples of 1 MiB, each with some pages from all over a file that is mapped into memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pages: np.ndarray | None = None

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._pages is None:
            with Path(self._path).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            mapped.madvise(mmap.MADV_RANDOM)
            self._pages = np.frombuffer(mapped, np.uint8).reshape(-1, mmap.PAGESIZE)
        sample = torch.zeros(_MIB, dtype=torch.uint8)
        draw = np.random.default_rng(index).integers(len(self._pages), size=_PAGES)
        sample[:_PAGES] = torch.from_numpy(self._pages[draw, 0])
        return sample


def compute(seconds: float) -> None:
    """Keep a core busy in Python; time in which others have the core does not count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def cost_of(data: Dataset[Any]) -> float:
    """Return what a sample costs on this machine: seconds of a core, the mean of some."""
    begin = 0.0
    for index in range(-_WARM, _MEASURED):
        if index == 0:
            begin = time.thread_time()
        data[index % _MEASURED]
    return (time.thread_time() - begin) / _MEASURED


def waits(seconds: float) -> Callable[[Any], None]:
    """Return a step for which a device would take so long a sample; the host has nothing to do."""

    def step(batch: Any) -> None:
        samples = next(iter(batch.values())) if isinstance(batch, dict) else batch
        time.sleep(seconds * len(samples))

    return step


def _far_files(place: Place) -> tuple[Any, Any]:
    return _far(place, seconds=0.0), waits(0.0015)


def _far_files_and_work(place: Place) -> tuple[Any, Any]:
    return _far(place, seconds=_WORK_S), waits(0.0015)


def _far(place: Place, *, seconds: float) -> Any:
    link = place.stack.enter_context(Link(place.photos, latency=_LATENCY_S))
    files = FarFiles(place.photos, link.port, seconds=seconds)
    return ff.DataLoader(files, batch_size=16, num_workers=12 if place.cured else 2)


def _far_shards(place: Place) -> tuple[Any, Any]:
    link = place.stack.enter_context(Link(place.shards, rate=_RATE, latency=_LATENCY_S))
    folder = place.stack.enter_context(tempfile.TemporaryDirectory())
    cache = ff.Cache(folder) if place.cured else None
    data = ff.ShardDataset(f"{link.url}/", {"data": ff.Bytes("jpg")}, cache=cache)
    loader: Any = ff.DataLoader(data, batch_size=16, num_workers=2, collate_fn=_beginnings)
    if place.cured:  # the first epoch brings the shards
        deque(loader, maxlen=0)
    return loader, waits(0.0015)


def _beginnings(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack(
        [torch.frombuffer(bytearray(one["data"][:64]), dtype=torch.uint8) for one in samples]
    )


def _waiting_rows(place: Place) -> tuple[Any, Any]:
    rows = Rows(lambda _: time.sleep(_LATENCY_S))
    return ff.DataLoader(rows, batch_size=16, num_workers=12 if place.cured else 2), waits(0.0015)


def _decode_in_loop(place: Place) -> tuple[Any, Any]:
    workers = ff.AUTO if place.cured else 0
    return ff.DataLoader(Pictures(place.photos), batch_size=8, num_workers=workers), waits(0.005)


def _decode_by_one(place: Place) -> tuple[Any, Any]:
    workers = 2 if place.cured else 1
    data = Pictures(place.photos)
    # More than one worker makes, and less than two do.
    return ff.DataLoader(data, batch_size=8, num_workers=workers), waits(0.6 * cost_of(data))


def _decode_whole(place: Place) -> tuple[Any, Any]:
    data: Any = Pictures(place.photos)
    step = waits(0.3 * cost_of(data))  # of two workers a picture takes half of its cost
    if place.cured:
        fields = {"image": ff.Image("jpg", ff.RandomResizedCrop(224))}
        data = ff.ShardDataset(place.shards, fields=fields)
    return ff.DataLoader(data, batch_size=8, num_workers=2), step


def _gil(place: Place) -> tuple[Any, Any]:
    return _python_threads(place), waits(0.0005)


def _python_threads(place: Place) -> Any:
    rows = Rows(lambda _: sum(range(60_000)))
    kind: Any = "process" if place.cured else "thread"
    return ff.DataLoader(rows, batch_size=16, num_workers=2, worker_kind=kind)


def _one_slow_worker(place: Place) -> tuple[Any, Any]:
    slow = 0.0002 if place.cured else 0.004

    def work(_: int) -> None:
        info = get_worker_info()
        compute(slow if info is not None and info.id == 1 else 0.0002)

    return ff.DataLoader(Rows(work), batch_size=8, num_workers=2), waits(0.0006)


def _memory_pressure(place: Place) -> tuple[Any, Any]:
    # The limit first: pages of a file count for the group that wrote them.
    place.stack.enter_context(MemoryLimit(_LIMIT))
    folder = place.stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home()))
    path = Path(folder) / "pages"
    with path.open("wb") as file:
        for _ in range(_FILE // _MIB):
            file.write(os.urandom(_MIB))
        os.fsync(file.fileno())
    depth = 1 if place.cured else 24
    loader: Any = ff.DataLoader(
        Pages(str(path)), batch_size=4, num_workers=2, prefetch_factor=depth
    )
    return loader, waits(0.0005)


def _collecting(place: Place) -> tuple[Any, Any]:
    kept = [[number] for number in range(200_000)]
    if place.cured:
        gc.collect()
        gc.freeze()
        place.stack.callback(gc.unfreeze)

    def step(batch: torch.Tensor) -> int:
        compute(0.00005 * len(batch))
        return gc.collect() + len(kept)

    return [torch.ones(64, 8) for _ in range(40)], step


def _tiny_operators(place: Place) -> tuple[Any, Any]:
    def step(batch: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            batch = batch * 1.001
        return batch

    return [torch.ones(64, 8) for _ in range(40)], torch.compile(step) if place.cured else step


def _small_batches(place: Place) -> tuple[Any, Any]:
    def step(batch: torch.Tensor) -> None:
        compute(0.01 + 0.0001 * len(batch))

    return [torch.ones(32 if place.cured else 2, 8) for _ in range(40)], step


def _heavy_step(place: Place) -> tuple[Any, Any]:
    weights = torch.randn(512, 512, dtype=torch.float32 if place.cured else torch.float64)

    def step(batch: torch.Tensor) -> torch.Tensor:
        rows = batch.to(weights.dtype)
        for _ in range(4):
            rows = rows @ weights
        return rows

    return [torch.ones(512, 512) for _ in range(8)], step


def _decode_then_small(place: Place) -> tuple[Any, Any]:
    workers = ff.AUTO if place.cured else 0
    return ff.DataLoader(
        Pictures(place.photos), batch_size=4, num_workers=workers
    ), lambda _: compute(0.006)


def _gil_then_small(place: Place) -> tuple[Any, Any]:
    return _python_threads(place), lambda _: compute(0.002)


_WAITING = "waiting in user code"
_PREPROCESSING, _STORAGE, _SMALL = "preprocessing-bound", "storage-bound", "too small batches"
_LIMIT, _FILE = 560 * _MIB, 400 * _MIB

JOBS: dict[str, Job] = {
    "slow storage, files": Job((_STORAGE,), "Have more reads under way", _far_files),
    "slow storage, shards": Job((_STORAGE,), "ShardDataset(cache=", _far_shards),
    "waiting in user code": Job((_WAITING,), "Have more samples under way", _waiting_rows),
    "slow decode, in the loop": Job((_PREPROCESSING,), "num_workers=ff.AUTO", _decode_in_loop),
    "slow decode, one worker": Job((_PREPROCESSING,), "num_workers=2", _decode_by_one),
    "slow decode, whole pictures": Job((_PREPROCESSING,), "ff.Image", _decode_whole),
    "GIL": Job(("GIL",), 'worker_kind="process"', _gil),
    "one slow worker": Job(("one slow worker",), "Look at what worker 1 does", _one_slow_worker),
    "memory pressure": Job(("memory pressure",), "a smaller prefetch_factor", _memory_pressure),
    "garbage collection": Job(("garbage collection",), "gc.freeze()", _collecting),
    "many tiny operators": Job(("submission-bound",), "torch.compile", _tiny_operators),
    "too small batches": Job((_SMALL,), "Use larger batches", _small_batches),
    "heavy step": Job(("GPU-bound",), "Make the step itself cheaper", _heavy_step),
    "mixed: storage, then decode": Job(
        (_STORAGE, _PREPROCESSING), "Have more reads under way", _far_files_and_work
    ),
    "mixed: decode, then small batches": Job(
        (_PREPROCESSING, _SMALL), "num_workers=ff.AUTO", _decode_then_small
    ),
    "mixed: GIL, then small batches": Job(
        ("GIL", _SMALL), 'worker_kind="process"', _gil_then_small
    ),
}
