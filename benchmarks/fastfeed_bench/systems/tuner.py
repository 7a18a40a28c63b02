"""tuner: num_workers=AUTO as it settles, and the same loop with every fixed number of workers.

The loop's step is a wait of a given time, as for a device; so the loader has the cores to itself.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

import fastfeed as ff
from fastfeed_bench.consume import digest_epoch, read_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

_COUNT = 1_000_000
"""Samples of a made-up data set: no run comes to its end."""
_DESCRIBED = 8
"""Batches that are compared."""
_NEAR = 0.97
"""As many workers are enough as come so near the best number."""
_CLOSE = 0.9
"""Numbers of workers that are measured again in turns, since they may be the best or enough."""


# The jobs


@dataclass(frozen=True, slots=True)
class Waiting(Dataset[torch.Tensor]):
    """Samples that take a while to come, and no core: storage that is far away."""

    wait_s: float

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        return torch.tensor([index])


@dataclass(frozen=True, slots=True)
class SlowFiles(Dataset[torch.Tensor]):
    """Parts of files on a storage that lets each read wait."""

    files: list[Path]
    size: int
    wait_s: float

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.files[index % len(self.files)]
        # Some reads wait half as long, others half as long again.
        time.sleep(self.wait_s * (0.5 + (index * 7919 % 101) / 100))
        offset = index * 7919 * 4096 % (path.stat().st_size - self.size)
        with path.open("rb") as file:
            file.seek(offset)
            return torch.frombuffer(bytearray(file.read(self.size)), dtype=torch.uint8)


class Crowded(Dataset[torch.Tensor]):
    """Samples of a server that takes the longer for each, the more ask it at a time."""

    def __init__(self, wait_s: float, crowding: float) -> None:
        self._wait_s, self._crowding = wait_s, crowding
        self._users = multiprocessing.get_context("fork").Value("i", 0)

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        with self._users.get_lock():
            self._users.value += 1
            others = self._users.value - 1
        time.sleep(self._wait_s * (1 + self._crowding * others**2))
        with self._users.get_lock():
            self._users.value -= 1
        return torch.tensor([index])


def _dataset(job: Mapping[str, Any]) -> Any:
    match job["kind"]:
        case "photos":
            crop = ff.RandomResizedCrop(224)
            fields: Any = {"image": ff.Image("jpg", crop), "label": ff.Int("cls")}
            return ff.ShardDataset(job["shards"], fields=fields)
        case "raw":
            return ff.ShardDataset(job["folder"], fields={"bin": ff.Bytes("bin")})
        case "slow files":
            files = sorted(Path(job["folder"]).glob("*.tar"))
            return SlowFiles(files, job["size"], job["wait_s"])
        case "crowded":
            return Crowded(job["wait_s"], job["crowding"])
        case _:
            return Waiting(job["wait_s"])


def _loader(settings: Settings, workers: int) -> Any:
    return ff.DataLoader(
        _dataset(settings["job"]), batch_size=settings["batch"], num_workers=workers
    )


@dataclass(slots=True)
class Loop:
    """A training loop over a loader, epoch after epoch; each step waits for a given time."""

    loader: Any
    step_s: float
    changed: Callable[[], None] = lambda: None
    """Called after every step."""
    batches: Iterator[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = itertools.chain.from_iterable(itertools.repeat(self.loader))

    def run(self, seconds: float, *, least: int = 1) -> float:
        """Train for so long, and so many batches at least; return batches a second."""
        begin = time.perf_counter()
        for done in itertools.count(1):
            read_tree(_tensors(next(self.batches)))
            time.sleep(self.step_s)
            self.changed()
            passed = time.perf_counter() - begin
            if passed >= seconds and done >= least:
                return done / passed
        raise AssertionError


# The two systems


class Auto:
    """One loader with num_workers=AUTO, which goes on in every turn."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loader = _loader(settings, ff.AUTO)
        self._loop = Loop(self._loader, settings["step_s"], self._note_changes)
        self._ran_s = 0.0
        self._begun: float | None = None
        self._changes: list[float] = []
        self._settled, self._settled_at = 0, 0.0
        self.note = f"fastfeed {ff.__version__}; num_workers=AUTO, batch_size={settings['batch']}"

    def evidence(self) -> Evidence:
        """Train until no change has come for a while, then describe what is delivered."""
        quiet_s, limit_s = self._settings["quiet_s"], self._settings["limit_s"]
        while self._now() < limit_s and self._now() - self._settled_s() < quiet_s:
            self._train(1.0)
        self._settled = len(self._changes)
        self._settled_at = self._settled_s()
        return _describe(self._settings)

    def run(self) -> Mapping[str, float]:
        """Train on, and tell how fast and with how many workers."""
        self._train(self._settings["warm_s"])
        rate = self._train(self._settings["run_s"])
        later = len(self._changes) - self._settled
        minutes = max(1.0, (self._now() - self._settled_at) / 60)
        return {
            "value": rate,
            "workers": self._loader.workers_in_use,
            "most_tried": max((made.now for made in self._loader.tuning), default=0),
            "settled_s": self._settled_at,
            "changes": self._settled,
            "changes_a_minute_after": later / minutes,
        }

    def close(self) -> None:
        """End the workers."""
        del self._loop

    def _train(self, seconds: float) -> float:
        self._begun = time.perf_counter()
        rate = self._loop.run(seconds, least=2 * self._loader.workers_in_use)
        self._ran_s, self._begun = self._now(), None
        return rate

    def _now(self) -> float:
        """Return the seconds that were trained for; what other systems took does not count."""
        return self._ran_s + (0.0 if self._begun is None else time.perf_counter() - self._begun)

    def _settled_s(self) -> float:
        return self._changes[-1] if self._changes else 0.0

    def _note_changes(self) -> None:
        missing = len(self._loader.tuning) - len(self._changes)
        self._changes += [self._now()] * missing


class Sweep:
    """Every fixed number of workers, each with a loader of its own, one after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rates: dict[int, list[float]] = {}
        self.note = f"num_workers=1 to {settings['most']}, each fixed"

    def evidence(self) -> Evidence:
        """Measure every number once, then describe what is delivered."""
        for workers in range(1, self._settings["most"] + 1):
            self._rates[workers] = [self._measure(workers, self._settings["run_s"] / 2)]
        return _describe(self._settings)

    def run(self) -> Mapping[str, float]:
        """Measure those again that may be the best or enough; `value` is the best number's rate."""
        for workers in sorted(self._contenders()):
            self._rates[workers].append(self._measure(workers, self._settings["run_s"]))
        middle = self._middle()
        best = max(middle, key=lambda workers: middle[workers])
        enough = min(n for n, rate in middle.items() if rate >= _NEAR * middle[best])
        rates = {f"with_{n}": rate for n, rate in middle.items()}
        return {"value": self._rates[best][-1], "best": best, "fewest": enough, **rates}

    def close(self) -> None:
        """Nothing is left to do: each loader ended with its measurement."""

    def _contenders(self) -> set[int]:
        middle = self._middle()
        close = [n for n, rate in middle.items() if rate >= _CLOSE * max(middle.values())]
        # Of a long plateau the beginning matters, and its best.
        return {*sorted(close)[:3], max(middle, key=lambda workers: middle[workers])}

    def _middle(self) -> dict[int, float]:
        return {workers: statistics.median(rates) for workers, rates in self._rates.items()}

    def _measure(self, workers: int, seconds: float) -> float:
        loop = Loop(_loader(self._settings, workers), self._settings["step_s"])
        # What lies ready at first was not made while the loop ran.
        loop.run(0.3, least=4 * workers)
        return loop.run(seconds, least=4 * workers)


def _describe(settings: Settings) -> Evidence:
    """Return the digest of the first batches, which do not depend on the number of workers."""
    loader = _loader(settings, 1)
    return digest_epoch(map(_tensors, itertools.islice(loader, _DESCRIBED)))


def _tensors(batch: Any) -> Any:
    """Return a batch with raw fields as the tensors that hold their bytes."""
    if isinstance(batch, dict):
        return {name: getattr(value, "data", value) for name, value in batch.items()}
    return batch


def auto_session(settings: Settings) -> Auto:
    """Return the session with AUTO."""
    return Auto(settings)


def sweep_session(settings: Settings) -> Sweep:
    """Return the session with fixed numbers."""
    return Sweep(settings)
