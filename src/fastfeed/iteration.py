"""One pass over a loader: jobs go to the workers, batches come back in order.

The iterators extend torch's own, so that seeds, samplers, warnings and pinning are torch's. The
order in which the sampler is asked, and how far ahead, is torch's too: batches, shuffles and
augmentations are the same to the bit.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import pin_memory
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
)

from fastfeed.arrival import Ask
from fastfeed.assignment import Assignment
from fastfeed.collating.fetch import has_own_fetcher, has_state, shards_under
from fastfeed.device.pool import DevicePool
from fastfeed.exports.patience import on_terminal
from fastfeed.indices import count_samples
from fastfeed.inprocess import source_of
from fastfeed.process import LEAST_REGION
from fastfeed.progress import rewind
from fastfeed.resume import START
from fastfeed.threads import ThreadPool
from fastfeed.topology import memory_limit
from fastfeed.worker import BEGUN, WorkerSetup
from fastfeed.workers import WorkerPool

if TYPE_CHECKING:
    from fastfeed.arrival import Arrival, Opened, Pool
    from fastfeed.collating.fetch import Source
    from fastfeed.loader import DataLoader

log = logging.getLogger("fastfeed")

_MAP = _DatasetKind.Map
# Shared memory that all workers of a loader may take at the most, of what the machine has left;
# pages are taken only as batches need them.
_MEMORY_SHARE = 0.5


class WorkerIterator(_BaseDataLoaderIter):
    """Batches made by worker processes."""

    _dataset: Any

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._state = state = loader.pending_state()
        if state is not None and state.base_seed is None:  # it is drawn in what follows
            rewind(state, loader._index_sampler, loader.generator)  # noqa: SLF001
        super().__init__(loader)
        self._stats = loader.collector
        self._shards = shards_under(self._dataset)
        self._prefetch = 2 if loader.prefetch_factor is None else loader.prefetch_factor
        if self._prefetch <= 0:  # torch's exception for it
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        self._in_order = getattr(loader, "in_order", True)
        self._told: set[str] = set()
        self._one_at_a_time = threading.Lock()  # some loops have several threads take batches
        self._keeps_state = has_state(self._dataset)
        self._generation = -1
        self._arrived: dict[int, Arrival] = {}
        self._open_pool(loader)
        self._reset(loader, first_iter=True)

    def _open_pool(self, loader: DataLoader[Any]) -> None:
        """Start the workers, each where the state that is resumed has it."""
        state = self._state
        if state is not None and state.base_seed is not None:
            self._base_seed = state.base_seed
        source = source_of(self, loader)
        # Batches of shards are the same whoever makes them; other data sets may draw by worker, and
        # transforms by what an init function has made for it.
        self._anyone = has_own_fetcher(source) and source.init_fn is None
        self._path = path = loader.device_path(source)
        self._workforce = loader.workforce(
            path, one_by_one=self._dataset_kind == _MAP, alike=not self._keeps_state
        )
        self._num_workers = self._workforce.most  # with AUTO more than are started at first
        places = [START] * self._num_workers
        if state is not None and state.places is not None:
            places = list(state.places)
        placement = None if path is None else path.placement()
        setups = [
            WorkerSetup(
                base_seed=int(self._base_seed),
                worker=worker,
                workers=max(self._workforce.first, worker + 1),
                threads=loader.worker_threads,
                trainer=os.getpid(),
                place=places[worker],
                generation=self._generation + 1,
                snapshot_every=loader.snapshot_every_n_steps,
                device=None if path is None else path.side,
                cores=() if placement is None else placement.cores,
            )
            for worker in range(self._num_workers)
        ]
        self._pool = self._pool_of(loader, source, setups)
        if path is not None:
            shared = loader.worker_kind == "process"
            self._pool = path.pool(self._pool, prefetch=self._prefetch, shared=shared)
        self._close = weakref.finalize(self, self._pool.close)

    def _pool_of(self, loader: DataLoader[Any], source: Source, setups: list[WorkerSetup]) -> Pool:
        if loader.worker_kind == "thread":
            return ThreadPool(source, setups, first=self._workforce.first)
        return WorkerPool(
            loader.multiprocessing_context or torch.multiprocessing.get_context(),
            source,
            setups,
            first=self._workforce.first,
            capacity=loader.region_bytes(memory_limit()),
            restarts=loader.restart_workers,
        )

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        for arrival in self._arrived.values():  # of an epoch that was left early
            arrival.give_up()
        self._arrived = {}
        if not first_iter:
            self._state = loader.pending_state()
            if self._state is not None and self._state.base_seed is None:
                rewind(self._state, self._index_sampler, loader.generator)
                iter(self._index_sampler)  # some draw here; a new iterator asks twice
                seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
                self._base_seed = int(seed)  # as a new iterator draws it
            if self._pool.closed or self._state is not None:
                self._close()  # a worker died in an earlier epoch, or all begin elsewhere
                self._open_pool(loader)
                first_iter = True
        state = self._state
        if state is not None and state.base_seed is not None:
            rewind(state, self._index_sampler, loader.generator)
        self._progress = loader.begin_epoch(state)
        super()._reset(loader, first_iter)
        self._epoch = self._progress.epoch
        self._generation += 1
        self._sent = self._next = 0
        self._patience = on_terminal()
        self._given = Assignment(
            self._num_workers, prefetch=self._prefetch, in_order=self._in_order
        )
        self._samples: dict[int, int] = {}
        if not first_iter:
            for worker in range(self._num_workers):
                self._pool.begin(worker, generation=self._generation, told=loader.told_epoch())
        self._begin(first_iter=first_iter)
        self._workforce.begin(self._pool)
        self._name_steps()
        for _ in range(self._prefetch * self._workforce.in_use):
            self._dispatch()
        loader.began(self._progress)

    def _name_steps(self) -> None:
        """Put the marks around the loop's steps that exports asked for."""
        named = self._stats.named
        self._receive = named("wait", self._pool.receive)
        self._open = named("open", _open)
        self._ask = named("sample", WorkerIterator._dispatch)
        if isinstance(self._pool, DevicePool):
            self._pool.name_steps(named)

    def _begin(self, *, first_iter: bool) -> None:
        """Set the counts to the beginning of the epoch, or to where the state has them."""
        state, progress = self._state, self._progress
        progress.base_seed = int(self._base_seed)
        iterable = self._dataset_kind == _DatasetKind.Iterable
        if iterable or has_state(self._dataset):
            progress.places = [START] * self._num_workers
            progress.ended = [False] * self._num_workers
            if state is not None and state.places is not None:
                progress.places = list(state.places)
            elif not first_iter and self._keeps_state:
                self._await_places()
        first_worker = 0
        progress.start(self._sampler_iter, ordered=not iterable)
        if state is not None and state.begun:
            self._num_yielded = self._sent = self._next = progress.delivered
            first_worker = self._next % self._num_workers
            if iterable:
                progress.next_worker = first_worker = state.next_worker
                progress.ended = list(state.ended)
                self._given.active = [not ended for ended in state.ended]
        self._given.begin_with(first_worker)

    def _await_places(self) -> None:
        """Wait until each worker has said in which state its data set begins the epoch."""
        missing = set(range(self._num_workers))
        while missing and self._progress.places is not None:
            arrival = self._pool.receive(None)
            if arrival is not None and arrival.result.generation != self._generation:
                arrival.give_up()
            elif arrival is not None:
                self._progress.begun_with(arrival.result.worker, arrival.result.state)
                missing.discard(arrival.result.worker)

    def _dispatch(self) -> None:
        """Ask the sampler for one more batch and give it to a worker."""
        try:
            number, index = self._progress.next()
        except StopIteration:
            return
        in_use = self._workforce.in_use
        if self._anyone:
            worker: int | None = self._given.least_busy(in_use, number, self._pool.under_way)
        else:
            worker = self._given.next_in_turn(in_use)
        if worker is None:
            return
        self._sent = number + 1
        self._given.give(number, worker)
        self._samples[number] = count_samples(index) if self._auto_collation else 1
        self._pool.send(worker, Ask(self._generation, number, index, self._epoch))

    def _next_data(self) -> Any:
        if self._pool.closed:  # or another process's, where a thread may have left the lock closed
            return self._next_batch()
        try:
            with self._one_at_a_time:
                return self._next_batch()
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            self._pool.close()  # a job or a result may be lost, which would be waited for
            raise

    def _next_batch(self) -> Any:
        self._asked = started = time.perf_counter()
        while True:
            arrival = self._await_next()
            result = arrival.result
            samples = self._samples.pop(result.number)
            self._progress.deliver(result.number, worker=result.worker, state=result.state)
            try:
                self._refill()
            except BaseException:  # the sampler failed; the batch is lost, its memory is not
                arrival.give_up()
                raise
            if self._progress.places is not None:
                self._note_next()
            error = arrival.error()  # a batch that goes to the GPU is there after that
            report = arrival.result.report
            if report is not None:
                self._shards.fastfeed_report(report, self._stats)
                samples -= report.skipped
            elif arrival.result.stage is not None:
                self._stats.spent("device", arrival.result.stage.busy_s)
            if error is not None:
                raise error
            if not arrival.empty:
                return self._deliver(arrival, samples=samples, started=started)
            self._progress.leave_out()

    def _refill(self) -> None:
        """Ask for one more batch, as torch does; or for as many as the workers in use now need."""
        missing = self._prefetch * self._workforce.in_use - len(self._given)
        for _ in range(missing if self._workforce.is_tuned else 1):
            self._ask(self)

    def _note_next(self) -> None:
        """Note for a checkpoint whose turn it is, and which workers have given all they had."""
        waiting = {arrival.result.worker for arrival in self._arrived.values()}
        self._progress.ended = [
            not active and worker not in waiting for worker, active in enumerate(self._given.active)
        ]
        for number in range(self._next, self._sent):
            owner = self._given.owner(number)
            if owner is not None and (number in self._arrived or self._given.active[owner]):
                self._progress.next_worker = owner
                return

    def _await_next(self) -> Arrival:
        """Return the next result in turn; StopIteration when all were delivered."""
        while True:
            while self._next < self._sent:
                owner = self._given.owner(self._next)
                if owner is not None and (self._next in self._arrived or self._given.active[owner]):
                    break
                # It was delivered out of order, or its worker ended before it came to this one.
                self._given.forget(self._next)
                self._next += 1
            else:
                stay = self._persistent_workers
                self._progress.finish(stays=stay, keeps_seed=stay)
                if not self._persistent_workers:
                    self._close()
                self._progress.check_usable(self._num_yielded, self._shards)
                raise StopIteration
            if self._next in self._arrived:
                number = self._next
            elif self._arrived and not self._in_order:
                number = next(iter(self._arrived))
            else:
                self._collect()
                continue
            self._given.delivered(number)
            return self._arrived.pop(number)

    def _collect(self) -> None:
        """Take in what has arrived, waiting for something."""
        timeout = self._timeout or None
        if self._patience is None:
            arrival = self._receive(timeout)
        else:
            arrival = self._patience.receive(
                self._receive, timeout, since=self._asked, what=self._awaited
            )
        if arrival is None:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        result = arrival.result
        if result.generation != self._generation:  # of an epoch that was left early
            arrival.give_up()
        elif result.number == BEGUN:
            self._progress.begun_with(result.worker, result.state)
        elif result.ended:
            self._given.ended(result.number, result.worker)
            self._samples.pop(result.number, None)
            self._progress.ended_with(result.worker, result.state)
            self._dispatch()
        else:
            self._arrived[result.number] = arrival

    def _awaited(self) -> str:
        """Say what the loop waits for, to a person."""
        if not self._in_order:
            return "a batch"
        owner, ready = self._given.owner(self._next), len(self._arrived)
        words = "the first batch" if self._num_yielded == 0 else f"batch {self._next}"
        staging = "" if self._shards is None else self._shards.fastfeed_under_way()
        return f"{words} of worker {owner}{staging}, {ready} more ready"

    def _deliver(self, arrival: Arrival, *, samples: int, started: float) -> Any:
        """Return the batch of a result, pinned if need be."""
        batch, nbytes, copied = self._open(arrival, prefetch=self._prefetch)
        if self._pin_memory:  # a copy by itself; what was lent is over when the originals die
            batch = pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        elif copied:
            self._tell(copied)
        result = arrival.result
        got = time.perf_counter()
        stock = self._prefetch * self._workforce.in_use
        self._workforce.delivered(
            self._pool, wait_s=got - started, busy_s=result.busy_s, stock=stock
        )
        self._stats.delivered(
            (  # a Delivery's values
                started,
                got,
                result.number,
                samples,
                nbytes,
                copied is not None,
                result.worker,
                result.busy_s,
                result.times,
                getattr(result.report, "steps_s", None),
                result.stage,
            )
        )
        return batch

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.info(what)


def _open(arrival: Arrival, *, prefetch: int) -> Opened:
    return arrival.open(prefetch=prefetch)


def region_bytes(limit: int | None, workers: int) -> int:
    """Return the size of each worker's region when `limit` bytes of memory are left."""
    share = int((limit or LEAST_REGION * 64) * _MEMORY_SHARE) // workers
    return max(LEAST_REGION, share // 4096 * 4096)
