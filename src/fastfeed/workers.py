"""The worker processes of one loader, seen from the trainer: start, jobs, results, death, end.

Success: every job brings one result. Failure: a worker that dies raises WorkerError in `receive`,
with its pid and what it worked on; the others are stopped by `close`. Cancellation: `close`
asks the workers to stop, then terminates, then kills them; it never waits longer than its graces.
"""

from __future__ import annotations

import errno
import os
import pickle
import selectors
import signal
import socket
import time
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from fastfeed.errors import OptionError, WorkerError
from fastfeed.slots.lease import Lender
from fastfeed.slots.region import Region
from fastfeed.worker import Job, Result, WorkerSetup, run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

LEAST_REGION = 64 << 20
"""A smaller region is not worth having; beyond it batches go through the pipe."""
# Seconds a worker gets to finish the batch it is making, and then to obey SIGTERM.
_GRACE_S, _TERM_S = 1.5, 0.5

_HINTS: dict[int, str] = {
    signal.SIGKILL: "Mostly the machine or container ran out of memory: use fewer workers or "
    "smaller batches, and look at the kernel's log",
    signal.SIGBUS: "Mostly memory that could not be backed: a full /dev/shm, a truncated file that "
    "is memory-mapped, or a memory limit",
    signal.SIGSEGV: "Native code of the data set or of a decoder crashed: run with num_workers=0 "
    "under faulthandler to see where",
}


class _Worker:
    """One process with its pipe and its region."""

    def __init__(
        self, context: BaseContext, setup: WorkerSetup, *, capacity: int, others: Sequence[_Worker]
    ) -> None:
        self.region = Region.up_to(capacity, least=LEAST_REGION)
        self.lender = Lender(self.region)
        try:
            self.pipe, theirs = context.Pipe(duplex=True)
            with theirs:
                self.process = self._start(context, setup, theirs, others)
        finally:
            self.region.close_descriptor()
        self.jobs: dict[tuple[int, int], Any] = {}
        """Index of each job that has no result yet."""

    def done(self, result: Result) -> None:
        """Strike off a job, and those after it that an ended worker does not do."""
        self.jobs.pop((result.generation, result.number), None)
        if result.ended:
            for job in [job for job in self.jobs if job[0] == result.generation]:
                del self.jobs[job]

    def _start(
        self,
        context: BaseContext,
        setup: WorkerSetup,
        theirs: Connection,
        others: Sequence[_Worker],
    ) -> BaseProcess:
        forked = context.get_start_method() == "fork"
        # A forked child holds copies of our ends; it closes them, so that a closed end is noticed.
        inherited = [worker.pipe for worker in others] + [self.pipe] if forked else []
        process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(setup, theirs, self.region, inherited),
            daemon=True,
            name=f"fastfeed-worker-{setup.worker}",
        )
        with _interrupts_blocked(context):
            process.start()
        return process


class WorkerPool:
    """Workers 0 to n - 1. Used by one thread at a time."""

    def __init__(
        self, context: BaseContext, setups: Sequence[WorkerSetup], *, capacity: int
    ) -> None:
        self._pid = os.getpid()
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._closed = False
        try:
            for setup in setups:
                worker = _Worker(context, setup, capacity=capacity, others=self._workers)
                self._workers.append(worker)
                self._selector.register(worker.pipe, selectors.EVENT_READ, setup.worker)
                self._selector.register(worker.process.sentinel, selectors.EVENT_READ, setup.worker)
        except BaseException as error:
            self.close(grace_s=_TERM_S)
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise OptionError(
                    f"{len(setups)} workers need more file descriptors than the process may open",
                    way_out="Raise the limit (`ulimit -n`), or use fewer workers",
                ) from error
            raise

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped, or are another process's."""
        return self._closed or os.getpid() != self._pid

    def lender(self, worker: int) -> Lender:
        """Return who knows what is lent of a worker's region."""
        return self._workers[worker].lender

    def send(
        self, worker: int, *, generation: int, number: int | None, index: Any, epoch: int
    ) -> None:
        """Give a worker a job, and with it the memory that became free.

        A worker that is dead gets nothing; `receive` says so, after what it sent before.
        """
        self._must_be_open()
        own = self._workers[worker]
        job = Job(generation, number, index, epoch, own.lender.returned())
        message = pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
        with self._whole_messages(), suppress(BrokenPipeError, ConnectionResetError):
            own.pipe.send_bytes(message)
        if number is not None:
            own.jobs[generation, number] = index

    def receive(self, timeout: float | None) -> Iterator[tuple[Result, list[bytes]]]:
        """Yield the results that are there, waiting for the first; none if the time is over."""
        self._must_be_open()
        ready = {key.data for key, _ in self._selector.select(timeout)}
        for worker in sorted(ready):
            own = self._workers[worker]
            try:
                with self._whole_messages():
                    if not own.pipe.poll():  # only its end was signalled
                        raise EOFError
                    result: Result = pickle.loads(own.pipe.recv_bytes())
                    private = [own.pipe.recv_bytes() for _ in range(result.private)]
            except (EOFError, OSError):  # a message cut short is an OSError
                raise self._dead(worker) from None
            own.done(result)
            yield result, private

    @contextmanager
    def _whole_messages(self) -> Iterator[None]:
        """End the workers if an interrupt cuts a message: what follows in its pipe means nothing."""
        try:
            yield
        except (EOFError, OSError):
            raise
        except BaseException:
            self.close(grace_s=_TERM_S)
            raise

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
        own.process.join(_TERM_S)
        code = own.process.exitcode
        hint = "Run with num_workers=0 to see the error where it happens"
        if code is None:
            how = "closed its pipe"
        elif code < 0:
            how = f"was killed by {_signal_name(-code)}"
            hint = _HINTS.get(-code, hint)
        else:
            how = f"ended with exit code {code}"
        job = next(iter(own.jobs.items()), None)
        what = f" while it made batch {job[0][1]} of samples {_short(job[1])}" if job else ""
        return WorkerError(
            f"DataLoader worker {worker} (pid(s) {own.process.pid}) exited unexpectedly: it {how}"
            f"{what}",
            way_out=hint,
        )

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End all workers; does nothing the second time, nor in a forked copy of the trainer.

        A worker has `grace_s` seconds to finish the batch it is making.
        """
        if self.closed:
            return
        self._closed = True
        for own in self._workers:
            _hang_up(own.pipe)
            own.lender.close()
        for seconds, end in ((grace_s, None), (_TERM_S, "terminate"), (_TERM_S, "kill")):
            living = [own.process for own in self._workers if own.process.exitcode is None]
            if end is not None:
                for process in living:
                    getattr(process, end)()
            _wait_for(living, seconds)
        for own in self._workers:
            if own.process.exitcode is not None:
                own.process.close()
        self._selector.close()


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


def _hang_up(pipe: Connection) -> None:
    """Say goodbye and end the connection for every process that holds a copy of its end.

    A worker that was about to send notices at once, even if some other fork kept our end open.
    """
    os.set_blocking(pipe.fileno(), False)  # it may be stopped, with its side of the pipe full
    with suppress(OSError):
        pipe.send_bytes(pickle.dumps(None))
    connection = socket.socket(fileno=pipe.fileno())
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.detach()
    pipe.close()


def _wait_for(processes: list[BaseProcess], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    left = {process.sentinel: process for process in processes}
    while left:
        ended = wait(list(left), max(0.0, deadline - time.monotonic()))
        if not ended:
            return
        for sentinel in ended:
            left.pop(sentinel).join()  # type: ignore[arg-type]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _short(index: Any) -> str:
    text = repr(index)
    return text if len(text) <= 200 else f"{text[:200]}..."
