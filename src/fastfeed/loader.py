"""DataLoader: torch's interface, with batches moved through shared memory."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe

from fastfeed.errors import OptionError
from fastfeed.iteration import InProcessIterator, WorkerIterator, region_bytes
from fastfeed.options import AutoWorkers, resolve_workers
from fastfeed.sampler import ShardSampler
from fastfeed.stats import Snapshot, Stats, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.context import BaseContext

    from torch.utils.data import Dataset, Sampler

_THEIRS = inspect.signature(torch.utils.data.DataLoader.__init__).parameters


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Drop-in for `torch.utils.data.DataLoader`: every argument and the same batches, moved faster.

    Over a `ShardDataset` batches are decoded straight into shared memory, `shuffle=True` shuffles
    within windows of shards, and every epoch has another order by itself.

    Args beyond torch's:
        num_workers: may be `fastfeed.AUTO`: as many as the process may really use cores.
        worker_threads: threads in each worker that decode the samples of one batch side by side;
            for `ShardDataset` only.

    Raises:
        OptionError: an argument of ours that cannot be honoured; torch's own checks raise as ever.
        WorkerError: a worker died (also a RuntimeError, as torch has it).
    """

    def __init__(  # noqa: PLR0913, PLR0917 - torch's signature
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,  # noqa: FBT001
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,  # noqa: FBT001, FBT002
        drop_last: bool = False,  # noqa: FBT001, FBT002
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_threads: int = 1,
    ) -> None:
        if not isinstance(worker_threads, int) or worker_threads < 1:
            raise OptionError(f"worker_threads={worker_threads!r} must be a number from 1 up")
        if sampler is None and batch_sampler is None and batch_size is not None:
            own = getattr(dataset, "fastfeed_sampler", None)
            if own is not None:
                sampler, shuffle = own(shuffle=bool(shuffle)), None
        if "in_order" in _THEIRS:
            newer = {"in_order": in_order}
        elif in_order:
            newer = {}
        else:
            raise OptionError("in_order=False needs torch 2.6 or later", way_out="Upgrade torch")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            resolve_workers(num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **newer,
        )
        self.worker_threads = worker_threads
        self._stats = Stats()
        self._epoch = 0

    @property
    def stats(self) -> Stats:
        """What was measured at the hand-off to the training loop, over all epochs."""
        return self._stats

    def snapshot(self) -> Snapshot:
        """Return rates and waits so far as a frozen value."""
        return self._stats.snapshot()

    def report(self) -> str:
        """Return rates, waits and where the time went, in words."""
        return describe(self._stats.snapshot(), workers=self.num_workers)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, here and wherever else it is kept."""
        self._epoch = epoch
        for keeper in (self.sampler, self.batch_sampler, self.dataset):
            if callable(getattr(keeper, "set_epoch", None)):
                keeper.set_epoch(epoch)  # type: ignore[union-attr]

    # What the iterators ask for

    def begin_epoch(self) -> int:
        """Return the epoch that is beginning, and advance."""
        epoch = self._epoch
        if isinstance(self.sampler, ShardSampler):
            epoch = self.sampler.epoch
        self._epoch = epoch + 1
        return epoch

    def region_bytes(self, memory: int | None) -> int:
        """Return the size of each worker's region when `memory` bytes are left."""
        return region_bytes(memory, self.num_workers)

    def _get_iterator(self) -> Any:
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super()._get_iterator()  # torch seeds and splits these in ways of their own
        if self.num_workers == 0:
            return InProcessIterator(self)
        if not isinstance(self.num_workers, AutoWorkers):
            self.check_worker_number_rationality()
        return WorkerIterator(self)
