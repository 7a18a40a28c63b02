"""Ray Train's `prepare_data_loader` for loaders of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray.train
import ray.train.torch
from torch.utils.data import DistributedSampler, IterableDataset, SequentialSampler

from fastfeed.errors import OptionError
from fastfeed.indices import samplers_of
from fastfeed.integrations.rebuild import like, own_batches
from fastfeed.loader import DataLoader

if TYPE_CHECKING:
    import torch.utils.data


def prepare_data_loader(
    loader: torch.utils.data.DataLoader[Any],
    *,
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> torch.utils.data.DataLoader[Any]:
    """Do what Ray's function of this name does, on a loader of ours.

    With several workers of Ray a loader without a DistributedSampler is made again with one, and
    keeps its class and all arguments. Shards come with a sampler that splits them, and iterable
    data is left alone. Batches are moved to the device by Ray.

    Raises OptionError for a batch sampler of the user's, which has to split by ranks itself.
    """
    if not isinstance(loader, DataLoader):
        loader = like(loader)
    if add_dist_sampler and ray.train.get_context().get_world_size() > 1:
        loader = _split(loader)
    return ray.train.torch.prepare_data_loader(
        loader,
        add_dist_sampler=False,
        move_to_device=move_to_device,
        auto_transfer=auto_transfer,
    )


def _split(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader with a sampler for each rank; the one given if it has one already."""
    order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or any(
        isinstance(one, DistributedSampler) for one in samplers_of(order)
    ):
        return loader
    if own_batches(loader):
        raise OptionError(
            f"a {type(loader.batch_sampler).__name__} of your own has to split batches by ranks",
            way_out="Do that in it and pass add_dist_sampler=False, or give batch_size instead",
        )
    shuffle = not isinstance(loader.sampler, SequentialSampler)
    return like(loader, sampler=DistributedSampler(loader.dataset, shuffle=shuffle))
