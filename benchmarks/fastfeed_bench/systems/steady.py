"""steady: what the process and its workers hold, some batches into a long run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfeed_bench.consume import read_tensor
from fastfeed_bench.processes import children, descriptors, resident_bytes, shared_bytes, threads
from fastfeed_bench.windows import SIDE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

_STEP = 20
"""Batches between two readings."""


@dataclass(frozen=True, slots=True)
class SteadySession:
    """Each run reads what is held a little later in one endless run; its figure is resident MB."""

    note: str
    batches: Iterator[dict[str, Any]]
    first: int
    """Batches before the first reading."""

    def run(self) -> Mapping[str, float]:
        """Consume some batches, then sum over this process and its workers."""
        self._consume(_STEP)
        return held()

    def evidence(self) -> Evidence:
        """Go to the first reading and return it."""
        self._consume(self.first)
        return {"first": self.first, **held()}

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""

    def _consume(self, count: int) -> None:
        for _ in range(count):
            for value in next(self.batches).values():
                read_tensor(getattr(value, "data", value))


def held() -> dict[str, float]:
    """Sum over this process and its workers; `value` is resident MB."""
    pids = [os.getpid(), *children()]
    return {
        "value": sum(map(resident_bytes, pids)) / 1e6,
        "shared_mb": sum(map(shared_bytes, pids)) / 1e6,
        "descriptors": sum(map(descriptors, pids)),
        "threads": sum(map(threads, pids)),
        "processes": len(pids),
    }


def session(settings: Settings) -> SteadySession:
    """Return the session over shards of photos or of raw samples."""
    import fastfeed as ff

    photos = {
        "image": ff.Image("jpg", ff.RandomResizedCrop(SIDE), ff.HorizontalFlip()),
        "label": ff.Int("cls"),
    }
    fields: Any = photos if settings["photos"] else {"bin": ff.Bytes("bin")}
    loader: Any = ff.DataLoader(
        ff.ShardDataset(settings["folder"], fields=fields),
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        persistent_workers=True,
    )

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield from loader

    return SteadySession(
        note=f"fastfeed {ff.__version__}; from batch {settings['first']:,} on, "
        f"num_workers={settings['workers']}, batch_size={settings['batch']}",
        batches=endless(),
        first=settings["first"],
    )
