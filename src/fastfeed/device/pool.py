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

AHEAD = 3
"""Batches that wait on the device at the most; one that the loop wants goes there in any case."""
# A loop that took a batch has this many seconds to get away with it before a thread moves the next
# one: they would take the interpreter from each other until it is out of `next()`.
_HEAD_START_S = 0.001
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
        self._results: queue.SimpleQueue[DeviceArrival | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._change = threading.Condition()
        self._waiting: dict[int, DeviceArrival] = {}  # arrived, by identity
        self._wanted: DeviceArrival | None = None
        self._staged = 0  # or on the way there
        self._ending = False
        self._move_one = DevicePool._move  # of the class: a pool must not hold itself
        self._asks = False  # the loop waits for a result
        self._is_receiving = False
        self._is_full = False  # and a thread waits for workers although there are batches to move
        self._walk = Walk(stages[0])  # the loop's
        self._rests_since = time.perf_counter()
        self._is_beside = beside
        inner.watch_for_interrupts()
        self._lanes = Lanes(self, stages if beside else ())

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
            return self._results.get_nowait()
        if not self._is_beside:
            self._bring(timeout)
            return None if self._ending else self._results.get_nowait()
        with self._change:
            self._asks = True
            self._change.notify_all()
        try:
            return self._results.get(timeout=timeout)
        finally:
            self._asks = False

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
        self._lanes.join()
        self._walk.let_go(0)
        self._waiting.clear()
        with suppress(queue.Empty):
            while True:  # they hold this pool, which holds them
                self._results.get_nowait()
        self._results.put(None)  # for whoever waits for one
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
                self._wait_for(arrival)
        self._share.wait_ends(started)

    def _wait_for(self, arrival: DeviceArrival) -> None:
        """Wait until a batch is on the device; the lock must be held."""
        self._wanted = arrival
        try:
            if not self._is_beside:
                self._bring(0.0)
                return
            self._stir()
            while not self._change.wait_for(lambda: arrival.state is not State.ARRIVED, _LOOK_S):
                if not self._lanes.are_alive():
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
        if not self._is_beside:
            self._bring(0.0)
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
                self._wait_for(arrival)  # a thread has begun with it
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

    # On the way

    def _bring(self, timeout: float | None) -> None:
        """Do in the loop's thread what lanes do beside it."""
        walk, started = self._walk, time.perf_counter()
        walk.waited(started - self._rests_since, full=True)
        self._take_in(timeout)
        walk.waited(time.perf_counter() - started, full=False)
        walk.let_go(AHEAD)
        with at_work():
            while (arrival := self._claim()) is not None:
                self.move(arrival, walk)
        self._rests_since = time.perf_counter()

    def next(self, walk: Walk) -> DeviceArrival | None:
        """Return the batch to move next; None if there is none now, or at the end.

        With copies under way it does not wait for one.
        """
        timeout: float | None = 0.0
        while not self._ending:
            started, full = time.perf_counter(), bool(self._waiting)
            self._take_in(timeout)
            with self._change:
                arrival = self._claim()
                if timeout is None and arrival is None and self._has_to_wait():
                    self._change.wait()
                    if not (self._asks or self._wanted or self._ending):
                        self._change.wait(_HEAD_START_S)
            if timeout is None:
                walk.waited(time.perf_counter() - started, full=full)
            if arrival is not None or walk.under_way:
                return arrival
            timeout = None
        return None

    def fail(self, error: BaseException) -> None:
        """Have the loop raise an error, after the results that are there."""
        if not (self._is_beside or isinstance(error, Exception)):
            raise error  # an interrupt of the loop itself
        self._failure = error
        self._results.put(None)

    def _may_receive(self) -> bool:
        """Say whether results can be received, and nobody does; the lock must be held."""
        return not (self._is_receiving or self._ending or self._failure is not None)

    def _may_wait_for_workers(self) -> bool:
        """Say whether there is a use in waiting for results; the lock must be held.

        Not while there are some for which there is no room: they would only cost wake-ups.
        """
        return self._may_receive() and (self._asks or not self._waiting)

    def _has_other_work(self) -> bool:
        """Say whether a thread should not wait for workers now; the lock must be held."""
        return self._first() is not None or not self._may_wait_for_workers()

    def _has_to_wait(self) -> bool:
        """Say whether there is nothing to do but to wait for others; the lock must be held."""
        return not (self._ending or self._may_wait_for_workers())

    def _take_in(self, timeout: float | None) -> None:
        """Wait for a result, unless another thread does; take in all that are there."""
        with self._change:
            if not self._may_receive():
                return
            if self._is_beside and timeout is None and self._has_other_work():
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
            self.fail(error)
        finally:
            with self._change:
                self._is_receiving = self._is_full = False
                self._change.notify_all()  # others may move what has come, or receive what follows

    def _claim(self) -> DeviceArrival | None:
        """Take what is to be moved next, if there is room for it."""
        with self._change:
            first = self._first()
            if first is not None:
                del self._waiting[id(first)]
                self._staged += 1
            return first

    def _first(self) -> DeviceArrival | None:
        """Return what is to be moved next, if there is room for it; the lock must be held."""
        if id(self._wanted) in self._waiting:
            return self._wanted
        if not self._waiting or self._staged >= AHEAD:
            return None
        return min(self._waiting.values(), key=lambda one: one.result.number)

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
            if not (self._is_beside or isinstance(error, Exception)):
                raise  # an interrupt of the loop itself
            arrival.raised = error
        busy_s = time.perf_counter() - started
        waited_s = walk.starved_s, walk.full_s, walk.copying_s
        walk.starved_s = walk.full_s = walk.copying_s = 0.0
        times = StageTimes(started, busy_s, *waited_s, walk.lane)
        arrival.result = arrival.result._replace(stage=times)
        with self._change:
            arrival.state = State.STAGED
            if arrival is self._wanted:
                self._change.notify_all()
        if not begun:  # what failed takes no place there, and nobody comes for it
            self._leave(arrival)
