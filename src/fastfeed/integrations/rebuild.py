"""Makes a loader of ours from another loader's parts, as trainers do with torch's."""

from __future__ import annotations

import inspect
from typing import Any

import torch.utils.data
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from fastfeed.loader import DataLoader

_ORDER = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
_THEIRS = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)[1:]
_OURS = list(inspect.signature(DataLoader.__init__).parameters)[1:]


def extra_arguments(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a loader that torch's does not have."""
    return {name: getattr(loader, name) for name in _OURS if name not in {*_THEIRS, "in_order"}}


def like(loader: torch.utils.data.DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """Return a loader of ours over the data of any loader, with its arguments but for `changed`.

    Where torch chose the sampler and the data set has one of its own (as `ShardDataset` has), the
    data set's is taken.
    """
    arguments = {name: getattr(loader, name) for name in _THEIRS if name not in _ORDER}
    if isinstance(loader, DataLoader):
        arguments |= extra_arguments(loader)
    if own_batches(loader):
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if "sampler" not in changed and not isinstance(loader.dataset, IterableDataset):
            arguments |= _order_of(loader)
    return DataLoader(loader.dataset, **(arguments | changed))


def own_batches(loader: torch.utils.data.DataLoader[Any]) -> bool:
    """Say whether a loader's batches come from a batch sampler of the user's."""
    return loader.batch_size is None and loader.batch_sampler is not None


def _order_of(loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
    if hasattr(loader.dataset, "fastfeed_sampler"):
        for kind, shuffle in ((RandomSampler, True), (SequentialSampler, False)):
            if type(loader.sampler) is kind:
                return {"shuffle": shuffle}
    return {"sampler": loader.sampler}
