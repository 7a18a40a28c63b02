"""Curves for TensorBoard, and for whatever else has its writer's `add_scalar`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fastfeed.errors import OptionError
from fastfeed.exports.export import Export, collector_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.exports.export import Measured
    from fastfeed.stats import Delivery, Snapshot, Stats


class Writer(Protocol):
    """What `torch.utils.tensorboard.SummaryWriter` has, and others that are like it."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None) -> Any:
        """Add a point to a curve."""
        ...


def tensorboard(
    loader: Measured, writer: Writer, *, every: int = 100, prefix: str = "fastfeed"
) -> Export:
    """Write the loader's figures of the last `every` batches, after each so many.

    The curves lie over the number of batches that the loop was given so far, over all epochs.
    """
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise OptionError(f"every={every!r} must be a number of batches from 1 up")
    if not callable(getattr(writer, "add_scalar", None)):
        raise OptionError(
            f"a {type(writer).__name__} has no add_scalar",
            way_out="Give a torch.utils.tensorboard.SummaryWriter",
        )
    collector = collector_of(loader)
    return Export(loader, collector.observe(_Scalars(collector, writer, every, prefix)))


class _Scalars:
    def __init__(self, collector: Stats, writer: Writer, every: int, prefix: str) -> None:
        self._collector, self._writer, self._every, self._prefix = collector, writer, every, prefix
        self._before = collector.snapshot()
        self._left = every

    def __call__(self, delivery: Delivery) -> None:  # noqa: ARG002 - the counts say it all
        self._left -= 1
        if self._left:
            return
        self._left = self._every
        now = self._collector.snapshot()
        for name, value in curves(now.since(self._before)):
            self._writer.add_scalar(f"{self._prefix}/{name}", value, now.batches)
        self._before = now


def curves(window: Snapshot) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each curve."""
    yield "samples_per_s", window.samples_per_s
    yield "waited_percent", 100 * window.waited_share
    for name in ("p50", "p95", "p99", "max"):
        yield f"wait_ms/{name}", 1e3 * float(getattr(window.wait, f"{name}_s"))
    if window.workers:
        yield "batches_ready", window.depth.mean
        busy = sum(one.busy.total_s for one in window.workers)
        total = busy + window.blocked_in_s + window.blocked_out_s
        yield "workers_busy_percent", 100 * busy / total if total else 0.0
    for name, spread in window.steps.items():
        if spread.count:
            yield f"step_ms/{name}", 1e3 * spread.total_s / spread.count
