"""Worker threads in the trainer's process: for work that releases the GIL, or without a GIL.

Nothing is pickled, forked or copied, and nothing can die alone. But the global random generators
belong to all threads together, so draws from them come in no fixed order; and a batch that is being
made cannot be cut short: `close` waits a moment for it, then leaves its thread to end by itself.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.data.dataloader import _DatasetKind

from fastfeed.arrival import ThreadArrival
from fastfeed.collating.collate import HeapWriter
from fastfeed.collating.fetch import has_state
from fastfeed.errors import EmptyBatchError, OptionError, WorkerError
from fastfeed.worker import Job, Maker, without_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.arrival import Ask
    from fastfeed.collating.fetch import Source
    from fastfeed.worker import WorkerSetup

# Seconds that a thread gets to finish the batch it is making.
_GRACE_S = 1.5


class ThreadPool:
    """Worker threads, `first` of them at first; used by one thread at a time, as `WorkerPool`."""

    def __init__(self, source: Source, setups: Sequence[WorkerSetup], *, first: int) -> None:
        if len(setups) > 1 and (source.kind == _DatasetKind.Iterable or has_state(source.dataset)):
            raise OptionError(
                "several threads cannot share one iterator, or the state of one data set",
                way_out="Use num_workers=1, or worker_kind='process'",
            )
        self._pid = os.getpid()
        self._results: queue.SimpleQueue[ThreadArrival | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._jobs: list[queue.SimpleQueue[Job | None]] = []
        # Two counts, as one thread may send while another receives.
        self._sent, self._received = [0] * len(setups), [0] * len(setups)
        self._threads: list[threading.Thread] = []
        self._source, self._setups = source, setups
        try:
            self.employ(first)
        except BaseException:
            self.close(grace_s=0)
            raise

    @property
    def closed(self) -> bool:
        """Whether the threads were told to end, or are another process's."""
        return self._ending.is_set() or os.getpid() != self._pid

    @property
    def most(self) -> int:
        """How many threads there may be."""
        return len(self._setups)

    def employ(self, workers: int) -> int:
        """Have so many threads at least; return how many are ready."""
        for setup in self._setups[len(self._threads) : workers]:
            jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=_work,
                args=(setup, self._source, jobs, self._results, self._ending),
                name=f"fastfeed-worker-{setup.worker}",
                daemon=True,
            )
            thread.start()
            self._jobs.append(jobs)
            self._threads.append(thread)
        return len(self._threads)

    def tasks(self, workers: int) -> list[Path]:
        """Return the folders in /proc of the first so many threads."""
        return [Path(f"/proc/self/task/{one.native_id}") for one in self._threads[:workers]]

    def begin(self, worker: int, *, generation: int, told: int | None) -> None:
        """Have a worker begin an epoch; a new one begins with its first job."""
        self._must_be_open()
        if worker < len(self._jobs):
            self._sent[worker] += 1
            self._jobs[worker].put(Job(generation, None, None, 0, [], told))

    def send(self, worker: int, ask: Ask) -> None:
        """Give a worker a job."""
        self._must_be_open()
        job = Job(ask.generation, ask.number, ask.index, ask.epoch, [], share=ask.share)
        self._sent[worker] += 1
        self._jobs[worker].put(job)

    def under_way(self, worker: int) -> int:
        """Return how many jobs a worker has of which no result was received."""
        return self._sent[worker] - self._received[worker]

    def receive(self, timeout: float | None) -> ThreadArrival | None:
        """Return the next result, waiting for it; None if the time is over, or `interrupt` came.

        Threads catch all that is raised in them, so one always comes.
        """
        self._must_be_open()
        try:
            arrival = self._results.get(timeout=timeout)
        except queue.Empty:
            return None
        if arrival is not None:
            self._received[arrival.result.worker] += 1
        return arrival

    def watch_for_interrupts(self) -> None:
        """Nothing is needed."""

    def interrupt(self) -> None:
        """Have a `receive` that waits in another thread return None."""
        self._results.put(None)

    def _must_be_open(self) -> None:
        if os.getpid() != self._pid:
            raise WorkerError(
                "the threads of this iterator stayed behind in the process that was forked",
                way_out="Make the iterator after the fork",
            )
        if self._ending.is_set():
            raise WorkerError(
                "the workers of this iterator have ended", way_out="Make a new iterator"
            )

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """Tell the threads to end, and wait `grace_s` seconds at the most."""
        if os.getpid() != self._pid:
            return
        self._ending.set()
        for jobs in self._jobs:
            jobs.put(None)
        until = time.monotonic() + grace_s
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


def _work(
    setup: WorkerSetup,
    source: Source,
    jobs: queue.SimpleQueue[Job | None],
    results: queue.SimpleQueue[ThreadArrival | None],
    ending: threading.Event,
) -> None:
    """Be a worker until told to end."""
    maker: Maker | None = None
    failed: BaseException | None = None
    try:
        if source.init_fn is not None:
            source.init_fn(setup.worker)
        maker = Maker(setup, source)
    except BaseException as error:  # noqa: BLE001 - it is raised in the trainer
        failed = error
    ended = False
    idle_since = time.perf_counter()
    while (job := jobs.get()) is not None and not ending.is_set():
        if job.number is None:
            ended = False
            state = None
            if maker is not None:
                failed = None
                try:
                    maker.restart(job.told)
                    state = maker.state()
                except BaseException as error:  # noqa: BLE001 - likewise
                    failed = error
            results.put(ThreadArrival(without_batch(setup, job)._replace(state=state)))
        elif not ended:
            idle_s = time.perf_counter() - idle_since
            arrival = _make(setup, job, maker, failed, idle_s=idle_s)
            ended = arrival.result.ended
            results.put(arrival)
        idle_since = time.perf_counter()


def _make(
    setup: WorkerSetup,
    job: Job,
    maker: Maker | None,
    failed: BaseException | None,
    *,
    idle_s: float,
) -> ThreadArrival:
    """Make one batch, or say why not; `idle_s` is how long the thread waited for the job."""
    result = without_batch(setup, job)
    if maker is None or failed is not None:
        return ThreadArrival(result, raised=failed)
    started = time.perf_counter()
    empty = False
    batch = None
    try:
        try:
            batch = maker.fetcher.fetch(job.index, job.epoch, HeapWriter(), share=job.share)
        except EmptyBatchError:
            empty = True
        state = maker.take_state()
    except BaseException as error:  # noqa: BLE001 - it is raised in the trainer
        if isinstance(error, StopIteration):
            if maker.iterable:
                state = maker.state() if maker.keeps_state else None
                return ThreadArrival(result._replace(ended=True, state=state))
            # Raised in the loop it would end it in silence.
            error = RuntimeError(f"the data set raised StopIteration for {job.index!r}")
        error.add_note(f"Raised in DataLoader worker thread {setup.worker}")
        return ThreadArrival(result, raised=error)
    return ThreadArrival(
        result._replace(
            busy_s=time.perf_counter() - started,
            report=maker.fetcher.take_report(),
            state=state,
            times=(started, idle_s, 0.0, 0.0),
        ),
        batch=batch,
        empty=empty,
    )
