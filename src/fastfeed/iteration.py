"""One pass over a loader: jobs go round the workers, batches come back in order.

The iterators extend torch's own, so that seeds, samplers, warnings and pinning are torch's. The
order in which the sampler is asked, and how far ahead, is torch's too: batches, shuffles and
augmentations are the same to the bit.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import pin_memory
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from fastfeed.collating.collate import HeapWriter
from fastfeed.collating.failure import rebuild
from fastfeed.collating.fetch import Source, make_fetcher, shards_under
from fastfeed.collating.pack import unpack
from fastfeed.errors import EmptyBatchError, WorkerError
from fastfeed.topology import memory_limit
from fastfeed.worker import Result, WorkerSetup
from fastfeed.workers import LEAST_REGION, WorkerPool

if TYPE_CHECKING:
    from fastfeed.loader import DataLoader

log = logging.getLogger("fastfeed")

# Shared memory that all workers of a loader may take at the most, of what the machine has left;
# pages are taken only as batches need them.
_MEMORY_SHARE = 0.5
# Seconds that the other workers get to end after one has died.
_GRACE_AFTER_DEATH_S = 0.5
# Batches that a user may hold of one worker, beyond those on their way, before they are copied.
_KEPT = 2
_MANY_KEPT = "many batches are kept at a time; they are copied out of shared memory"
_FULL = "batches are larger than the shared memory of a worker; they are copied through its pipe"


class WorkerIterator(_BaseDataLoaderIter):
    """Batches made by worker processes."""

    _dataset: Any

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        self._stats = loader.stats
        self._shards = shards_under(self._dataset)
        self._prefetch = 2 if loader.prefetch_factor is None else loader.prefetch_factor
        if self._prefetch <= 0:  # torch's exception for it
            raise AssertionError("prefetch_factor must be greater than 0 with workers")
        self._in_order = getattr(loader, "in_order", True)
        self._told: set[str] = set()
        self._generation = -1
        self._arrived: dict[int, tuple[Result, list[bytes]]] = {}
        self._open_pool(loader)
        self._reset(loader, first_iter=True)

    def _open_pool(self, loader: DataLoader) -> None:
        self._pool = self._start(loader)
        self._close = weakref.finalize(self, self._pool.close)

    def _start(self, loader: DataLoader) -> WorkerPool:
        source = Source(
            dataset=self._dataset,
            kind=self._dataset_kind,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
        )
        setups = [
            WorkerSetup(
                source=source,
                base_seed=int(self._base_seed),
                init_fn=loader.worker_init_fn,
                worker=worker,
                workers=self._num_workers,
                threads=loader.worker_threads,
                trainer=os.getpid(),
            )
            for worker in range(self._num_workers)
        ]
        context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        return WorkerPool(context, setups, capacity=loader.region_bytes(memory_limit()))

    def _reset(self, loader: DataLoader, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        super()._reset(loader, first_iter)
        self._epoch = loader.begin_epoch()
        for result, _ in self._arrived.values():  # of an epoch that was left early
            self._give_up(result)
        if self._pool.closed:  # an earlier epoch ended with the death of a worker
            self._close()  # lets go of the old pool
            self._open_pool(loader)
            first_iter = True
        self._generation += 1
        self._sent = self._next = 0
        self._owners: dict[int, int] = {}
        self._samples: dict[int, int] = {}
        self._arrived = {}
        self._active = [True] * self._num_workers
        self._tasks = [0] * self._num_workers
        self._cycle = itertools.cycle(range(self._num_workers))
        if not first_iter:
            for worker in range(self._num_workers):
                self._pool.send(
                    worker, generation=self._generation, number=None, index=None, epoch=self._epoch
                )
        for _ in range(self._prefetch * self._num_workers):
            self._dispatch()

    def _dispatch(self) -> None:
        """Ask the sampler for one more batch and give it to the next worker in turn."""
        try:
            index = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        most = self._prefetch * self._num_workers // max(1, sum(self._active))
        for _ in range(self._num_workers):
            worker = next(self._cycle)
            if self._active[worker] and (self._in_order or self._tasks[worker] < most):
                break
        else:
            return
        number = self._sent
        self._sent += 1
        self._owners[number] = worker
        self._samples[number] = count_samples(index) if self._auto_collation else 1
        self._tasks[worker] += 1
        self._pool.send(
            worker, generation=self._generation, number=number, index=index, epoch=self._epoch
        )

    def _next_data(self) -> Any:
        started = time.perf_counter()
        while True:
            try:
                result, private = self._await_next()
            except WorkerError:
                self._pool.close(grace_s=_GRACE_AFTER_DEATH_S)
                raise
            self._tasks[result.worker] -= 1
            samples = self._samples.pop(result.number)
            try:
                self._dispatch()
            except BaseException:  # the sampler failed; the batch is lost, its memory is not
                self._give_up(result)
                raise
            if result.report is not None:
                self._shards.fastfeed_report(result.report, self._stats)
                samples -= result.report.skipped
            if result.failure is not None:
                raise rebuild(result.failure, result.worker)
            if result.packed is not None:
                return self._deliver(result, private, samples=samples, started=started)

    def _await_next(self) -> tuple[Result, list[bytes]]:
        """Return the next result in turn; StopIteration when all were delivered."""
        while True:
            while self._next < self._sent:
                owner = self._owners.get(self._next)
                if owner is not None and (self._next in self._arrived or self._active[owner]):
                    break
                self._owners.pop(self._next, None)  # its worker ended before it came to this one
                self._next += 1
            else:
                if not self._persistent_workers:
                    self._close()
                raise StopIteration
            if self._next in self._arrived:
                number = self._next
            elif self._arrived and not self._in_order:
                number = next(iter(self._arrived))
            else:
                self._collect()
                continue
            del self._owners[number]
            return self._arrived.pop(number)

    def _collect(self) -> None:
        """Take in what has arrived, waiting for something."""
        found = self._pool.receive(self._timeout or None)
        if found is None:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        result, private = found
        if result.generation != self._generation:  # of an epoch that was left early
            self._give_up(result)
        elif result.ended:
            self._active[result.worker] = False
            self._owners.pop(result.number, None)
            self._dispatch()
        else:
            self._arrived[result.number] = (result, private)

    def _deliver(
        self, result: Result, private: list[bytes], *, samples: int, started: float
    ) -> Any:
        """Return the batch of a result: lying in the region, or copied if many are held."""
        lender = self._pool.lender(result.worker)
        packed = result.packed
        if packed is None:
            raise RuntimeError("a result without a batch is not delivered")
        capacity = lender.region.capacity
        room = capacity // max(1, packed.nbytes) - self._prefetch - 1
        copy = lender.lent >= min(room, self._prefetch + _KEPT)
        batch = unpack(packed, private, lender.open(result.extents), copy=copy)
        if private:
            self._tell(_FULL)
        if self._pin_memory:  # a copy by itself; what was lent is over when the originals die
            batch = pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        elif copy:
            self._tell(_MANY_KEPT)
        self._stats.delivered(
            wait_s=time.perf_counter() - started,
            busy_s=result.busy_s,
            samples=samples,
            nbytes=packed.nbytes,
            copied=copy or bool(private),
        )
        return batch

    def _give_up(self, result: Result) -> None:
        """Let go of a batch that nobody will get."""
        if not self._pool.closed:
            self._pool.lender(result.worker).open(result.extents).seal()

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.info(what)


class InProcessIterator(_SingleProcessDataLoaderIter):
    """Batches made in the trainer's own process, when there are no workers."""

    _dataset: Any

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        self._stats = loader.stats
        self._epoch = loader.begin_epoch()
        self._fetcher: Any = None
        self._shards = shards_under(self._dataset)
        if self._shards is not None:
            source = Source(
                self._dataset,
                self._dataset_kind,
                self._auto_collation,
                self._collate_fn,
                self._drop_last,
            )
            self._fetcher = make_fetcher(source, threads=loader.worker_threads)
        self._skipped = 0

    def _next_data(self) -> Any:
        started = time.perf_counter()
        index = self._next_index()  # type: ignore[no-untyped-call]
        batch = self._make(index)
        seconds = time.perf_counter() - started
        self._stats.delivered(
            wait_s=seconds,
            busy_s=seconds,
            samples=(count_samples(index) if self._auto_collation else 1) - self._skipped,
            nbytes=0,
            copied=False,
        )
        return batch

    def _make(self, index: Any) -> Any:
        """Return the batch of an index; with skipped samples perhaps a later one."""
        fetch = self._dataset_fetcher.fetch if self._fetcher is None else self._fetch
        batch = fetch(index)
        if self._pin_memory:
            batch = pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch

    def _fetch(self, index: Any) -> Any:
        while True:
            try:
                return self._fetcher.fetch(index, self._epoch, HeapWriter())
            except EmptyBatchError:
                index = self._next_index()  # type: ignore[no-untyped-call]
            finally:
                report = self._fetcher.take_report()
                self._skipped = report.skipped
                self._shards.fastfeed_report(report, self._stats)


def count_samples(index: Any) -> int:
    """Return how many samples a batch sampler asks for; what it yields is its own affair."""
    try:
        return len(index)
    except TypeError:
        return 1


def region_bytes(limit: int | None, workers: int) -> int:
    """Return the size of each worker's region when `limit` bytes of memory are left."""
    share = int((limit or LEAST_REGION * 64) * _MEMORY_SHARE) // workers
    return max(LEAST_REGION, share // 4096 * 4096)
