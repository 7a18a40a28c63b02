"""What has come from workers and waits for its way to the device, and whose turn it is to receive.

Several threads may use it. One of them at a time receives, and none while there are batches that
the device has no room for, unless the loop waits for another: results lie in the workers' pipes
meanwhile, and wake nobody up.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fastfeed.device.arrival import DeviceArrival, State

if TYPE_CHECKING:
    from fastfeed.arrival import Pool
    from fastfeed.device.lanes import Walk
    from fastfeed.device.pool import DevicePool

AHEAD = 3
"""Batches that wait on the device at the most; one that the loop wants goes there in any case."""
# A loop that took a batch has this many seconds to get away with it before a thread moves the next
# one: they would take the interpreter from each other until it is out of `next()`.
_HEAD_START_S = 0.001


class Intake:
    """Receives results for the loop, in their order, and hands out batches to be moved."""

    def __init__(self, inner: Pool, *, beside: bool) -> None:
        """With `beside` threads of their own use it, else the loop's alone."""
        self._inner = inner
        self.is_beside = beside
        self.change = threading.Condition()
        """For all that follows; threads wait for it."""
        self.ending = False
        self.failure: BaseException | None = None
        """What ended the workers, or a thread."""
        self.wanted: DeviceArrival | None = None
        """The batch that the loop waits for."""
        self._results: queue.SimpleQueue[DeviceArrival | None] = queue.SimpleQueue()
        self._waiting: dict[int, DeviceArrival] = {}  # for their way, by identity
        self._staged = 0  # on the device, or on the way there
        self._asks = False  # the loop waits for a result
        self._is_receiving = False
        self._is_full = False  # and a thread waits for workers although there are batches to move
        inner.watch_for_interrupts()

    # For the loop

    def ready(self) -> DeviceArrival | None:
        """Return the next result, None at the end of all; queue.Empty if there is none yet."""
        return self._results.get_nowait()

    def wait(self, timeout: float | None) -> DeviceArrival | None:
        """Return the next result, waiting for threads to receive it; queue.Empty in the end."""
        with self.change:
            self._asks = True
            self.change.notify_all()
        try:
            return self._results.get(timeout=timeout)
        finally:
            self._asks = False

    def end(self) -> bool:
        """Have all threads come to an end; false if that was done before."""
        with self.change:
            if self.ending:
                return False
            self.ending = True
            self.change.notify_all()
        if not self._inner.closed:
            self._inner.interrupt()
        return True

    def clear(self) -> None:
        """Let go of what nobody will get: it holds the pool, which holds us."""
        self._waiting.clear()
        with suppress(queue.Empty):
            while True:
                self._results.get_nowait()
        self._results.put(None)  # for whoever waits for one

    def interrupt(self) -> None:
        """Have whoever waits for a result get None."""
        self._results.put(None)

    def fail(self, error: BaseException) -> None:
        """Have the loop raise an error, after the results that are there."""
        if not (self.is_beside or isinstance(error, Exception)):
            raise error  # an interrupt of the loop itself
        self.failure = error
        self._results.put(None)

    def drop(self, arrival: DeviceArrival) -> bool:
        """Take back a batch that nobody has begun to move; say whether it was one."""
        with self.change:
            return self._waiting.pop(id(arrival), None) is not None

    # Ways to the device

    def next(self, walk: Walk, pool: DevicePool) -> DeviceArrival | None:
        """Return the batch to move next; None if there is none now, or at the end.

        With copies under way it does not wait for one.
        """
        timeout: float | None = 0.0
        while not self.ending:
            started, full = time.perf_counter(), bool(self._waiting)
            self.take_in(timeout, pool)
            with self.change:
                arrival = self.claim()
                if timeout is None and arrival is None and self._has_to_wait():
                    self.change.wait()
                    if not (self._asks or self.wanted or self.ending):
                        self.change.wait(_HEAD_START_S)
            if timeout is None:
                walk.waited(time.perf_counter() - started, full=full)
            if arrival is not None or walk.under_way:
                return arrival
            timeout = None
        return None

    def take_in(self, timeout: float | None, pool: DevicePool) -> None:
        """Wait for a result, unless another thread does; take in all that are there."""
        with self.change:
            if not self._may_receive():
                return
            if self.is_beside and timeout is None and self._has_other_work():
                return
            self._is_receiving = True
            self._is_full = timeout is None and bool(self._waiting)
        try:
            while (inner := self._inner.receive(timeout)) is not None:
                timeout = 0.0
                arrival = DeviceArrival(inner, pool)
                if arrival.has_batch:
                    with self.change:
                        self._waiting[id(arrival)] = arrival
                self._results.put(arrival)
        except BaseException as error:  # noqa: BLE001 - it is raised in the loop
            self.fail(error)
        finally:
            with self.change:
                self._is_receiving = self._is_full = False
                self.change.notify_all()  # others may move what has come, or receive what follows

    def claim(self) -> DeviceArrival | None:
        """Take what is to be moved next, if there is room for it."""
        with self.change:
            first = self._first()
            if first is not None:
                del self._waiting[id(first)]
                self._staged += 1
            return first

    def arrived(self, arrival: DeviceArrival) -> None:
        """A batch that was claimed is on the device."""
        with self.change:
            arrival.state = State.STAGED
            if arrival is self.wanted:
                self.change.notify_all()

    def leave(self, arrival: DeviceArrival) -> None:
        """A batch takes no place on the device any more."""
        with self.change:
            if arrival.state is State.STAGED:
                self._staged -= 1
            arrival.state = State.TAKEN
            self.stir()

    def stir(self) -> None:
        """Have a thread look again for something to move; the lock must be held."""
        self.change.notify_all()
        if self._is_full:
            self._is_full = False
            self._inner.interrupt()

    # With the lock held

    def _first(self) -> DeviceArrival | None:
        """Return what is to be moved next, if there is room for it."""
        if id(self.wanted) in self._waiting:
            return self.wanted
        if not self._waiting or self._staged >= AHEAD:
            return None
        return min(self._waiting.values(), key=lambda one: one.result.number)

    def _may_receive(self) -> bool:
        """Say whether results can be received, and nobody does."""
        return not (self._is_receiving or self.ending or self.failure is not None)

    def _may_wait_for_workers(self) -> bool:
        """Say whether there is a use in waiting for results."""
        return self._may_receive() and (self._asks or not self._waiting)

    def _has_other_work(self) -> bool:
        """Say whether a thread should not wait for workers now."""
        return self._first() is not None or not self._may_wait_for_workers()

    def _has_to_wait(self) -> bool:
        """Say whether there is nothing to do but to wait for others."""
        return not (self.ending or self._may_wait_for_workers())
