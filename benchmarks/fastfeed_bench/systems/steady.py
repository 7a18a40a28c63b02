"""steady: what the process and its workers hold, early and late in a long run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfeed_bench.consume import read_tensor
from fastfeed_bench.processes import (
    children,
    descriptors,
    resident_bytes,
    shared_bytes,
    threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

_QUANTITIES: dict[str, Callable[[int], float]] = {
    "descriptors": descriptors,
    "threads": threads,
    "shared_mb": lambda pid: shared_bytes(pid) / 1e6,
    "resident_mb": lambda pid: resident_bytes(pid) / 1e6,
}


@dataclass(slots=True)
class SteadySession:
    """Each run reads the quantity a little later in one endless run of batches."""

    note: str
    batches: Iterator[Any]
    quantity: str
    step: int
    """Batches between two readings."""
    samples: int = 0

    def run(self) -> Mapping[str, float]:
        """Consume some batches, then sum the quantity over this process and its workers."""
        self._consume(self.step)
        read = _QUANTITIES[self.quantity]
        return {"value": sum(map(read, [os.getpid(), *children()]))}

    def evidence(self) -> Evidence:
        """Describe a batch."""
        return {"batch": self._consume(1)}

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""

    def _consume(self, count: int) -> int:
        size = 0
        for _ in range(count):
            batch = next(self.batches)
            read_tensor(batch["bin"].data)
            size = len(batch["bin"])
        return size


def session(settings: Settings) -> SteadySession:
    """Return the session, `settings["first"]` batches into the run."""
    import fastfeed as ff

    loader = ff.DataLoader(
        ff.ShardDataset(settings["folder"], fields={"bin": ff.Bytes("bin")}),
        batch_size=settings["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=settings["workers"],
        persistent_workers=True,
    )

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    made = SteadySession(
        note=f"fastfeed {ff.__version__}; batches {settings['first']:,} and on, "
        f"num_workers={settings['workers']}",
        batches=endless(),
        quantity=settings["quantity"],
        step=settings["step"],
    )
    made.skip(settings["first"])
    return made
