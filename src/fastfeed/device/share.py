"""The share of pictures that the GPU decodes, while the loop runs: timings in, the share out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastfeed.policy import FeedReport
from fastfeed.tuner.split_model import Observation

if TYPE_CHECKING:
    from fastfeed.device.stage import Moved
    from fastfeed.tuner.split import SplitTuner
    from fastfeed.worker import Result


class Share:
    """What each batch is told when it is asked for; used by the consumer's thread."""

    def __init__(self, tuner: SplitTuner, *, lanes: int = 1) -> None:
        """So many `lanes` bring batches to the device side by side."""
        self._tuner = tuner
        self._lanes = lanes
        self._asked: dict[tuple[int, int], tuple[float, int]] = {}
        self._wait_s = self._step_s = 0.0
        self._delivered_at: float | None = None

    def ask(self, generation: int, number: int, *, samples: int) -> float:
        """Return the share for a batch that is asked for now."""
        self._asked[generation, number] = (self._tuner.share, samples)
        return self._tuner.share

    def wait_begins(self) -> float:
        """Note that the consumer waits from now on; returns the time, for `wait_ends`."""
        started = time.perf_counter()
        if self._delivered_at is not None:
            self._step_s = started - self._delivered_at
            self._delivered_at = None
        return started

    def wait_ends(self, started: float) -> None:
        """Count time that the consumer waited for its next batch."""
        self._wait_s += time.perf_counter() - started

    def delivered(self, result: Result, moved: Moved, *, is_typical: bool) -> None:
        """Tell the tuner of a batch that the consumer has now, if its times say something."""
        share, samples = self._asked.pop((result.generation, result.number), (0.0, 0))
        report = result.report
        if isinstance(report, FeedReport) and samples and is_typical:
            steps = report.steps_s
            decode_s, defer_s = steps.get("decode", 0.0), steps.get("defer", 0.0)
            self._tuner.observe(
                Observation(
                    share=share,
                    samples=samples,
                    decode_s=decode_s,
                    decoded=samples - report.deferred,
                    defer_s=defer_s,
                    deferred=report.deferred,
                    other_s=max(0.0, result.busy_s - decode_s - defer_s),
                    # After which the next batch could follow.
                    stage_s=max(moved.held_s, moved.seconds / self._lanes),
                    wait_s=self._wait_s,
                    step_s=self._step_s,
                )
            )
        self._wait_s = self._step_s = 0.0
        self._delivered_at = time.perf_counter()

    def forget(self, generation: int, number: int) -> None:
        """A batch that was asked for is given up."""
        self._asked.pop((generation, number), None)
