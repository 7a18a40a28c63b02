"""What runs inside a worker process: jobs in, batches out, gone as soon as the trainer is."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import random
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind

from fastfeed.collating.collate import stack_into
from fastfeed.collating.failure import Failure
from fastfeed.collating.fetch import Source, TorchFetcher, make_fetcher, tell
from fastfeed.collating.pack import Packed, pack
from fastfeed.errors import EmptyBatchError
from fastfeed.resume import START, Place
from fastfeed.slots.writer import SlotWriter
from fastfeed.topology import pin_to

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from fastfeed.decoding.defer import DeviceSide
    from fastfeed.parcel import Parcel
    from fastfeed.slots.channel import Channel
    from fastfeed.slots.region import Region
    from fastfeed.stats import StageTimes


READY = b"ready"
"""A worker's first message: it has begun, and nothing of the user's ran in it yet."""


BEGUN = -1
"""Number of the result that says in which state a data set began an epoch."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is told once, at its start."""

    base_seed: int
    worker: int
    workers: int
    threads: int
    trainer: int
    """Process id of the trainer."""
    place: Place = START
    """Where to begin."""
    generation: int = 0
    """The epoch to begin in, counted from the iterator's first."""
    told: int | None = None
    """The epoch's number, if the user has told it since the data set was pickled or forked."""
    snapshot_every: int = 1
    """An iterable data set that has a state is asked for it after so many batches."""
    device: DeviceSide | None = None
    """What the trainer's device does with the batches, if they go there."""
    cores: tuple[int, ...] = ()
    """Where to run, if not just anywhere."""


class Job(NamedTuple):
    """What the trainer sends: make a batch, or begin an epoch (`number` is None)."""

    generation: int
    number: int | None
    index: Any
    epoch: int
    freed: list[Sequence[tuple[int, int]]]
    told: int | None = None
    """At the beginning of an epoch: its number, if the user told it to the trainer's data set."""
    share: float = 0.0
    """Share of the pictures whose decoding is left to the GPU."""


class Result(NamedTuple):
    """What comes back for each job, with the pieces that the region had no room for beside it."""

    worker: int
    generation: int
    number: int
    packed: Packed | None
    extents: Sequence[tuple[int, int]]
    failure: Failure | None
    ended: bool
    """An iterable data set has no more in this worker."""
    busy_s: float
    report: Any
    state: Any
    """The data set's own after this batch, None if it was not asked or has none."""
    times: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    """As `stats.Times`: when it was begun, and what the worker waited for before."""
    stage: StageTimes | None = None
    """Of its way to the device, which the trainer adds."""


class _Watch(threading.Thread):
    """Ends the process when the trainer is gone."""

    def __init__(self, trainer: int) -> None:
        super().__init__(name="fastfeed-watch", daemon=True)
        self._trainer = trainer

    def run(self) -> None:
        """Wait for the end of the trainer."""
        descriptor = _open_pid(self._trainer)
        if descriptor is not None:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        else:  # without a descriptor to wait on, look for the trainer every few seconds
            while _lives(self._trainer):
                time.sleep(2.0)
        os._exit(1)


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


@dataclass(frozen=True, slots=True)
class Ends:
    """What connects a worker with the trainer."""

    channel: Channel
    """Jobs come, results go."""
    life: Connection
    """Its other end is open as long as the trainer lives."""
    inherited: Sequence[Channel | Connection]
    """The trainer's own ends, which only a fork carried here."""


def run_worker(setup: WorkerSetup, given: Source | Parcel, region: Region, ends: Ends) -> None:
    """Be a worker until told to stop."""
    for end in ends.inherited:
        end.close()
    _die_with(ends.life)
    # Ctrl-C reaches the whole group; the trainer alone answers it and stops the workers. It was
    # blocked from before this process began.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]  # noqa: SLF001
    torch.set_num_threads(1)
    if setup.cores:
        pin_to(setup.cores)  # what it refuses was said in the trainer
    gc.freeze()  # marking what the fork copied would make its pages this process's own
    _Watch(setup.trainer).start()
    writer = SlotWriter(region)
    stack_into(writer)
    if isinstance(given, Source):
        _seed(setup, given.dataset)  # before READY: a lock copied by the fork would show
    with suppress(BrokenPipeError, ConnectionResetError):  # the trainer has hung up, or is gone
        ends.channel.send([READY])
        maker, failure = _start(setup, given)
        ended = False
        idle_since, blocked_out_s = time.perf_counter(), 0.0
        while (message := ends.channel.wait()) is not None:
            job = Job(*pickle.loads(message[0]))
            writer.give_back(job.freed)
            if job.number is None:
                ended = False
                failure = _restart(maker, failure, told=job.told)
                state = maker.state() if maker is not None and failure is None else None
                begun = without_batch(setup, job)._replace(state=state)
                ends.channel.send([_pickled(begun)])
                # Nobody asked for batches between two epochs: that was no waiting.
                idle_since, blocked_out_s = time.perf_counter(), 0.0
            elif not ended:
                private: list[Any] = []
                if failure is not None or maker is None:
                    result = without_batch(setup, job, failure)
                else:
                    before = (idle_since, blocked_out_s)
                    result, private = _work(setup, job, maker, writer, before)
                ended = result.ended
                pieces = [piece.reshape(-1).view(np.uint8).data for piece in private]
                try:
                    first = _pickled(result)
                except Exception as error:  # noqa: BLE001 - it is raised in the trainer
                    error.add_note("The state of the data set, or its report, cannot be pickled")
                    writer.give_back([result.extents])
                    first, pieces = _pickled(without_batch(setup, job, Failure.of(error))), []
                made_at = time.perf_counter()
                ends.channel.send([first, *pieces])
                idle_since = time.perf_counter()
                blocked_out_s = idle_since - made_at


def _pickled(result: Result) -> bytes:
    return pickle.dumps(tuple(result), pickle.HIGHEST_PROTOCOL)


def _restart(maker: Maker | None, failure: Failure | None, *, told: int | None) -> Failure | None:
    """Begin an epoch, and return why this worker cannot make its batches, if so."""
    if maker is None:
        return failure
    try:
        maker.restart(told)
    except Exception as error:  # noqa: BLE001 - it is raised in the trainer
        return Failure.of(error)
    return None


def _die_with(life: Connection) -> None:
    """Have the kernel kill this process when the trainer is gone.

    A thread watches for that too, but only while this process runs Python: not if native code waits
    for ever and holds the interpreter's lock, as it may on a lock that a fork has copied.
    """
    if hasattr(fcntl, "F_SETSIG"):
        # Opened anew: what is set of the inherited end is set for all workers, the last one wins.
        with suppress(OSError):  # no /proc here
            end = os.open(f"/proc/self/fd/{life.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
            fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)


def _seed(setup: WorkerSetup, dataset: Any) -> None:
    """Seed the generators exactly as torch's worker does."""
    seed = setup.base_seed + setup.worker
    random.seed(seed)
    torch.manual_seed(seed)
    numbers = torch_worker._generate_state(setup.base_seed, setup.worker)  # type: ignore[no-untyped-call]  # noqa: SLF001
    np.random.seed(numbers)  # noqa: NPY002
    torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001
        id=setup.worker, num_workers=setup.workers, seed=seed, dataset=dataset
    )


class Maker:
    """A worker's fetcher, and when to ask the data set for its state."""

    def __init__(self, setup: WorkerSetup, source: Source) -> None:
        self.fetcher = make_fetcher(
            source, threads=setup.threads, place=setup.place, device=setup.device
        )
        self.iterable = source.kind == _DatasetKind.Iterable
        self.keeps_state = isinstance(self.fetcher, TorchFetcher) and self.state() is not None
        self._every = setup.snapshot_every if self.iterable else 1
        self._made = 0

    def restart(self, told: int | None) -> None:
        """Begin an epoch, which the data set is told where the user told the trainer's copy."""
        self._made = 0
        self.fetcher.restart(told=told)

    def take_state(self) -> Any:
        """Return the data set's state after a batch, if it is due."""
        self._made += 1
        return self.state() if self.keeps_state and self._made % self._every == 0 else None

    def state(self) -> Any:
        """Return the data set's state, None if it keeps none."""
        return self.fetcher.state() if isinstance(self.fetcher, TorchFetcher) else None


def _start(setup: WorkerSetup, given: Source | Parcel) -> tuple[Maker | None, Failure | None]:
    """Unpack the data set, run the user's init function and make the fetcher."""
    try:
        if isinstance(given, Source):
            source = given
        else:
            source = given.open()
            _seed(setup, source.dataset)
        if source.init_fn is not None:
            source.init_fn(setup.worker)
        tell(source.dataset, setup.told)
        return Maker(setup, source), None
    except Exception as error:  # noqa: BLE001 - it is raised in the trainer
        return None, Failure.of(error)


def _work(
    setup: WorkerSetup, job: Job, maker: Maker, writer: SlotWriter, before: tuple[float, float]
) -> tuple[Result, list[Any]]:
    """Make one batch; `before` is since when the worker waited for it, and how long it sent."""
    started = time.perf_counter()
    idle_since, sending_s = before
    writer.begin()
    private: list[Any] = []
    packed: Packed | None
    try:
        try:
            batch = maker.fetcher.fetch(job.index, job.epoch, writer, share=job.share)
            fetched = time.perf_counter()
        except EmptyBatchError:
            packed, fetched = None, time.perf_counter()
        else:
            packed, private = pack(batch, writer)
            del batch
        state = maker.take_state()
        extents = writer.commit()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised in the trainer
        writer.begin()
        if isinstance(error, StopIteration) and maker.iterable:
            state = maker.state() if maker.keeps_state else None
            return without_batch(setup, job)._replace(ended=True, state=state), []
        return without_batch(setup, job, Failure.of(error)), []
    made = time.perf_counter()
    report = maker.fetcher.take_report()
    return (
        Result(
            worker=setup.worker,
            generation=job.generation,
            number=job.number or 0,
            packed=packed,
            extents=extents,
            failure=None,
            ended=False,
            busy_s=made - started,
            report=report,
            state=state,
            times=(started, started - idle_since, sending_s, made - fetched),
        ),
        private,
    )


def without_batch(setup: WorkerSetup, job: Job, failure: Failure | None = None) -> Result:
    """Return the result of a job that made no batch: it failed, ended, or began an epoch."""
    number = BEGUN if job.number is None else job.number
    return Result(setup.worker, job.generation, number, None, (), failure, False, 0.0, None, None)
