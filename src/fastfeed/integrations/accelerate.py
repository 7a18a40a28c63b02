"""Keeps batches on fastfeed where Accelerate builds torch's loader from the parts of ours.

Splitting, skipping, devices and random states stay Accelerate's own. It looks its loader class up
by one name in one module; that name is given a class which remembers whose parts it is given.
`fastfeed.DataLoader` arranges this by itself when Accelerate asks for it.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch.utils.data
from accelerate import data_loader as theirs  # type: ignore[import-untyped]
from torch.utils.data import IterDataPipe, MapDataPipe

from fastfeed.errors import OptionError
from fastfeed.indices import samplers_of
from fastfeed.integrations.rebuild import extra_arguments
from fastfeed.loader import DataLoader
from fastfeed.sampler import ShardSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

_origins: weakref.WeakValueDictionary[int, DataLoader[Any]] = weakref.WeakValueDictionary()
"""Loaders of ours by the id of what they own: its id is its own as long as the loader lives."""
_asked: list[weakref.ref[DataLoader[Any]]] = []
"""The loader that Accelerate asked last, until it builds another one."""


def register(loader: DataLoader[Any]) -> None:
    """Remember what a loader owns, for a loader that is built from it to be ours too."""
    install()
    _note(loader)
    _asked[:] = [weakref.ref(loader)]


def _note(loader: DataLoader[Any]) -> None:
    for part in (loader.dataset, loader.sampler, loader.batch_sampler):
        if part is not None:
            _origins[id(part)] = loader


def _origin_of(
    dataset: Any, *, batch_sampler: Any = None, sampler: Any = None, **others: Any
) -> DataLoader[Any] | None:
    """Return the loader of ours that the arguments of a new one were taken from."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        return None  # torch iterates over these in ways of its own, and they have no state
    order = sampler if batch_sampler is None else batch_sampler
    parts = samplers_of(order) if order is not None else _layers_of(dataset)
    for part in parts:
        if (origin := _origins.get(id(part))) is not None:
            return origin
    # Some data sets are split into new ones that do not tell what they are parts of.
    last = _asked[0]() if _asked else None
    if last is None or order is not None or type(dataset) is not type(last.dataset):
        return None
    taken = all(getattr(last, name, other) is other for name, other in others.items())
    return last if taken else None


def _layers_of(dataset: Any) -> Iterator[Any]:
    yield dataset
    if isinstance(dataset, theirs.IterableDatasetShard):
        yield dataset.dataset


def _build(*args: Any, **arguments: Any) -> torch.utils.data.DataLoader[Any]:
    """Return a loader of ours if the arguments are one's parts, else torch's."""
    origin = None
    if len(args) == 1:
        origin = _origin_of(*args, **arguments)
        _asked.clear()
    if origin is None:
        return torch.utils.data.DataLoader(*args, **arguments)
    _leave_splitting(arguments)
    loader: DataLoader[Any] = DataLoader(*args, **(arguments | extra_arguments(origin)))
    _note(loader)
    return loader


def _leave_splitting(arguments: dict[str, Any]) -> None:
    """Have shards ordered for all ranks together, and their epoch set, under what Accelerate adds.

    It takes each rank's batches out of all of them itself.
    """
    order = arguments.get("batch_sampler")
    order = arguments.get("sampler") if order is None else order
    inner = next((one for one in samplers_of(order) if isinstance(one, ShardSampler)), None)
    if order is None or inner is None:
        return
    inner.num_replicas, inner.rank = inner._asked = (1, 0)  # noqa: SLF001
    if not hasattr(order, "sampler"):  # where Accelerate looks for `set_epoch`
        order.sampler = inner


class _Kind(type):
    """What the name of torch's class serves for besides making loaders: asking whether one is."""

    def __call__(cls, *args: Any, **arguments: Any) -> Any:
        return (
            _build(*args, **arguments) if cls is _Loader else super().__call__(*args, **arguments)
        )

    def __instancecheck__(cls, instance: Any) -> bool:
        kind = torch.utils.data.DataLoader
        return isinstance(instance, kind) if cls is _Loader else super().__instancecheck__(instance)


class _Loader(torch.utils.data.DataLoader[Any], metaclass=_Kind):
    """Stands where Accelerate looks up torch's class."""


def _adapt(init: Any) -> Any:
    """Return the beginning of Accelerate's adapter, with our loader for a stateful one too.

    With `use_stateful_dataloader` it would build torchdata's; ours has the same two methods.
    """

    @functools.wraps(init)
    def adapted(
        self: Any,
        dataset: Any,
        use_stateful_dataloader: bool = False,  # noqa: FBT001, FBT002 - Accelerate's signature
        batch_sampler: Any = None,
        **others: Any,
    ) -> None:
        ours = _origin_of(dataset, batch_sampler=batch_sampler, **others) is not None
        init(self, dataset, use_stateful_dataloader and not ours, batch_sampler, **others)
        self.use_stateful_dataloader = use_stateful_dataloader

    return adapted


def _fetch(fetch: Any) -> Any:
    """Return how the dispatcher fetches a batch for each rank, with the state before the first.

    It looks that many batches ahead of the loop, and asks for a state before each of them.
    """

    @functools.wraps(fetch)
    def fetched(self: Any, iterator: Any) -> Any:
        self._before = None
        return fetch(self, iterator)

    return fetched


def _adjust(adjust: Any) -> Any:
    """Return how the dispatcher corrects a state for its looking ahead: ours counts no batches."""

    @functools.wraps(adjust)
    def adjusted(self: Any) -> None:
        if not isinstance(self.base_dataloader, DataLoader):
            adjust(self)
        elif not self.end_of_dataloader:
            self._before = self.dl_state_dict = self._before or self.dl_state_dict

    return adjusted


def _update(update: Any) -> Any:
    """Return how an adapter keeps a state, with whose it is: Accelerate saves one for all ranks."""

    @functools.wraps(update)
    def updated(self: Any) -> None:
        update(self)
        if isinstance(self.base_dataloader, DataLoader):
            self.dl_state_dict["_process"] = theirs.PartialState().process_index

    return updated


def _load(load: Any) -> Any:
    """Return how an adapter loads a state that may be another process's."""

    @functools.wraps(load)
    def loaded(self: Any, state: dict[str, Any]) -> None:
        if isinstance(self.base_dataloader, DataLoader):
            own = theirs.PartialState().process_index
            if state.get("_process", own) != own:
                state = _for_this_process(state, self.base_dataloader)
            state = {name: part for name, part in state.items() if not name.startswith("_")}
        load(self, state)

    return loaded


def _for_this_process(state: dict[str, Any], loader: DataLoader[Any]) -> dict[str, Any]:
    """Return another process's state without what is not this one's: indices, torch's generator.

    The generators of the samplers are the same in all of them; Accelerate sees to that.
    """
    draws = state.get("draws")
    if draws is not None and loader.generator is None:
        own = torch.get_rng_state()
        draws = {name: kept and [own, *kept[1:]] for name, kept in draws.items()}
    return {**state, "last": None, "draws": draws}


def install() -> None:
    """Put our class where Accelerate looks up torch's; once."""
    if theirs.DataLoader is _Loader:
        return
    try:
        adapter, dispatcher = theirs.DataLoaderAdapter, theirs.DataLoaderDispatcher
        init, fetch = adapter.__init__, dispatcher._fetch_batches  # noqa: SLF001
        adjust = dispatcher.adjust_state_dict_for_prefetch
        update, load = adapter._update_state_dict, adapter.load_state_dict  # noqa: SLF001
    except AttributeError as error:  # which would pass for an answer where Accelerate asks
        raise OptionError(
            f"this version of Accelerate is not known: {error}",
            way_out="Use Accelerate 1.0 or later, or torch's DataLoader",
        ) from error
    adapter.__init__ = _adapt(init)
    adapter._update_state_dict = _update(update)  # noqa: SLF001
    adapter.load_state_dict = _load(load)
    dispatcher._fetch_batches = _fetch(fetch)  # noqa: SLF001
    dispatcher.adjust_state_dict_for_prefetch = _adjust(adjust)
    theirs.DataLoader = _Loader
