"""Workers whose batches go to a device: a pool in front of a pool, with threads of its own.

One or two threads receive what the workers send, in turns, and move batches to the device a few
ahead of the loop, each by its own `Stage`: a batch changes threads once, on its way to the loop,
for each change costs as much as all that is done with it. The loop sends jobs and takes results as
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
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastfeed.device.arrival import DeviceArrival, State
from fastfeed.device.at_work import at_work, is_at_work
from fastfeed.errors import DeviceError, EmptyBatchError, WorkerError
from fastfeed.indices import count_samples
from fastfeed.policy import FeedReport
from fastfeed.stats import StageTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fastfeed.arrival import Ask, Opened, Pool
    from fastfeed.device.device import Mark
    from fastfeed.device.output import Output
    from fastfeed.device.share import Share
    from fastfeed.device.stage import Stage

AHEAD = 3
"""Batches that wait on the device at the most; one that the loop wants goes there in any case."""
# Copies under way at a time: one more than one, so that the link never waits for the host.
_UNDER_WAY = 2
# Seconds between two looks whether the staging threads still live.
_LOOK_S = 5.0


@dataclass(slots=True, eq=False)
class _Walk:
    """What one of the threads has in hand, and what it waited for since its last batch."""

    stage: Stage
    lane: int = 0
    under_way: deque[tuple[Mark, Any]] = field(default_factory=deque)
    """For each batch when it is complete, and the host memory that is read until then."""
    starved_s: float = 0.0
    full_s: float = 0.0
    copying_s: float = 0.0

    def waited(self, seconds: float, *, full: bool) -> None:
        """Count time without anything to move, or with no room for it."""
        if full:
            self.full_s += seconds
        else:
            self.starved_s += seconds


class DevicePool:
    """Workers of either kind, with a stage behind them."""

    def __init__(
        self, inner: Pool, stages: Sequence[Stage], output: Output, share: Share, *, prefetch: int
    ) -> None:
        """`stages` work side by side; their copies are from the same pinned memory."""
        self._pid = os.getpid()
        self._inner = inner
        self._pinner = stages[0].pinner
        self._output = output
        self._share = share
        self._prefetch = prefetch
        self._results: queue.SimpleQueue[DeviceArrival | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._change = threading.Condition()
        self._waiting: dict[int, DeviceArrival] = {}  # arrived, by identity
        self._wanted: DeviceArrival | None = None
        self._staged = 0  # or on the way there
        self._ending = False
        self._move_one = DevicePool._move  # of the class: a pool must not hold itself
        self._copies = max(1, _UNDER_WAY // len(stages))  # under way, of each
        self._is_receiving = False
        self._is_full = False  # and a thread waits for workers although there are batches to move
        inner.watch_for_interrupts()
        self._threads = [
            threading.Thread(
                target=self._work, args=(_Walk(stage, lane),), name="fastfeed-stage", daemon=True
            )
            for lane, stage in enumerate(stages)
        ]
        for thread in self._threads:
            thread.start()

    # What the loop asks for

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped, or are another process's."""
        # A failure that is still to be received is no end: the results before it come first.
        return self._ending or os.getpid() != self._pid

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
            arrival = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        finally:
            self._share.wait_ends(started)
        if arrival is None:
            self.close()
            self._must_be_open()  # says why it is not
        return arrival

    def _must_be_open(self) -> None:
        if os.getpid() != self._pid:
            raise WorkerError(
                f"this iterator belongs to process {self._pid}, of which this one is a fork",
                way_out="Make the iterator after the fork",
            )
        if self._ending:
            raise self._failure or WorkerError(
                "the workers of this iterator have ended", way_out="Make a new iterator"
            )

    def watch_for_interrupts(self) -> None:
        """Nothing stands behind this pool."""

    def interrupt(self) -> None:
        """Have a `receive` that waits in another thread return None."""
        self._results.put(None)

    def close(self, **grace: float) -> None:
        """End the threads, then the workers; does nothing the second time."""
        if os.getpid() != self._pid:  # a fork has neither our threads nor our device
            return
        if is_at_work():
            # The garbage collector has ended the iterator here. No thread can wait for itself, nor
            # for one that wants a lock which this one holds.
            threading.Thread(target=self.close, kwargs=grace, name="fastfeed-close").start()
            return
        with self._change:
            if self._ending:
                return
            self._ending = True
            self._change.notify_all()
        if not self._inner.closed:
            self._inner.interrupt()
        for thread in self._threads:
            thread.join()
        self._waiting.clear()
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
            with self._change:
                self._wait(arrival)
        self._share.wait_ends(started)

    def _wait(self, arrival: DeviceArrival) -> None:
        """Wait until a batch is on the device; the lock must be held."""
        self._wanted = arrival
        self._stir()
        try:
            while not self._change.wait_for(lambda: arrival.state is not State.ARRIVED, _LOOK_S):
                if not all(thread.is_alive() for thread in self._threads):
                    raise DeviceError(
                        "a thread that moves batches to the device has ended",
                        way_out="Make a new iterator",
                    ) from self._failure
        finally:
            self._wanted = None  # it holds the batch

    def take(self, arrival: DeviceArrival) -> Opened:
        """Return a batch for the current stream."""
        moved = arrival.moved
        if moved is None or arrival.opened is None:
            raise RuntimeError("a batch that is not on the device is not delivered")
        try:
            batch = self._output.deliver(moved)
        finally:
            # Only now: the stage goes on at once, and would take the interpreter from this thread.
            self._leave(arrival)
        self._share.delivered(arrival.result, moved, is_typical=arrival.is_typical)
        arrival.moved = None
        return arrival.opened._replace(batch=batch)

    def give_up(self, arrival: DeviceArrival) -> None:
        """Let go of a batch, wherever it is."""
        if os.getpid() != self._pid:  # the lock may have been copied closed
            return
        result = arrival.result
        self._share.forget(result.generation, result.number)
        with self._change:
            waits = self._waiting.pop(id(arrival), None) is not None
            if arrival.has_batch and not waits and not self._ending:
                self._wait(arrival)  # the stage has begun with it
        if waits or not arrival.has_batch:
            arrival.inner.give_up()
            return
        self._leave(arrival)
        arrival.moved = arrival.raised = None

    def _leave(self, arrival: DeviceArrival) -> None:
        with self._change:
            if arrival.state is State.STAGED:
                self._staged -= 1
            arrival.state = State.TAKEN
            self._stir()

    def _stir(self) -> None:
        """Have a thread look again for something to move; the lock must be held."""
        self._change.notify_all()
        if self._is_full:
            self._is_full = False
            self._inner.interrupt()

    # The threads

    def _work(self, walk: _Walk) -> None:
        """Take in what workers send and move it to the device, until the end."""
        try:
            with at_work():
                walk.stage.device.enter_thread()
                while self._stage_one(walk):
                    pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the loop
            self._fail(error)

    def _stage_one(self, walk: _Walk) -> bool:
        """Begin the copies of a batch or wait for the oldest ones; false if nothing is left to do.

        Names here end with each call: one that lived on would keep its slot lent.
        """
        under_way = walk.under_way
        arrival = self._next(walk)
        if arrival is None and not under_way:
            return False
        begun = None if arrival is None else self._move_one(self, arrival, walk)
        if begun is not None:
            under_way.append(begun)
        if under_way and (arrival is None or len(under_way) >= self._copies):
            mark, _held = under_way.popleft()  # only after the wait may the slot go back
            started = time.perf_counter()
            _finish(mark)
            walk.copying_s += time.perf_counter() - started
        return True

    def _fail(self, error: BaseException) -> None:
        """Have the loop raise an error, after the results that are there."""
        self._failure = error
        self._results.put(None)

    def _next(self, walk: _Walk) -> DeviceArrival | None:
        """Return the batch to move next; None if there is none now, or at the end.

        With copies under way it does not wait for one.
        """
        timeout: float | None = 0.0
        while not self._ending:
            started, full = time.perf_counter(), bool(self._waiting)
            self._take_in(timeout)
            with self._change:
                first = self._first()
                if first is not None:
                    del self._waiting[id(first)]
                    self._staged += 1
                elif timeout is None and not self._may_receive() and not self._ending:
                    self._change.wait()
            if timeout is None:
                walk.waited(time.perf_counter() - started, full=full)
            if first is not None or walk.under_way:
                return first
            timeout = None
        return None

    def _may_receive(self) -> bool:
        """Say whether there is a use in waiting for workers; the lock must be held."""
        return not (self._is_receiving or self._ending or self._failure is not None)

    def _take_in(self, timeout: float | None) -> None:
        """Wait for a result, unless another thread does; take in all that are there."""
        with self._change:
            if not self._may_receive() or (timeout is None and self._first() is not None):
                return
            self._is_receiving = True
            self._is_full = timeout is None and bool(self._waiting)
        try:
            while (inner := self._inner.receive(timeout)) is not None:
                timeout = 0.0
                arrival = DeviceArrival(inner, self)
                if arrival.has_batch:
                    with self._change:
                        self._waiting[id(arrival)] = arrival
                self._results.put(arrival)
        except BaseException as error:  # noqa: BLE001 - it is raised in the loop
            self._fail(error)
        with self._change:
            self._is_receiving = self._is_full = False
            self._change.notify_all()  # others may move what has come, or receive what follows

    def _first(self) -> DeviceArrival | None:
        """Return what is to be moved next, if there is room for it."""
        if id(self._wanted) in self._waiting:
            return self._wanted
        if not self._waiting or self._staged >= AHEAD:
            return None
        return min(self._waiting.values(), key=lambda one: one.result.number)

    def _move(self, arrival: DeviceArrival, walk: _Walk) -> tuple[Mark, Any] | None:
        """Begin to move one batch; what fails is kept for its turn."""
        begun: tuple[Mark, Any] | None = None
        started = time.perf_counter()
        try:
            opened = arrival.inner.open(prefetch=self._prefetch)
            region, pinner = arrival.region, self._pinner
            if region is not None and pinner is not None:
                stop = max((extent[1] for extent in arrival.result.extents), default=0)
                pinner.use(region, stop)
            arrival.is_typical = pinner is None or not pinner.is_behind
            moved, held = walk.stage.move(opened.batch)
            if isinstance(arrival.result.report, FeedReport):
                arrival.result.report.take_in(moved.report)
            arrival.opened = opened._replace(batch=None)
            arrival.moved = moved
            begun = moved.mark, held
        except EmptyBatchError:
            arrival.skipped = True
            if isinstance(arrival.result.report, FeedReport):
                arrival.result.report.take_in(walk.stage.take_report())
        except BaseException as error:  # noqa: BLE001 - it is raised in the loop
            arrival.raised = error
        busy_s = time.perf_counter() - started
        waited_s = walk.starved_s, walk.full_s, walk.copying_s
        times = StageTimes(started, busy_s, *waited_s, walk.lane)
        arrival.result = arrival.result._replace(stage=times)
        walk.starved_s = walk.full_s = walk.copying_s = 0.0
        with self._change:
            arrival.state = State.STAGED
            if arrival is self._wanted:
                self._change.notify_all()
        if begun is None:  # what failed takes no place there, and nobody comes for it
            self._leave(arrival)
        return begun


def _finish(mark: Mark) -> None:
    """Wait until a batch's copies are done; what failed shows at the batch itself."""
    try:
        mark.wait()
    except DeviceError:
        return
