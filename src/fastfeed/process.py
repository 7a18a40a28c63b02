"""One worker process, seen from the trainer: channel, region, what it has to do, and its end."""

from __future__ import annotations

import math
import os
import pickle
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from fastfeed.resume import Place
from fastfeed.slots.channel import Channel, channels
from fastfeed.slots.lease import Lender
from fastfeed.slots.region import Region
from fastfeed.worker import BEGUN, Ends, run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from fastfeed.collating.fetch import Source
    from fastfeed.parcel import Parcel
    from fastfeed.worker import Job, Result, WorkerSetup

LEAST_REGION = 64 << 20
"""A smaller region is not worth having; beyond it batches go through the pipe."""
# Seconds after its fork until a worker must have reported. It takes milliseconds, unless the child
# waits for a lock that was copied closed.
REPORT_S = 5.0
TERM_S = 0.5
"""Seconds that a worker gets to obey a signal."""
# Descriptors that starting a process takes for a moment, at the most.
_SPARE = 8


class WorkerProcess:
    """One process with its channel and its region."""

    def __init__(self, plan: Plan, setup: WorkerSetup, others: Sequence[Channel]) -> None:
        self.region = Region.up_to(plan.capacity, least=LEAST_REGION)
        self.lender = Lender(self.region)
        try:
            self.channel, theirs = channels()
            try:
                self.process = self._start(plan, setup, theirs, others)
            except BaseException:
                self.channel.close()
                raise
            finally:
                theirs.close()
        finally:
            self.region.close_descriptor()
        self._pidfd = _pidfd_of(self.process)
        self.jobs: dict[tuple[int, int], Job] = {}
        """Each job that has no result yet."""
        self.generation, self.told = setup.generation, setup.told
        self.place = setup.place
        """How far it is in its epoch, as far as its results have arrived."""
        self.begun = True
        """Whether it has said in which state its data set began the epoch, or begins it fresh."""
        self.reported = False
        self.silent_at = time.monotonic() + REPORT_S if plan.forks else math.inf
        """When a worker that has not reported counts as silent."""

    def _start(
        self, plan: Plan, setup: WorkerSetup, theirs: Channel, others: Sequence[Channel]
    ) -> BaseProcess:
        # A forked child has copies of our ends; it closes them, so that an end is noticed.
        inherited: tuple[Channel | Connection, ...] = ()
        if plan.forks:
            inherited = (self.channel, plan.life[1], *others)
        ends = Ends(theirs, plan.life[0], inherited)
        process: BaseProcess = plan.context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(setup, plan.given, self.region, ends),
            daemon=True,
            name=f"fastfeed-worker-{setup.worker}",
        )
        _check_room(plan.life[0])
        with _interrupts_blocked(plan.context):
            process.start()
        return process

    @property
    def death(self) -> int:
        """A descriptor that becomes readable when the process ends.

        Not multiprocessing's own where it can be helped: a process that the worker forked keeps
        that one from telling.
        """
        return self.process.sentinel if self._pidfd is None else self._pidfd

    def exit_code(self, seconds: float) -> int | None:
        """Return how the process ended, after waiting a little; None if it lives."""
        if self.process.exitcode is None:
            self.process.join(seconds)
        return self.process.exitcode

    def let_go(self) -> None:
        """Close what belongs to the process; it must have ended."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self.process.exitcode is not None:
            self.process.close()

    def post(self, job: Job) -> None:
        """Send a job without waiting; to a dead worker it is lost."""
        if job.number is None:
            self.place = self.place.in_next_epoch()
            self.begun = False
            self.generation, self.told = job.generation, job.told
        else:
            self.jobs[job.generation, job.number] = job._replace(freed=[])
        self.channel.post([pickle.dumps(tuple(job), pickle.HIGHEST_PROTOCOL)])

    def done(self, result: Result) -> None:
        """Strike off a job, and those after it that an ended worker does not do."""
        self.jobs.pop((result.generation, result.number), None)
        if result.generation != self.generation:
            pass
        elif result.number == BEGUN:
            self.begun = True
            self.place = Place(result.state).at_beginning()
        elif not result.ended:
            self.place = self.place.after(result.state)
        if result.ended:
            for left in [left for left in self.jobs if left[0] == result.generation]:
                del self.jobs[left]


@dataclass(frozen=True, slots=True)
class Plan:
    """What all workers of a pool are made from."""

    context: BaseContext
    given: Source | Parcel
    setups: Sequence[WorkerSetup]
    capacity: int
    life: tuple[Connection, Connection]
    """A pipe nobody writes to: its second end says that the trainer lives."""

    @property
    def forks(self) -> bool:
        """Whether workers are forks of this process."""
        return self.context.get_start_method() == "fork"


def end_all(workers: Sequence[WorkerProcess], *, grace_s: float) -> None:
    """See that workers end: by themselves within `grace_s` seconds, by SIGTERM, or by SIGKILL."""
    for seconds, end in ((grace_s, None), (TERM_S, "terminate"), (TERM_S, "kill")):
        living = [own for own in workers if own.process.exitcode is None]
        if end is not None:
            for own in living:
                getattr(own.process, end)()
        _wait_for(living, seconds)


def _wait_for(workers: Sequence[WorkerProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    left = {own.death: own.process for own in workers}
    while left:
        ended = wait(list(left), max(0.0, deadline - time.monotonic()))
        if not ended:
            return
        for descriptor in ended:
            left.pop(descriptor).join()  # type: ignore[arg-type]


def _check_room(one: Connection) -> None:
    """Raise OSError if there are no descriptors left; multiprocessing would leak some it opened."""
    spare: list[int] = []
    try:
        spare += (os.dup(one.fileno()) for _ in range(_SPARE))
    finally:
        for descriptor in spare:
            os.close(descriptor)


def _pidfd_of(process: BaseProcess) -> int | None:
    try:
        return os.pidfd_open(process.pid or 0)
    except (AttributeError, OSError):  # an older system, or it has ended already
        return None


@contextmanager
def _interrupts_blocked(context: BaseContext) -> Iterator[None]:
    """Let a worker begin deaf to Ctrl-C; ours is answered when the block ends."""
    # A fork server would pass the mask on to processes that are not ours.
    if context.get_start_method() == "forkserver":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
