"""The session of anything that is iterated: epochs timed from the call to the last batch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastfeed_bench.model import Evidence


@dataclass(frozen=True, slots=True)
class LoaderSession:
    """One run is one epoch, consumed; its figure is samples a second."""

    note: str
    samples: int
    """Samples of an epoch."""
    epoch: Callable[[], Iterable[Any]]
    """Begins an epoch and returns its batches."""
    consume: Callable[[Any], int]
    """Reads every byte of a batch and returns its samples."""
    describe: Callable[[], Evidence]
    """The evidence of equal work."""
    dropped: int = 0
    """Most samples that may be missing from an epoch, for a system that only has full batches."""

    def run(self) -> Mapping[str, float]:
        """Consume one epoch."""
        begin = time.perf_counter()
        samples = sum(map(self.consume, self.epoch()))
        seconds = time.perf_counter() - begin
        if not self.samples - self.dropped <= samples <= self.samples:
            raise RuntimeError(f"an epoch had {samples:,} samples, not {self.samples:,}")
        return {"value": samples / seconds}

    def evidence(self) -> Evidence:
        """Describe what is delivered."""
        return self.describe()

    def close(self) -> None:
        """Nothing is left to do: the process ends next, and its workers with it."""
