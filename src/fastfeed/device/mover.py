"""Batches to the device one by one, for a loop without workers: moved when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed.device.at_work import at_work

if TYPE_CHECKING:
    from fastfeed.device.output import Output
    from fastfeed.device.stage import Stage
    from fastfeed.policy import FeedReport
    from fastfeed.tuner.split import SplitTuner


class Mover:
    """A stage and an output in the consumer's thread."""

    def __init__(self, stage: Stage, output: Output, tuner: SplitTuner) -> None:
        self._stage = stage
        self._output = output
        self._tuner = tuner

    @property
    def share(self) -> float:
        """Share of the pictures that the GPU decodes; none once its decoder was given up."""
        return self._tuner.share

    def move(self, batch: Any) -> tuple[Any, FeedReport]:
        """Return a batch on the device, and what was met on the way.

        Raises EmptyBatchError if all of its samples were bad and left out; `take_report` has them.
        """
        with at_work():
            moved, _held = self._stage.move(batch)
        moved.mark.wait()
        return self._output.deliver(moved), moved.report

    def take_report(self) -> FeedReport:
        """Return what was met in a batch of which nothing was left."""
        return self._stage.take_report()
