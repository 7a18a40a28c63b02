"""Samples that the device's decoder failed at, made again on the CPU under the policy for those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed.collating.collate import HeapWriter
from fastfeed.errors import EmptyBatchError
from fastfeed.policy import FeedReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed.decoding.defer import DeviceSide


class CpuRepair:
    """Reads and decodes single samples in the trainer's process; it is rare."""

    def __init__(self, dataset: Any, side: DeviceSide) -> None:
        self._dataset = dataset
        self._side = side
        self._feed: Any = None

    def make(self, sample: int, epoch: int) -> Mapping[str, Any] | None:
        """Return a batch of this one sample, None if the policy leaves it out."""
        if self._feed is None:
            self._feed = self._dataset.fastfeed_fetcher(threads=1, device=self._side)
        try:
            batch: Mapping[str, Any] = self._feed.fetch([sample], epoch, HeapWriter())
        except EmptyBatchError:
            return None
        return batch

    def take_report(self) -> FeedReport:
        """Return the bad samples met since the last call."""
        if self._feed is None:
            return FeedReport()
        report: FeedReport = self._feed.take_report()
        report.steps_s.clear()  # they are part of the stage's
        return report
