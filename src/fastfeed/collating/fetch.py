"""What makes batches in a worker: the data set's own fetcher, or torch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _DatasetKind, default_collate

from fastfeed.resume import START

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.collating.collate import Writer
    from fastfeed.decoding.defer import DeviceSide
    from fastfeed.resume import Place


_NOTHING = object()
# Data sets within data sets that are looked through.
_LAYERS = 8


@dataclass(frozen=True, slots=True)
class Source:
    """Where batches come from, in torch's terms."""

    dataset: Any
    kind: int
    """A map or an iterable, as torch counts them."""
    auto_collation: bool
    collate_fn: Callable[..., Any]
    drop_last: bool
    init_fn: Callable[[int], None] | None = None
    """Run in a worker before all else."""
    shuffled: bool = False
    """Whether the order is the one that a data set of shards shuffles itself into."""


class Fetcher(Protocol):
    """Makes batches in a worker."""

    def fetch(self, indices: Any, epoch: int, writer: Writer, *, share: float) -> Any:
        """Return a batch, whose tensors may lie in `writer`'s memory.

        `share` of its pictures are left to the GPU, where the data set can do that. Raises
        EmptyBatchError if all its samples were skipped.
        """
        ...

    def take_report(self) -> Any:
        """Return what the data set is to be told in the trainer, None if nothing."""
        ...

    def restart(self, *, told: int | None) -> None:
        """Begin an epoch; `told` is its number where the user told it."""
        ...


class TorchFetcher:
    """Makes batches as torch's workers do: data set items through the collate function."""

    def __init__(self, source: Source, place: Place = START) -> None:
        self._source = source
        self._shards = shards_under(source.dataset)
        self._epoch: int | None = None
        self.restart(place)

    def restart(self, place: Place = START, *, told: int | None = None) -> None:
        """Begin an epoch: iterable data sets start over, or go to a place; `told` is its number."""
        source = self._source
        tell(source.dataset, told)
        load_dataset(source.dataset, place)
        self._fetcher = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            source.kind,
            source.dataset,
            source.auto_collation,
            source.collate_fn,
            source.drop_last,
        )
        self._skip = load_iterator(self._fetcher, place)

    def fetch(self, indices: Any, epoch: int, writer: Writer, *, share: float) -> Any:  # noqa: ARG002
        """Return the batch that torch's worker would return."""
        if epoch != self._epoch and self._shards is not None:
            self._shards.set_epoch(epoch)
        self._epoch = epoch
        if self._skip:
            skip(self._fetcher, indices, self._skip)
            self._skip = 0
        return self._fetcher.fetch(indices)

    def take_report(self) -> Any:
        """Return what shards beneath the data set have to tell."""
        return None if self._shards is None else self._shards.fastfeed_take_report()

    def state(self) -> Any:
        """Return the state of the data set and of its iterator, where they keep one."""
        return state_of(self._source.dataset, self._fetcher)


def tell(dataset: Any, epoch: int | None) -> None:
    """Tell a data set its epoch, if it listens and there is one to tell."""
    if epoch is not None and callable(getattr(dataset, "set_epoch", None)):
        dataset.set_epoch(epoch)


def has_state(thing: Any) -> bool:
    """Say whether something keeps a state as torchdata's Stateful does."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def state_of(dataset: Any, fetcher: Any) -> Any:
    """Return the state of a data set and of its iterator; None if neither keeps one."""
    holders = {"dataset": dataset, "iterator": getattr(fetcher, "dataset_iter", None)}
    if holders["iterator"] is dataset:
        del holders["iterator"]
    state = {n: one.state_dict() for n, one in holders.items() if has_state(one)}
    if state and getattr(fetcher, "ended", False):
        state["ended"] = True  # it may be back at its beginning already
    return state or None


def load_dataset(dataset: Any, place: Place) -> None:
    """Give a data set its state of a place, before anything is asked of it.

    At the end of its data one data set is back at its beginning, and another only when it is asked
    for more: that is done here, for nothing is to come of it.
    """
    state = place.state or {}
    if "dataset" not in state:
        return
    dataset.load_state_dict(state["dataset"])
    if isinstance(dataset, IterableDataset) and ("over" in state or "ended" in state):
        iterator = iter(dataset)
        more = next(iterator, _NOTHING) is not _NOTHING
        if hasattr(iterator, "close"):
            iterator.close()
        if more:
            dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]


def load_iterator(fetcher: Any, place: Place) -> int:
    """Give a fetcher's iterator its state of a place; returns how many batches to skip then."""
    iterator = getattr(fetcher, "dataset_iter", None)
    if iterator is None:
        return 0
    if place.state is not None and "iterator" in place.state:
        iterator.load_state_dict(place.state["iterator"])
    fetcher.ended = place.state is not None and "ended" in place.state
    return place.steps


def skip(fetcher: Any, indices: Any, count: int) -> None:
    """Have a fetcher make batches for nobody."""
    collate, fetcher.collate_fn = fetcher.collate_fn, lambda _: None
    try:
        for _ in range(count):
            try:
                fetcher.fetch(indices)
            except StopIteration:
                return
            except Exception:  # noqa: BLE001, S112 - it was raised when the batch was made first
                continue
    finally:
        fetcher.collate_fn = collate


def shards_under(dataset: Any) -> Any:
    """Return the data set over shards that `dataset` is, or wraps as Subset does; None if none."""
    for _ in range(_LAYERS):
        if hasattr(dataset, "fastfeed_fetcher"):
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None


def has_own_fetcher(source: Source) -> bool:
    """Say whether the data set makes its batches itself: nothing stands between."""
    own = getattr(source.dataset, "fastfeed_fetcher", None)
    return own is not None and source.auto_collation and source.collate_fn is default_collate


def make_fetcher(
    source: Source, *, threads: int, place: Place = START, device: DeviceSide | None = None
) -> Fetcher:
    """Return the data set's own fetcher if it has one and nothing stands between, else torch's."""
    if has_own_fetcher(source):
        fetcher: Fetcher = source.dataset.fastfeed_fetcher(
            threads=threads, device=device, shuffled=source.shuffled
        )
        return fetcher
    return TorchFetcher(source, place)
