"""The worker processes of one loader, seen from the trainer: start, jobs, results, death, end.

Success: every job brings one result. Failure: a worker that dies is replaced as often as allowed,
and the new one gets the jobs that brought no result yet, each once; then, `receive` raises
WorkerError with its pid and what it worked on, and the others are stopped by `close`. Cancellation:
`close` asks the workers to stop, then terminates, then kills them; it never waits longer than its
graces.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import pickle
import selectors
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Pipe
from typing import TYPE_CHECKING

from fastfeed.arrival import ProcessArrival
from fastfeed.collating.failure import death
from fastfeed.errors import OptionError, WorkerError
from fastfeed.parcel import Parcel, pack_once
from fastfeed.process import REPORT_S, TERM_S, Plan, WorkerProcess, end_all
from fastfeed.topology import room_for, threads_of
from fastfeed.worker import READY, Job, Result, without_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from pathlib import Path

    from fastfeed.arrival import Ask
    from fastfeed.collating.fetch import Source
    from fastfeed.worker import WorkerSetup

log = logging.getLogger("fastfeed")

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# Seconds a worker gets to finish the batch it is making.
_GRACE_S = 1.5

# What the selector says of the pipe that interrupts a wait; workers have their numbers.
_WOKEN = -1
# How many workers that were silent after their fork may be forked again.
_REPLACEMENTS = 5


class WorkerPool:
    """Workers 0 to n - 1, `first` of them at first. One thread may receive while another sends."""

    def __init__(
        self,
        context: BaseContext,
        source: Source,
        setups: Sequence[WorkerSetup],
        *,
        first: int,
        capacity: int,
        restarts: int = 0,
    ) -> None:
        self._pid = os.getpid()
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()  # not held while waiting
        self._wake: tuple[Connection, Connection] | None = None
        self._closed = False
        self._results: deque[ProcessArrival] = deque()
        self._life: tuple[Connection, ...] = ()
        self._parcel: Parcel | None = None
        self._restarts, self._replaced, self._silent = restarts, 0, 0
        self._first, self._most = first, len(setups)
        try:
            self._life = life = context.Pipe(duplex=False)
            forks = context.get_start_method() == "fork"
            given = source if forks else pack_once(source)
            self._parcel = given if isinstance(given, Parcel) else None
            self._plan = Plan(context, given, setups, capacity, life)
            for number in range(first):
                self._workers.append(self._make(number))
        except BaseException as error:
            self.close(grace_s=TERM_S)
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise OptionError(
                    f"{first} workers need more file descriptors than the process may open",
                    way_out="Raise the limit (`ulimit -n`), or use fewer workers",
                ) from error
            raise

    def _make(
        self,
        number: int,
        *,
        instead_of: WorkerProcess | None = None,
        like: WorkerProcess | None = None,
    ) -> WorkerProcess:
        """Start a worker: in the place of a dead one, or in the epoch of another."""
        others = [own.channel for own in self._workers if own is not instead_of]
        setup = self._plan.setups[number]
        if (model := instead_of or like) is not None:
            setup = replace(setup, generation=model.generation, told=model.told)
        if instead_of is not None:
            setup = replace(setup, place=instead_of.place)
        worker = WorkerProcess(self._plan, setup, others)
        self._selector.register(worker.channel, _READ, number)
        self._selector.register(worker.death, _READ, number)
        return worker

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped, or are another process's."""
        return self._closed or os.getpid() != self._pid

    @property
    def most(self) -> int:
        """How many workers there may be; fewer once one could not be started."""
        return self._most

    def employ(self, workers: int) -> int:
        """Have so many workers at least; return how many are ready, for new ones take a while.

        A new one has no use before it has reported: the loop would wait for its start. More than
        memory and descriptors have room for are not started, now and from now on.
        """
        with self._opened():
            missing = min(workers, self._most) - len(self._workers)
            if missing > 0:
                self._start_more(missing)
            ready = self._first
            while ready < len(self._workers) and self._workers[ready].reported:
                ready += 1
            return ready

    def _start_more(self, missing: int) -> None:
        room = room_for(self._workers[0].process.pid or 0)
        try:
            for number in range(len(self._workers), len(self._workers) + min(missing, room)):
                self._workers.append(self._make(number, like=self._workers[0]))
        except OSError as error:
            log.warning("no more than %d workers can be started: %s", len(self._workers), error)
            room = 0
        if missing > room:
            self._most = len(self._workers)

    def tasks(self, workers: int) -> list[Path]:
        """Return the folders in /proc of the threads of the first so many workers."""
        if self.closed:
            return []
        with self._lock:  # processes that were let go of have no number any more
            living = () if self._closed else self._workers[:workers]
            pids = [own.process.pid or 0 for own in living]
        return [task for pid in pids for task in threads_of(pid)]

    def begin(self, worker: int, *, generation: int, told: int | None) -> None:
        """Have a worker begin an epoch; `told` is what the user told the data set that it is.

        One that has not been started begins with its first job.
        """
        if worker >= len(self._workers):
            return
        with self._opened():
            free = self._workers[worker].lender.returned()
            self._post(worker, Job(generation, None, None, 0, free, told))

    def send(self, worker: int, ask: Ask) -> None:
        """Give a worker a job, and with it the memory that became free.

        A worker that is dead gets nothing; `receive` says so, after what it sent before.
        """
        with self._opened():
            free = self._workers[worker].lender.returned()
            job = Job(ask.generation, ask.number, ask.index, ask.epoch, free, share=ask.share)
            self._post(worker, job)

    def under_way(self, worker: int) -> int:
        """Return how many jobs a worker has of which no result was received."""
        return len(self._workers[worker].jobs)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Keep another thread from ending the workers between the look whether they live and a job.

        Raises WorkerError if they have ended.
        """
        self._must_be_open()  # in a fork the lock may have been copied closed
        with self._lock:
            self._must_be_open()
            yield

    def _post(self, worker: int, job: Job) -> None:
        try:
            with self._lock:
                own = self._workers[worker]
                own.post(job)
                if own.channel.crowded:
                    self._selector.modify(own.channel, _READ | _WRITE, worker)
        except BaseException:
            self._cut_off()
            raise

    def receive(self, timeout: float | None) -> ProcessArrival | None:
        """Return the next result, waiting for it; None if the time is over, or `interrupt` came.

        Whatever it raises, the workers are stopped: a message may be half read, or a dead worker
        half replaced.
        """
        self._must_be_open()
        try:
            return self._receive(timeout)
        except BaseException:
            self._cut_off()
            raise

    def _receive(self, timeout: float | None) -> ProcessArrival | None:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._results:
            events = self._wait(until)
            if not events:
                return None
            if self._wake is not None and any(key.data == _WOKEN for key, _ in events):
                self._wake[0].recv_bytes()
                return None
            with self._lock:
                self._answer(events)
        with self._lock:
            arrival = self._results.popleft()
            self._workers[arrival.result.worker].done(arrival.result)
            return arrival

    def _answer(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Take in what workers sent, and replace one that has died."""
        # What a worker sent before its end is there when the end is seen.
        ended = {key.data for key, _ in events if isinstance(key.fileobj, int)}
        ready = sorted({key.data for key, _ in events})
        empty = [number for number in ready if not self._take_in(number, ended=ended)]
        dead = [number for number in empty if number in ended]
        if dead and not self._results:
            error = self._dead(dead[0])
            if self._replaced >= self._restarts:
                raise error
            log.warning("%s. Another one takes its place", error)
            self._replaced += 1
            self._replace(dead[0])

    def watch_for_interrupts(self) -> None:
        """Prepare for `interrupt`; it takes two descriptors."""
        self._wake = Pipe(duplex=False)
        self._selector.register(self._wake[0], _READ, _WOKEN)

    def interrupt(self) -> None:
        """Have a `receive` in another thread return None: the one that waits, or the next."""
        if self._wake is not None:
            self._wake[1].send_bytes(b"")

    def _take_in(self, number: int, *, ended: set[int]) -> bool:
        """Take what a worker sent, and say whether it was anything."""
        own = self._workers[number]
        messages: list[list[bytes]] = []
        try:
            if own.channel.crowded:
                own.channel.flush()
                if not own.channel.crowded:
                    self._selector.modify(own.channel, _READ, number)
            messages = own.channel.take()
        except EOFError:
            ended.add(number)
        except BaseException:
            self._cut_off()
            raise
        for first, *private in messages:
            if first == READY:
                own.reported = True
            else:
                self._results.append(
                    ProcessArrival(Result(*pickle.loads(first)), private, own.lender)
                )
        return bool(messages)

    def _wait(self, until: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for workers that have something for us; nothing is returned if the time is over."""
        while True:
            silent_at = min(
                (own.silent_at for own in self._workers if not own.reported), default=math.inf
            )
            first = min(until, silent_at)
            events = self._selector.select(
                None if first == math.inf else max(0.0, first - time.monotonic())
            )
            if events or time.monotonic() >= until:
                return events
            with self._lock:
                for number, own in enumerate(self._workers):
                    if not own.reported and own.silent_at <= time.monotonic():
                        self._replace_silent(number)

    def _replace_silent(self, number: int) -> None:
        """Fork a worker anew that was silent from the start, and give it the same jobs.

        Another thread of the trainer may hold a lock, of torch's generator for one, while we fork:
        in the child nobody ever opens it. Nothing of the user's has run there yet.
        """
        old = self._workers[number]
        old.process.kill()
        if self._silent == _REPLACEMENTS:
            raise WorkerError(
                f"DataLoader worker {number} (pid(s) {old.process.pid}) has not reported in "
                f"{REPORT_S:.0f} s, nor have {_REPLACEMENTS} others before it; the start method "
                f"is fork, and this process has {threading.active_count()} Python threads",
                way_out="A thread held a lock during the fork: make the iterator before the "
                "threads, or use multiprocessing_context='forkserver'",
            )
        old.process.join(TERM_S)
        self._silent += 1
        log.warning("DataLoader worker %d was silent after its fork; it is forked again", number)
        self._replace(number)

    def _replace(self, number: int) -> None:
        """Start another worker in the place of a dead one, with the jobs that have no result."""
        old = self._workers[number]
        self._selector.unregister(old.channel)
        self._selector.unregister(old.death)
        self._workers[number] = self._make(number, instead_of=old)
        old.channel.close()
        old.lender.close()
        old.let_go()
        if not old.begun:  # nor will the new one say so, which begins with its first job
            job = Job(old.generation, None, None, 0, [])
            begun = without_batch(self._plan.setups[number], job)._replace(state=old.place.state)
            self._results.append(ProcessArrival(begun, [], self._workers[number].lender))
        for (generation, _), job in old.jobs.items():
            if generation == old.generation:  # others are of an epoch that was left
                self._post(number, job)

    def _cut_off(self) -> None:
        """End the workers: an interrupt has cut a message, and what follows it means nothing."""
        self.close(grace_s=TERM_S)

    def _must_be_open(self) -> None:
        if self._closed:
            raise WorkerError(
                "the workers of this iterator have ended", way_out="Make a new iterator"
            )
        if os.getpid() != self._pid:
            raise WorkerError(
                f"this iterator belongs to process {self._pid}, of which this one is a fork",
                way_out="Make the iterator after the fork",
            )

    def _dead(self, worker: int) -> WorkerError:
        """Describe how a worker ended and what it had to do."""
        own = self._workers[worker]
        exit_code = own.exit_code(TERM_S)
        job = next(((number, job.index) for (_, number), job in own.jobs.items()), None)
        return death(
            worker,
            pid=own.process.pid,
            exit_code=exit_code,
            job=job,
            began=own.reported,
        )

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End all workers; does nothing the second time, nor in a forked copy of the trainer.

        A worker has `grace_s` seconds to finish the batch it is making.
        """
        if self.closed:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for own in self._workers:
                own.channel.hang_up()
                own.lender.close()
        end_all(self._workers, grace_s=grace_s)
        if self._parcel is not None:
            self._parcel.close()
        for end in (*self._life, *(self._wake or ())):  # workers die when it closes: it comes last
            end.close()
        self._selector.close()
        for own in self._workers:
            own.let_go()
