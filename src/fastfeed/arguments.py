"""Arguments of the loader that cannot be honoured, each refused with a way out."""

from __future__ import annotations

from operator import index
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe

from fastfeed.errors import OptionError


def check_workers(
    num_workers: int,
    *,
    kind: str,
    threads: int,
    restarts: int,
    snapshot_every: int,
    has_context: bool,
) -> None:
    """Raise OptionError for workers that there cannot be; what torch checks is torch's to say."""
    for name, number, least in (
        ("worker_threads", threads, 1),
        ("restart_workers", restarts, 0),
        ("snapshot_every_n_steps", snapshot_every, 1),
    ):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise OptionError(f"{name}={number!r} must be a number from {least} up")
    if kind not in {"process", "thread"}:
        raise OptionError(f'worker_kind={kind!r} is neither "process" nor "thread"')
    if kind == "thread" and not num_workers:
        raise OptionError(
            'worker_kind="thread" needs num_workers > 0', way_out="Say how many threads"
        )
    if kind == "thread" and (has_context or restarts):
        raise OptionError(
            "worker threads have no start method and cannot be started again",
            way_out="Leave multiprocessing_context and restart_workers out, or use "
            'worker_kind="process"',
        )


def check_epoch(epoch: Any) -> int:
    """Return the number of an epoch as an int; OptionError if it is none."""
    try:
        number = index(epoch)
    except TypeError:
        number = -1
    if number < 0:
        raise OptionError(f"epoch={epoch!r} is no whole number from 0 up")
    return number


def check_device(device: Any, dataset: Any, *, pins: bool) -> None:
    """Raise OptionError for what does not go together with a device."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise OptionError(
            "data pipes are left to torch, which knows no device=",
            way_out="Move the batches in the loop, or make the data an IterableDataset",
        )
    if pins:
        raise OptionError(f"device={device!r} pins memory itself", way_out="Leave pin_memory out")


def check_keeps_state(dataset: object) -> None:
    """Raise OptionError if a loader over the data has no state to save."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        raise OptionError(
            "data pipes keep no state that a loader can save",
            way_out="Make the data an IterableDataset with state_dict and load_state_dict",
        )
