"""What makes batches in a worker: the data set's own fetcher, or torch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data.dataloader import _DatasetKind, default_collate

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.collating.collate import Writer


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


class Fetcher(Protocol):
    """Makes batches in a worker."""

    def fetch(self, indices: Any, epoch: int, writer: Writer) -> Any:
        """Return a batch, whose tensors may lie in `writer`'s memory.

        Raises EmptyBatchError if all its samples were skipped.
        """
        ...

    def take_report(self) -> Any:
        """Return what the data set is to be told in the trainer, None if nothing."""
        ...


class TorchFetcher:
    """Makes batches as torch's workers do: data set items through the collate function."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._shards = shards_under(source.dataset)
        self._epoch: int | None = None
        self.restart()

    def restart(self) -> None:
        """Begin an epoch: iterable data sets start over."""
        source = self._source
        self._fetcher = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            source.kind,
            source.dataset,
            source.auto_collation,
            source.collate_fn,
            source.drop_last,
        )

    def fetch(self, indices: Any, epoch: int, writer: Writer) -> Any:  # noqa: ARG002
        """Return the batch that torch's worker would return."""
        if epoch != self._epoch and self._shards is not None:
            self._shards.set_epoch(epoch)
        self._epoch = epoch
        return self._fetcher.fetch(indices)

    def take_report(self) -> Any:
        """Return what shards beneath the data set have to tell."""
        return None if self._shards is None else self._shards.fastfeed_take_report()


def shards_under(dataset: Any) -> Any:
    """Return the data set over shards that `dataset` is, or wraps as Subset does; None if none."""
    for _ in range(_LAYERS):
        if hasattr(dataset, "fastfeed_fetcher"):
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None


def make_fetcher(source: Source, *, threads: int) -> Fetcher:
    """Return the data set's own fetcher if it has one and nothing stands between, else torch's."""
    own = getattr(source.dataset, "fastfeed_fetcher", None)
    if own is not None and source.auto_collation and source.collate_fn is default_collate:
        fetcher: Fetcher = own(threads=threads)
        return fetcher
    return TorchFetcher(source)
