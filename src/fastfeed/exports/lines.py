"""A line for the log every now and then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.exports.export import Export, collector_of

if TYPE_CHECKING:
    from fastfeed.exports.export import Measured
    from fastfeed.stats import Delivery, Snapshot, Stats

_log = logging.getLogger("fastfeed")


def log(
    loader: Measured,
    *,
    every_s: float = 30.0,
    logger: logging.Logger | None = None,
    level: int = logging.INFO,
) -> Export:
    """Log what the loader did in the last `every_s` seconds, when a batch is delivered after them.

    There is no thread: a loop that takes no batches logs nothing. `logger` is "fastfeed" if none is
    given, at INFO, which Python's logging shows only where it was asked to.
    """
    if not every_s >= 0:
        raise OptionError(f"every_s={every_s!r} is no number of seconds")
    collector = collector_of(loader)
    lines = _Lines(collector, every_s, _log if logger is None else logger, level)
    return Export(loader, collector.observe(lines))


class _Lines:
    def __init__(
        self, collector: Stats, every_s: float, logger: logging.Logger, level: int
    ) -> None:
        self._collector, self._every_s = collector, every_s
        self._logger, self._level = logger, level
        self._before = collector.snapshot()
        self._due: float | None = None

    def __call__(self, delivery: Delivery) -> None:
        if self._due is None:
            self._due = delivery.asked + self._every_s
        if delivery.got < self._due:
            return
        self._due = delivery.got + self._every_s
        now = self._collector.snapshot()
        self._logger.log(self._level, "%s", line(now.since(self._before)))
        self._before = now


def line(window: Snapshot) -> str:
    """Return what was measured as one line."""
    waits = (window.wait_p50_s, window.wait_p99_s, window.wait_max_s)
    p50, p99, longest = (f"{seconds * 1e3:.2f} ms" for seconds in waits)
    words = [
        f"fastfeed: {window.samples_per_s:,.0f} samples/s",
        f"the loop waited {window.waited_share:.1%} of its time",
        f"p50 {p50}, p99 {p99}, max {longest}",
    ]
    if window.workers and window.depth.asked:
        words.append(f"{window.depth.mean:.1f} batches ready")
    total = sum(window.steps_s.values())
    if total:
        parts = (f"{name} {seconds / total:.0%}" for name, seconds in window.steps_s.items())
        words.append(f"time by step: {' '.join(parts)}")
    return ", ".join(words)
