"""One pass over a loader without workers: batches are made when they are asked for."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data._utils import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from fastfeed.collating.collate import HeapWriter
from fastfeed.collating.fetch import (
    Source,
    has_state,
    load_dataset,
    load_iterator,
    make_fetcher,
    shards_under,
    skip,
    state_of,
)
from fastfeed.errors import EmptyBatchError
from fastfeed.indices import count_samples
from fastfeed.progress import rewind
from fastfeed.resume import START, Place

if TYPE_CHECKING:
    from fastfeed.loader import DataLoader
    from fastfeed.progress import Progress


class InProcessIterator(_SingleProcessDataLoaderIter):
    """Batches made in the trainer's own process, when there are no workers."""

    _dataset: Any

    def __init__(self, loader: DataLoader[Any]) -> None:
        state = loader.pending_state()
        place = state.places[0] if state is not None and state.places else START
        sampler, generator = loader._index_sampler, loader.generator  # noqa: SLF001
        if state is not None:
            rewind(state, sampler, generator)
        self._progress = progress = loader.begin_epoch(state)
        load_dataset(loader.dataset, place)
        super().__init__(loader)
        if state is not None and state.base_seed is not None:
            self._base_seed = state.base_seed
            if not state.begun:  # it was not drawn then
                rewind(state, sampler, generator)
                self._sampler_iter = iter(sampler)
        self._stats = loader.collector
        self._fetcher: Any = None
        self._shards = shards_under(self._dataset)
        source = source_of(self, loader)
        path = loader.device_path(source)
        self._mover = None if path is None else path.mover()
        self._fetch_one = self._stats.named("fetch", InProcessIterator._fetch)
        if self._mover is not None:
            self._move = self._stats.named("device", self._mover.move)
        if self._shards is not None:
            side = None if path is None else path.side
            self._fetcher = make_fetcher(source, threads=loader.worker_threads, device=side)
        self._one_at_a_time = threading.Lock()  # some loops have several threads take batches
        self._skipped = 0
        self._steps_s: dict[str, float] = {}
        iterable = self._dataset_kind == _DatasetKind.Iterable
        self._steps = load_iterator(self._dataset_fetcher, place)
        self._begin(progress, place, iterable=iterable)
        if state is not None and state.begun:
            self._num_yielded = progress.delivered
        loader.began(progress)

    def _begin(self, progress: Progress, place: Place, *, iterable: bool) -> None:
        progress.base_seed = int(self._base_seed)
        if iterable or has_state(self._dataset):
            progress.places, progress.ended = [place], [False]
            dataset, fetcher = self._dataset, weakref.ref(self._dataset_fetcher)
            progress.live_state = lambda: state_of(dataset, fetcher())
            # The data set's iterator ends with this one, not with the loader.
            weakref.finalize(self, _leave, progress, dataset, self._dataset_fetcher)
        progress.start(self._sampler_iter, ordered=not iterable)

    def _next_data(self) -> Any:
        with self._one_at_a_time:
            return self._next_batch()

    def _next_batch(self) -> Any:
        started = time.perf_counter()
        try:
            number, index = self._progress.next()
            if self._steps:
                steps, self._steps = self._steps, 0
                skip(self._dataset_fetcher, index, steps)
            batch = self._make(number, index)
        except StopIteration:
            self._progress.finish(stays=True)
            self._progress.check_usable(self._num_yielded, self._shards)
            raise
        got = time.perf_counter()
        self._stats.delivered(
            (  # a Delivery's values
                started,
                got,
                number,
                (count_samples(index) if self._auto_collation else 1) - self._skipped,
                0,
                False,
                -1,
                got - started,
                (started, 0.0, 0.0, 0.0),
                self._steps_s,
                None,
            )
        )
        return batch

    def _make(self, number: int, index: Any) -> Any:
        """Return the batch of an index; with skipped samples perhaps a later one."""
        while True:
            self._progress.deliver(number)
            try:
                batch = self._fetch_one(self, index)
            except EmptyBatchError:
                if self._fetcher is None:
                    raise
                self._progress.leave_out()
                number, index = self._progress.next()
            else:
                break
        if self._pin_memory:
            batch = pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return batch

    def _fetch(self, index: Any) -> Any:
        self._steps_s = {}
        started = time.perf_counter()
        batch = self._fetch_here(index)
        if self._mover is None:
            return batch
        made = time.perf_counter()
        try:
            batch, report = self._move(batch)
        except EmptyBatchError:
            if self._shards is not None:
                self._shards.fastfeed_report(self._mover.take_report(), self._stats)
            raise
        if not self._steps_s:
            self._steps_s = {"fetch": made - started}
            self._stats.spent("fetch", made - started)
        self._steps_s |= report.steps_s
        if self._shards is None:
            self._stats.spent("device", report.steps_s["device"])
        else:
            self._skipped += report.skipped
            self._shards.fastfeed_report(report, self._stats)
        return batch

    def _fetch_here(self, index: Any) -> Any:
        if self._fetcher is None:
            return self._dataset_fetcher.fetch(index)
        try:
            share = 0.0 if self._mover is None else self._mover.share
            return self._fetcher.fetch(index, self._progress.epoch, HeapWriter(), share=share)
        finally:
            report = self._fetcher.take_report()
            self._skipped, self._steps_s = report.skipped, report.steps_s
            self._shards.fastfeed_report(report, self._stats)


def _leave(progress: Progress, dataset: Any, fetcher: Any) -> None:
    """Note where the iterator of a data set was when the loop left it."""
    if progress.asks_for_state:
        state = state_of(dataset, fetcher)
        progress.left_at(None if state is None else Place(state))


def source_of(iterator: Any, loader: DataLoader[Any]) -> Source:
    """Return where an iterator's batches come from."""
    return Source(
        dataset=iterator._dataset,  # noqa: SLF001 - torch's names, of our own iterators
        kind=iterator._dataset_kind,  # noqa: SLF001
        auto_collation=iterator._auto_collation,  # noqa: SLF001
        collate_fn=iterator._collate_fn,  # noqa: SLF001
        drop_last=iterator._drop_last,  # noqa: SLF001
        init_fn=loader.worker_init_fn,
        shuffled=loader.follows_plan(),
    )
