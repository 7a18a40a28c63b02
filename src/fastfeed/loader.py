"""DataLoader: torch's interface, with batches moved through shared memory."""

from __future__ import annotations

import inspect
import logging
import sys
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe

from fastfeed.arguments import check_device, check_epoch, check_keeps_state, check_workers
from fastfeed.device.path import DeviceOptions, DevicePath
from fastfeed.errors import OptionError
from fastfeed.indices import samplers_of
from fastfeed.inprocess import InProcessIterator
from fastfeed.iteration import WorkerIterator, region_bytes
from fastfeed.options import AutoWorkers, resolve_workers
from fastfeed.progress import Progress, data_of, resting
from fastfeed.resume import LoaderState
from fastfeed.sampler import ShardSampler
from fastfeed.stats import Snapshot, Stats, describe
from fastfeed.workforce import Workforce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.context import BaseContext

    from torch.utils.data import Dataset, Sampler

    from fastfeed.collating.fetch import Source
    from fastfeed.device.output import OutputKind
    from fastfeed.device.path import Decode
    from fastfeed.tuner.decision import Decision


def _lightning_asks() -> bool:
    """Say whether Lightning called the method of ours that calls this."""
    caller = str(sys._getframe(2).f_globals.get("__name__"))  # noqa: SLF001 - no other way to know
    return caller.startswith(("lightning.", "pytorch_lightning."))


_THEIRS = inspect.signature(torch.utils.data.DataLoader.__init__).parameters


log = logging.getLogger("fastfeed")

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """Drop-in for `torch.utils.data.DataLoader`: every argument and the same batches, moved faster.

    Over a `ShardDataset` batches are decoded straight into shared memory, `shuffle=True` shuffles
    within windows of shards, and every epoch has another order by itself.

    Args beyond torch's:
        num_workers: may be `fastfeed.AUTO`: at first as many as the process may really use cores,
            then as few as the loop needs, found while it runs; more than cores where they wait.
        worker_threads: threads in each worker that decode the samples of one batch side by side;
            for `ShardDataset` only.
        worker_kind: "process", or "thread": workers are threads of this process, for data sets
            whose work releases the GIL (or on a Python without one); nothing is pickled or forked.
        restart_workers: how many workers of an iterator may be started again after they died; the
            batches they had not made are made by the new one. 0: the first death is an error.
        snapshot_every_n_steps: an iterable data set that has `state_dict` and `load_state_dict` is
            asked for its state after so many batches of each worker; `load_state_dict` makes those
            after the last snapshot again. Samplers that have these methods are asked as often.
            Other data costs nothing until `state_dict` is called.
        device: where the batches go, such as "cuda": each is on the device, ready for the stream
            that is current at `next`. Tensors are copied beside the training step, from pinned
            shared memory; what is no tensor stays on the host.
        decode: who decodes the JPEGs of a `ShardDataset`: "auto" (workers and GPU together, split
            so that training is fastest), "cpu", "gpu", or the GPU's share, 0.0 to 1.0.
        output: "fresh" tensors for every batch, or "static": the same ones each time, for CUDA
            graphs; they hold a batch until the next one is asked for.
        batch_transform: called with each batch on the device, in the consumer's thread and stream.
        pinned_budget: memory that may be pinned, in bytes or as a text such as "4GiB"; by default a
            quarter of what is free, at most 8 GiB, for all loaders of the process together.

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
        worker_kind: Literal["process", "thread"] = "process",
        worker_threads: int = 1,
        restart_workers: int = 0,
        snapshot_every_n_steps: int = 1,
        device: str | torch.device | int | None = None,
        decode: Decode | float = "auto",
        output: OutputKind = "fresh",
        batch_transform: Callable[[Any], Any] | None = None,
        pinned_budget: int | str | None = None,
    ) -> None:
        check_workers(
            num_workers,
            kind=worker_kind,
            threads=worker_threads,
            restarts=restart_workers,
            snapshot_every=snapshot_every_n_steps,
            has_context=multiprocessing_context is not None,
        )
        if device is not None:
            check_device(device, dataset, pins=pin_memory)
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
            resolve_workers(num_workers, on_device=device is not None),
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
        self.worker_kind = worker_kind
        self.worker_threads = worker_threads
        self.restart_workers = restart_workers
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.device = device
        self.decode = decode
        self.output = output
        self.batch_transform = batch_transform
        self.pinned_budget = pinned_budget
        self._device_options().check()
        self._device_path: DevicePath | None = None
        self._workforce: Workforce | None = None
        self._stats = Stats()
        self._epoch = 0
        self._told_epoch: int | None = None
        self._progress: Progress | None = None
        self._pending: LoaderState | None = None
        self._over = False

    def stats(self) -> Snapshot:
        """Return what was measured at the hand-offs so far, over all epochs, as a frozen value.

        Any thread may ask, at any time.
        """
        path = self._device_path
        return self._stats.snapshot(None if path is None else path.facts())

    def snapshot(self) -> Snapshot:
        """Return the same as `stats`."""
        return self.stats()

    def report(self, *, colour: bool | None = None) -> str:
        """Return rates, waits and where the time went, in words.

        `colour` is for terminals; by default if the standard output is one.
        """
        if colour is None:
            colour = sys.stdout is not None and sys.stdout.isatty()
        force = self._workforce
        workers = self.num_workers if force is None else force.most
        in_use = force.in_use if force is not None and force.is_tuned else None
        return describe(self.stats(), workers=workers, in_use=in_use, colour=colour)

    @property
    def workers_in_use(self) -> int:
        """How many workers get jobs now: with `fastfeed.AUTO` it changes while the loop runs.

        Of several iterators it is the number of the one begun last.
        """
        return int(self.num_workers if self._workforce is None else self._workforce.in_use)

    @property
    def tuning(self) -> tuple[Decision, ...]:
        """Every change that the loader made to itself while it ran, with the figures behind it."""
        workers = () if self._workforce is None else self._workforce.decisions
        shares = () if self._device_path is None else tuple(self._device_path.tuner.decisions)
        return (*workers, *shares)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, here and wherever else it is kept.

        A state that was loaded and not yet resumed is forgotten if it is of the middle of another
        epoch.
        """
        epoch = check_epoch(epoch)
        if self._pending is not None and self._pending.epoch != epoch:
            if self._pending.begun:
                was = self._pending.epoch
                log.info("set_epoch(%s): the state of epoch %s is not resumed", epoch, was)
            self._pending = None if self._pending.begun else replace(self._pending, epoch=epoch)
        self._epoch = self._told_epoch = epoch
        for keeper in (self.sampler, self.batch_sampler, self.dataset):
            if callable(getattr(keeper, "set_epoch", None)):
                keeper.set_epoch(epoch)  # type: ignore[union-attr]

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop stands: what it was given, not what was prefetched.

        Plain containers, numbers and tensors (and the states of samplers and data sets that have
        their own), a few kilobytes. Once an epoch has ended it is the state of the next one's
        beginning.
        """
        check_keeps_state(self.dataset)
        if self._pending is not None:
            return self._pending.as_dict()
        if self._progress is None:
            state = resting(self._index_sampler, self.generator, epoch=self._next_epoch())
        else:
            state = self._progress.capture()
            if not state.begun:  # the epoch may have been set since the last one ended
                state = replace(state, epoch=self._next_epoch())
        return replace(state, data=data_of(self)).as_dict()

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True) -> None:
        """Go on from a state at the next `iter()`: the rest of its epoch, then the ones after it.

        Generators that the order is drawn from (`generator`, or torch's global one) get the states
        they had. The number of workers may differ for map-style data; that of ranks as well for
        `ShardDataset`.

        Raises OptionError if the state is of other data (unless `strict` is false), or cannot be
        resumed in this number of workers.
        """
        check_keeps_state(self.dataset)
        state = LoaderState.of(state_dict)
        state.check(data_of(self) if strict else {}, workers=self.num_workers)
        # Lightning counts an epoch as done after its last batch, without waiting for its end.
        self._over = state.begun and _lightning_asks() and state.delivered == self._length()
        self._pending = state

    def __iter__(self) -> Any:
        """Return an iterator over the next epoch, or over the rest of the one that is resumed."""
        if self._over:
            self._over = False
            for _ in super().__iter__():  # nothing is left; samplers and data sets come to the end
                pass
        return super().__iter__()

    def _length(self) -> int | None:
        try:
            return len(self)
        except TypeError:
            return None

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the loader has not begun."""
        fresh = dict.fromkeys(("_progress", "_iterator", "_device_path", "_workforce"))
        return {**self.__dict__, **fresh, "_stats": Stats()}

    # What trainers ask for

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate asks this of every loader before it builds another one from its parts."""
        if "accelerate.data_loader" in sys.modules:
            # By name: the integrations stand on this module. Nobody else has to know of them.
            import_module("fastfeed.integrations.accelerate").register(self)
        return bool(self.__dict__.get("_prepared"))

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._prepared = prepared

    # What the iterators and exports ask for

    @property
    def collector(self) -> Stats:
        """Where deliveries are counted, and where exports listen."""
        return self._stats

    def _next_epoch(self) -> int:
        sampler = self._shard_sampler()
        return self._epoch if sampler is None else sampler.epoch

    def _shard_sampler(self) -> ShardSampler | None:
        samplers = samplers_of(self._index_sampler)  # trainers wrap ours in theirs
        return next((one for one in samplers if isinstance(one, ShardSampler)), None)

    def follows_plan(self) -> bool:
        """Say whether samples come in the order that the data set of shards shuffles itself into.

        Whoever made the sampler: `shuffle=True`, the user or a trainer.
        """
        sampler, shards = self._shard_sampler(), self.dataset
        if sampler is None or not hasattr(shards, "fastfeed_fetcher"):
            return False
        return sampler.follows_plan_of(shards)  # type: ignore[arg-type]

    def _device_options(self) -> DeviceOptions:
        return DeviceOptions(
            device=self.device,
            decode=self.decode,
            output=self.output,
            transform=self.batch_transform,
            pinned_budget=self.pinned_budget,
            workers=self.num_workers,
        )

    def device_path(self, source: Source) -> DevicePath | None:
        """Return what brings the batches of `source` to the device, None if they stay here."""
        if self.device is not None and self._device_path is None:
            self._device_path = DevicePath(self._device_options(), source)
        return self._device_path

    def workforce(self, path: DevicePath | None, *, one_by_one: bool, alike: bool) -> Workforce:
        """Return who works for a new iterator; it goes on from what the one before it found.

        Only a number of workers that we chose is tuned; not while the GPU's share is, which needs
        all of them; nor where each worker has a part of the data, not `one_by_one`. More of them
        can come later if all are `alike`, none with a state of its own.
        """
        if self._workforce is None:
            shared = path is not None and not path.tuner.fixed
            tuned = isinstance(self.num_workers, AutoWorkers) and one_by_one and not shared
            self._workforce = Workforce(self.num_workers, fixed=not tuned, grows=alike)
        else:
            self._workforce = copy(self._workforce)
        return self._workforce

    def told_epoch(self) -> int | None:
        """Return the epoch that `set_epoch` was called with last, None if it never was."""
        return self._told_epoch

    def pending_state(self) -> LoaderState | None:
        """Return the state to resume, if one was loaded."""
        return self._pending

    def began(self, progress: Progress) -> None:
        """An iterator is complete: its progress counts from now on, and nothing is pending."""
        self._progress, self._pending = progress, None
        self._epoch = progress.epoch + 1

    def begin_epoch(self, state: LoaderState | None) -> Progress:
        """Return the progress of the epoch that is beginning, or of the one that is resumed."""
        return Progress(
            self._index_sampler,
            self.generator,
            epoch=self._next_epoch() if state is None else state.epoch,
            resumed=state,
            snapshot_every=self.snapshot_every_n_steps,
            shard_sampler=self._shard_sampler(),
        )

    def region_bytes(self, memory: int | None) -> int:
        """Return the size of each worker's region when `memory` bytes are left."""
        return region_bytes(memory, self.num_workers)

    def _get_iterator(self) -> Any:
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super()._get_iterator()  # torch seeds and splits these in ways of their own
        if self.num_workers == 0:
            return InProcessIterator(self)
        return WorkerIterator(self)  # that workers are many torch has said when the loader was made
