"""Batches to the device one by one, for a loop without workers: moved when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastfeed.device.output import Output
    from fastfeed.device.stage import Stage
    from fastfeed.policy import FeedReport


class Mover:
    """A stage and an output in the consumer's thread; `share` is what the GPU decodes."""

    def __init__(self, stage: Stage, output: Output, share: float) -> None:
        self._stage = stage
        self._output = output
        self.share = share

    def move(self, batch: Any) -> tuple[Any, FeedReport]:
        """Return a batch on the device, and what was met on the way.

        Raises EmptyBatchError if all of its samples were bad and left out.
        """
        moved = self._stage.move(batch)
        moved.mark.wait()  # the host's memory is let go
        return self._output.deliver(moved), moved.report
