"""Workers whose batches go to a device: a pool in front of a pool.

Batches that are no more than copied the loop's own thread moves, when it takes one: that is cheaper
than having another thread do it, for each change of threads costs as much as all that is done with
a batch. Where pictures are decoded there, or a copy holds up whoever asks for it, `Lanes` do it
beside the loop. Either way a few batches are ahead, and the loop sends jobs and takes results as
from any pool. Success: every result comes through, and its batch is on the device when it is
opened. Failure: what a batch's move raised is raised when its turn comes; a dead worker is raised
by `receive`, as ever. Cancellation: `close` ends the threads before the workers, and waits for no
more than the copies that are under way.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastfeed.device.arrival import DeviceArrival, State
from fastfeed.device.at_work import at_work, is_at_work
from fastfeed.device.intake import AHEAD, Intake
from fastfeed.device.lanes import Lanes, Walk
from fastfeed.errors import DeviceError, EmptyBatchError, WorkerError
from fastfeed.indices import count_samples
from fastfeed.policy import FeedReport
from fastfeed.stats import StageTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fastfeed.arrival import Ask, Opened, Pool
    from fastfeed.device.output import Output
    from fastfeed.device.share import Share
    from fastfeed.device.stage import Stage

# Seconds between two looks whether the threads still live.
_LOOK_S = 5.0


class DevicePool:
    """Workers of either kind, with a stage behind them."""

    def __init__(
        self,
        inner: Pool,
        stages: Sequence[Stage],
        output: Output,
        share: Share,
        *,
        prefetch: int,
        beside: bool,
    ) -> None:
        """`stages` work side by side, their copies are from the same pinned memory.

        One alone works in the loop's thread, unless it is to be `beside` it.
        """
        self._pid = os.getpid()
        self._inner = inner
        self._pinner = stages[0].pinner
        self._output = output
        self._share = share
        self._prefetch = prefetch
        self._intake = Intake(inner, beside=beside)
        self._move_one = DevicePool._move  # of the class: a pool must not hold itself
        self._walk = Walk(stages[0])  # the loop's
        self._rests_since = time.perf_counter()
        self._lanes = Lanes(self, stages if beside else ())

    # What the loop asks for

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped, or are another process's."""
        # A failure that is still to be received is no end: the results before it come first.
        return self._intake.ending or os.getpid() != self._pid

    def begin(self, worker: int, *, generation: int, told: int | None) -> None:
        """Have a worker begin an epoch; a dead one does not, `receive` says so in its turn."""
        self._must_be_open()
        self._tell(lambda: self._inner.begin(worker, generation=generation, told=told))

    def send(self, worker: int, ask: Ask) -> None:
        """Give a worker a job; a dead one gets none, `receive` says so in its turn."""
        self._must_be_open()
        samples = count_samples(ask.index)
        share = self._share.ask(ask.generation, ask.number, samples=samples)
        self._tell(lambda: self._inner.send(worker, ask._replace(share=share)))

    def under_way(self, worker: int) -> int:
        """Return how many jobs a worker has of which no result was received."""
        return self._inner.under_way(worker)

    def _tell(self, job: Callable[[], None]) -> None:
        try:
            job()
        except WorkerError:
            return  # the receiver has met the end of the workers, and results before it come first
        except BaseException:
            self.close()  # as the workers are: a message may be half sent
            raise

    @property
    def most(self) -> int:
        """How many workers there may be."""
        return self._inner.most

    def employ(self, workers: int) -> int:
        """Have so many workers at least; return how many are ready, none if they have ended."""
        try:
            return self._inner.employ(workers)
        except WorkerError:
            return 0  # as `_tell`: results before their end come first

    def tasks(self, workers: int) -> list[Path]:
        """Return the folders in /proc of the threads of the first so many workers."""
        return self._inner.tasks(workers)

    def name_steps(self, named: Callable[[str, Any], Any]) -> None:
        """Have the stage's step marked as exports asked for, by `Stats.named`."""
        self._move_one = named("device", DevicePool._move)

    def receive(self, timeout: float | None) -> DeviceArrival | None:
        """Return the next result, waiting for it; None if the time is over."""
        self._must_be_open()
        started = self._share.wait_begins()
        try:
            arrival = self._result(timeout)
        except queue.Empty:
            return None
        finally:
            self._share.wait_ends(started)
        if arrival is None:
            self.close()
            self._must_be_open()  # says why it is not
        return arrival

    def _result(self, timeout: float | None) -> DeviceArrival | None:
        with suppress(queue.Empty):
            return self._intake.ready()
        if self._intake.is_beside:
            return self._intake.wait(timeout)
        self._bring(timeout)
        return None if self._intake.ending else self._intake.ready()

    def _must_be_open(self) -> None:
        if os.getpid() != self._pid:
            raise WorkerError(
                f"this iterator belongs to process {self._pid}, of which this one is a fork",
                way_out="Make the iterator after the fork",
            )
        if self._intake.ending:
            raise self._intake.failure or WorkerError(
                "the workers of this iterator have ended", way_out="Make a new iterator"
            )

    def watch_for_interrupts(self) -> None:
        """Nothing stands behind this pool."""

    def interrupt(self) -> None:
        """Have a `receive` that waits in another thread return None."""
        self._intake.interrupt()

    def close(self, **grace: float) -> None:
        """End the threads, then the workers; does nothing the second time."""
        if os.getpid() != self._pid:  # a fork has neither our threads nor our device
            return
        if is_at_work():
            # The garbage collector has ended the iterator here. No thread can wait for itself, nor
            # for one that wants a lock which this one holds.
            threading.Thread(target=self.close, kwargs=grace, name="fastfeed-close").start()
            return
        if not self._intake.end():
            return
        self._lanes.join()
        self._walk.let_go(0)
        self._intake.clear()
        self._inner.close(**grace)
        if self._pinner is not None:
            self._pinner.close()

    # What arrivals ask for

    def await_staged(self, arrival: DeviceArrival) -> None:
        """Wait until a batch is on the device; it goes first."""
        started = self._share.wait_begins()
        if arrival.state is State.ARRIVED:
            if self.closed:
                self._must_be_open()
            self._wait_for(arrival)
        self._share.wait_ends(started)

    def _wait_for(self, arrival: DeviceArrival) -> None:
        intake = self._intake
        with intake.change:
            intake.wanted = arrival
            try:
                if not intake.is_beside:
                    self._bring(0.0)
                    return
                intake.stir()
                is_there = lambda: arrival.state is not State.ARRIVED  # noqa: E731
                while not intake.change.wait_for(is_there, _LOOK_S):
                    if not self._lanes.are_alive():
                        raise DeviceError(
                            "a thread that moves batches to the device has ended",
                            way_out="Make a new iterator",
                        ) from intake.failure
            finally:
                intake.wanted = None  # it holds the batch

    def take(self, arrival: DeviceArrival) -> Opened:
        """Return a batch for the current stream."""
        moved = arrival.moved
        if moved is None or arrival.opened is None:
            raise RuntimeError("a batch that is not on the device is not delivered")
        try:
            batch = self._output.deliver(moved)
        finally:
            # Only now: the stage goes on at once, and would take the interpreter from this thread.
            self._intake.leave(arrival)
        self._share.delivered(arrival.result, moved, is_typical=arrival.is_typical)
        arrival.moved = None
        if not self._intake.is_beside:
            self._bring(0.0)
        return arrival.opened._replace(batch=batch)

    def give_up(self, arrival: DeviceArrival) -> None:
        """Let go of a batch, wherever it is."""
        if os.getpid() != self._pid:  # the lock may have been copied closed
            return
        result = arrival.result
        self._share.forget(result.generation, result.number)
        if not arrival.has_batch or self._intake.drop(arrival):
            arrival.inner.give_up()
            return
        if arrival.state is State.ARRIVED and not self._intake.ending:
            self._wait_for(arrival)  # a thread has begun with it
        self._intake.leave(arrival)
        arrival.moved = arrival.raised = None

    # On the way

    def _bring(self, timeout: float | None) -> None:
        """Do in the loop's thread what lanes do beside it."""
        walk, started = self._walk, time.perf_counter()
        walk.waited(started - self._rests_since, full=True)
        self._intake.take_in(timeout, self)
        walk.waited(time.perf_counter() - started, full=False)
        walk.let_go(AHEAD)
        with at_work():
            while (arrival := self._intake.claim()) is not None:
                self.move(arrival, walk)
        self._rests_since = time.perf_counter()

    def next(self, walk: Walk) -> DeviceArrival | None:
        """Return the batch that a lane is to move next; None if there is none now, or at the end.

        With copies under way it does not wait for one.
        """
        return self._intake.next(walk, self)

    def fail(self, error: BaseException) -> None:
        """Have the loop raise what ended a lane."""
        self._intake.fail(error)

    def move(self, arrival: DeviceArrival, walk: Walk) -> None:
        """Begin to move a batch; what fails is kept for its turn."""
        self._move_one(self, arrival, walk)

    def _move(self, arrival: DeviceArrival, walk: Walk) -> None:
        started = time.perf_counter()
        begun = False
        try:
            opened = arrival.inner.open(prefetch=self._prefetch)
            region, pinner = arrival.region, self._pinner
            if region is not None and pinner is not None:
                stop = max((extent[1] for extent in arrival.result.extents), default=0)
                pinner.use(region, stop)
            arrival.is_typical = pinner is None or not pinner.is_behind
            moved, held = walk.stage.move(opened.batch)
            walk.under_way.append((moved.mark, held))
            if isinstance(arrival.result.report, FeedReport):
                arrival.result.report.take_in(moved.report)
            arrival.opened = opened._replace(batch=None)
            arrival.moved = moved
            begun = True
        except EmptyBatchError:
            arrival.skipped = True
            if isinstance(arrival.result.report, FeedReport):
                arrival.result.report.take_in(walk.stage.take_report())
        except BaseException as error:
            if not (self._intake.is_beside or isinstance(error, Exception)):
                raise  # an interrupt of the loop itself
            arrival.raised = error
        busy_s = time.perf_counter() - started
        waited_s = walk.starved_s, walk.full_s, walk.copying_s
        walk.starved_s = walk.full_s = walk.copying_s = 0.0
        times = StageTimes(started, busy_s, *waited_s, walk.lane)
        arrival.result = arrival.result._replace(stage=times)
        self._intake.arrived(arrival)
        if not begun:  # what failed takes no place there, and nobody comes for it
            self._intake.leave(arrival)
