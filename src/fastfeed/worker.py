"""What runs inside a worker process: jobs in, batches out, gone as soon as the trainer is."""

from __future__ import annotations

import os
import pickle
import queue
import random
import selectors
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind, default_collate

from fastfeed.collating.collate import stack_into
from fastfeed.collating.pack import Packed, pack
from fastfeed.errors import FastfeedError
from fastfeed.slots.writer import SlotWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.connection import Connection

    from fastfeed.collating.collate import Writer
    from fastfeed.slots.region import Region

# A traceback longer than this is cut in the middle: some messages hold whole documents.
_LONGEST_TEXT = 64 << 10


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is told once, at its start."""

    dataset: Any
    kind: int
    auto_collation: bool
    collate_fn: Callable[..., Any]
    drop_last: bool
    base_seed: int
    init_fn: Callable[[int], None] | None
    worker: int
    workers: int
    threads: int
    trainer: int
    """Process id of the trainer."""


class Job(NamedTuple):
    """What the trainer sends: make a batch, begin an epoch (`number` is None), or stop (None)."""

    generation: int
    number: int | None
    index: Any
    epoch: int
    freed: list[Sequence[tuple[int, int]]]


class Result(NamedTuple):
    """What comes back for each job; `private` pieces of bytes follow it in the pipe."""

    worker: int
    generation: int
    number: int
    packed: Packed | None
    extents: Sequence[tuple[int, int]]
    private: int
    failure: Failure | None
    ended: bool
    """An iterable data set has no more in this worker."""
    busy_s: float
    report: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the worker, as much of it as can travel."""

    name: str
    text: str
    kind: type[Exception] | None
    error: FastfeedError | None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describe an exception with its traceback."""
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # noqa: BLE001 - a message that cannot be printed is still a failure
            text = "".join(traceback.format_tb(error.__traceback__)) + "(its message fails itself)"
        if len(text) > _LONGEST_TEXT:
            text = f"{text[: _LONGEST_TEXT // 2]}\n...\n{text[-_LONGEST_TEXT // 2 :]}"
        name = type(error).__qualname__
        own = error if isinstance(error, FastfeedError) else None
        for failure in (cls(name, text, type(error), own), cls(name, text, type(error), None)):
            try:
                pickle.loads(pickle.dumps(failure))
            except Exception:  # noqa: BLE001, S112 - the next one carries less
                continue
            return failure
        return cls(name, text, None, None)


class Fetcher(Protocol):
    """Makes batches in a worker."""

    def fetch(self, indices: Any, epoch: int, writer: Writer) -> Any:
        """Return a batch, None if nothing of it is left; its tensors may lie in `writer`'s."""
        ...

    def take_report(self) -> Any:
        """Return what the data set is to be told in the trainer, None if nothing."""
        ...


class TorchFetcher:
    """Makes batches as torch's workers do: data set items through the collate function."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._epoch: int | None = None
        self.restart()

    def restart(self) -> None:
        """Begin an epoch: iterable data sets start over."""
        setup = self._setup
        self._fetcher = _DatasetKind.create_fetcher(
            setup.kind, setup.dataset, setup.auto_collation, setup.collate_fn, setup.drop_last
        )

    def fetch(self, indices: Any, epoch: int, writer: Writer) -> Any:  # noqa: ARG002
        """Return the batch that torch's worker would return."""
        if epoch != self._epoch and hasattr(self._setup.dataset, "fastfeed_fetcher"):
            self._setup.dataset.set_epoch(epoch)
        self._epoch = epoch
        return self._fetcher.fetch(indices)

    def take_report(self) -> None:
        """Return nothing."""


def make_fetcher(setup: WorkerSetup) -> Fetcher:
    """Return the data set's own fetcher if it has one and nothing stands between, else torch's."""
    own = getattr(setup.dataset, "fastfeed_fetcher", None)
    if own is not None and setup.auto_collation and setup.collate_fn is default_collate:
        fetcher: Fetcher = own(threads=setup.threads)
        return fetcher
    return TorchFetcher(setup)


class _Inbox(threading.Thread):
    """Takes messages off the pipe as they come, and ends the process when the trainer is gone.

    So the trainer never waits to get rid of a job, even while this worker sends a large batch.
    """

    def __init__(self, pipe: Connection, trainer: int) -> None:
        super().__init__(name="fastfeed-inbox", daemon=True)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._pipe = pipe
        self._trainer = trainer

    def run(self) -> None:
        """Move messages until told to stop."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            watch = _open_pid(self._trainer)
            if watch is not None:
                selector.register(watch, selectors.EVENT_READ)
            while True:
                # Without a descriptor to wait on, look for the trainer every few seconds.
                ready = {key.fileobj for key, _ in selector.select(None if watch else 2.0)}
                if watch in ready or (watch is None and not _lives(self._trainer)):
                    os._exit(1)
                if self._pipe not in ready:
                    continue
                try:
                    job = pickle.loads(self._pipe.recv_bytes())
                except (EOFError, OSError):
                    os._exit(1)
                self.jobs.put(job)
                if job is None:
                    return


def _open_pid(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_worker(
    setup: WorkerSetup, pipe: Connection, region: Region, inherited: Iterable[Connection]
) -> None:
    """Be a worker until told to stop. `inherited` are ends of pipes that only a fork carried."""
    for end in inherited:
        end.close()
    # Ctrl-C reaches the whole group; the trainer alone answers it and stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_handling._set_worker_signal_handlers()  # noqa: SLF001
    torch.set_num_threads(1)
    inbox = _Inbox(pipe, setup.trainer)
    inbox.start()
    writer = SlotWriter(region)
    stack_into(writer)
    fetcher, failure = _start(setup)
    ended = False
    while (job := inbox.jobs.get()) is not None:
        writer.give_back(job.freed)
        if job.number is None:
            ended = False
            if isinstance(fetcher, TorchFetcher):
                fetcher.restart()
        elif not ended:
            if failure is not None or fetcher is None:
                result = _failed(setup, job, failure)
                private: list[Any] = []
                failure = None
            else:
                result, private = _work(setup, job, fetcher, writer)
            ended = result.ended
            _send(pipe, result, private)


def _start(setup: WorkerSetup) -> tuple[Fetcher | None, Failure | None]:
    """Seed the generators exactly as torch's worker does, and make the fetcher."""
    seed = setup.base_seed + setup.worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(setup.base_seed, setup.worker))  # noqa: NPY002, SLF001
    torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001
        id=setup.worker, num_workers=setup.workers, seed=seed, dataset=setup.dataset
    )
    try:
        if setup.init_fn is not None:
            setup.init_fn(setup.worker)
        return make_fetcher(setup), None
    except Exception as error:  # noqa: BLE001 - it is raised in the trainer
        return None, Failure.of(error)


def _work(
    setup: WorkerSetup, job: Job, fetcher: Fetcher, writer: SlotWriter
) -> tuple[Result, list[Any]]:
    """Make one batch."""
    started = time.perf_counter()
    writer.begin()
    try:
        batch = fetcher.fetch(job.index, job.epoch, writer)
        own = not isinstance(fetcher, TorchFetcher)
        packed, private = (None, []) if own and batch is None else pack(batch, writer)
        del batch
        extents = writer.commit()
    except Exception as error:  # noqa: BLE001 - it is raised in the trainer
        writer.begin()
        if isinstance(error, StopIteration) and setup.kind == _DatasetKind.Iterable:
            return _failed(setup, job, None)._replace(ended=True), []
        return _failed(setup, job, Failure.of(error)), []
    busy_s = time.perf_counter() - started
    report = fetcher.take_report()
    return (
        Result(
            worker=setup.worker,
            generation=job.generation,
            number=job.number or 0,
            packed=packed,
            extents=extents,
            private=len(private),
            failure=None,
            ended=False,
            busy_s=busy_s,
            report=report,
        ),
        private,
    )


def _failed(setup: WorkerSetup, job: Job, failure: Failure | None) -> Result:
    return Result(
        setup.worker, job.generation, job.number or 0, None, (), 0, failure, False, 0.0, None  # noqa: FBT003
    )


def _send(pipe: Connection, result: Result, private: list[Any]) -> None:
    try:
        pipe.send_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
        for piece in private:
            pipe.send_bytes(piece.reshape(-1).view(np.uint8))
    except BrokenPipeError:
        os._exit(1)  # the trainer has closed this worker
