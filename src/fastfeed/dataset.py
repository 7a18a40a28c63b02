"""ShardDataset: samples in tar shards as an ordinary map-style torch data set."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash
from torch.utils.data import Dataset, get_worker_info

from fastfeed.decoding.compile import PACKED
from fastfeed.decoding.kept_place import open_place
from fastfeed.errors import EmptyBatchError, MissingFieldError, OptionError, ShardError
from fastfeed.feed import Feed, FeedOptions
from fastfeed.fields import Bytes, Field
from fastfeed.options import (
    SHUFFLE_BLOCK,
    SHUFFLE_GROUP,
    SHUFFLE_WINDOW,
    Cache,
    DecodedCache,
    cache_folder,
    parse_size,
)
from fastfeed.plan import Blocks, Plan
from fastfeed.policy import BadSamples, FeedReport, check_on_error
from fastfeed.readahead import InOrder, ReadAhead
from fastfeed.reading.shards import ShardSet
from fastfeed.reading.sources import items_of
from fastfeed.sampler import ShardSampler
from fastfeed.staging.staged import Staged
from fastfeed.storage.urls import is_remote
from fastfeed.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastfeed.decoding.defer import DeviceSide
    from fastfeed.decoding.kept_place import KeptFolder, KeptMemory
    from fastfeed.policy import BadSample, OnError
    from fastfeed.stats import Stats

log = logging.getLogger("fastfeed")


class ShardDataset(Dataset[dict[str, Any]]):
    """Samples of tar shards, map-style: works in any loader, and on the fast path in ours.

    Args:
        source: a folder that `fastfeed-shard` built, a path or brace pattern of shards
            (`train-{000000..000146}.tar`), or a list of these. Shards without an index are
            indexed on first use.
        fields: the outputs by name, each a description such as `ff.Image("jpg")`; by default
            every field of the shards as raw bytes.
        transform: called in the worker with each sample (a dict of tensors, strings and so on);
            its result is the sample. A parameter named `generator` receives a
            `numpy.random.Generator` seeded for the sample.
        seed: with the epoch and the sample's index it determines order and augmentation, whatever
            the number of workers.
        on_error: "raise", "skip" (batches get shorter and `len` is an upper bound) or "substitute"
            (another sample stands in, chosen from seed, epoch and index).
        shuffle_window: samples are shuffled among shards of this many bytes in total; those of
            compressed shards in blocks (docs/storage.md).
        verify: compare each field with the checksum in the index, where there is one.
        cache: a `Cache`: remote shards are brought to that folder ahead of the readers, and read
            there. Local ones are read in place.
        decoded: a `DecodedCache`: pictures, masks and arrays in compressed fields are decoded once,
            and what is random is done to what was kept of them.
        storage_options: passed to the file system of fsspec that serves the source's URLs; never
            shown in a message.

    Raises:
        OptionError: an argument cannot be honoured.
        MissingFieldError: no sample has a field that is asked for.
        ShardError: a shard, index or manifest is damaged. StorageError: it cannot be read.
    """

    def __init__(  # noqa: PLR0913 - each is a decision of the user
        self,
        source: str | Path | Sequence[str | Path],
        fields: Mapping[str, Field] | None = None,
        *,
        transform: Callable[..., dict[str, Any]] | None = None,
        seed: int = 0,
        on_error: OnError = "raise",
        shuffle_window: int | str = SHUFFLE_WINDOW,
        verify: bool = True,
        cache: Cache | None = None,
        decoded: DecodedCache | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_on_error(on_error)
        if not isinstance(seed, int):
            raise OptionError(f"seed={seed!r} is no whole number")
        if fields is not None and not isinstance(fields, Mapping):
            raise OptionError(
                f"fields={fields!r} maps no outputs",
                way_out='Write a dict such as {"label": ff.Int("cls")}',
            )
        if transform is not None and not callable(transform):
            raise OptionError(f"transform={transform!r} is not callable")
        if cache is not None and not isinstance(cache, Cache):
            raise OptionError(
                f"cache={cache!r} is no Cache", way_out='Write ff.Cache("/nvme/fastfeed")'
            )
        if decoded is not None and not isinstance(decoded, DecodedCache):
            raise OptionError(
                f"decoded={decoded!r} is no DecodedCache", way_out='Write ff.DecodedCache("8GiB")'
            )
        _check_reading(verify, storage_options)
        self._staged: Staged | None = None
        if cache is not None:
            self._staged = Staged(
                cache, storage_options=storage_options, apart_from=_folders(source)
            )
        self.shards = ShardSet(
            source,
            cache=cache_folder(),
            staged=self._staged,
            storage_options=storage_options,
        )
        if fields is None:
            if not self.shards.fields:
                raise ShardError("the shards hold no samples", way_out="Name shards that do")
            fields = {name: Bytes(name) for name in self.shards.fields}
        self.fields = dict(fields)
        self._check_fields()
        self.transform = transform
        self.seed = seed
        self.on_error: OnError = on_error
        self.shuffle_window = shuffle_window
        self.verify = verify
        self.cache = cache
        self.epoch: int | None = None
        self._window_bytes = parse_size(shuffle_window, name="shuffle_window")
        self._blocks: Blocks | None = None
        if self.shards.decodes_frames:
            block = max(SHUFFLE_BLOCK, 2 * self.shards.frame_bytes)
            self._blocks = Blocks(block, SHUFFLE_GROUP)
        self._bad = BadSamples()
        self._pending = FeedReport()
        self._feed: Feed | None = None
        self._all_shards: list[str] | None = None
        self._kept: KeptMemory | KeptFolder | None = None
        if decoded is not None:
            # Another order of the same data finds the same; another description does not.
            about = f"{self.shards.starts.tobytes().hex()} {self.fields!r}"
            owner = xxhash.xxh3_64_intdigest(about.encode())
            self._kept = open_place(decoded, owner=owner, apart_from=_folders(source))

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample; a bad one raises (under "skip" too), or is substituted."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples in the order asked for, read in as few requests as can be.

        Under "skip" the bad ones are left out. Random draws come from (seed, epoch, index) once
        `set_epoch` was called, else from torch's global generator, as torchvision's do.
        """
        count = len(self)
        for index in indices:
            if not hasattr(index, "__index__"):
                raise OptionError(f"{index!r} is no number of a sample")
            if not -count <= index < count:
                raise IndexError(f"sample {index} of a data set of {count} samples")
        if self._feed is None:
            self._feed = self.fastfeed_fetcher(threads=1)
        epoch = self.epoch
        if epoch is None:
            epoch = int(torch.empty((), dtype=torch.int64).random_())
        samples = self._feed.samples([index % count for index in indices], epoch)
        if self._staged is not None:
            if self._all_shards is None:
                shards = self.shards
                self._all_shards = [shards.name(place) for place in range(shards.shard_count)]
            self._staged.roam(self._all_shards)
        report = self._feed.take_report()
        if get_worker_info() is None:
            self.fastfeed_report(report)
        else:  # our loader takes it to the trainer
            self._pending.take_in(report)
        if indices and not samples:
            why = report.bad[-1].message if report.bad else "no reason recorded"
            raise EmptyBatchError(
                f"all {len(indices)} samples asked for were skipped; the last one: {why}",
                way_out="Use on_error='substitute', or fastfeed.DataLoader, which goes on",
            )
        return samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that random draws of `__getitem__` belong to; loaders of ours do it."""
        self.epoch = epoch

    def plan(self, epoch: int) -> Plan:
        """Return the order of an epoch."""
        return Plan(
            starts=self.shards.starts,
            shard_bytes=self.shards.shard_bytes,
            window_bytes=self._window_bytes,
            seed=self.seed,
            epoch=epoch,
            blocks=self._blocks,
        )

    def fingerprint(self) -> str:
        """Return a digest of all that the order depends on: shards, their sizes, seed, window."""
        shards = self.shards
        about = [self.seed, self._window_bytes]
        if self._blocks is not None:
            about += [self._blocks.block_bytes, self._blocks.group_bytes]
        names = "\n".join(
            shards.name(place).rpartition("/")[2] for place in range(len(shards.shard_bytes))
        )
        digest = xxhash.xxh3_64(json.dumps(about).encode())
        digest.update(names.encode())
        digest.update(np.ascontiguousarray(shards.starts).tobytes())
        return digest.hexdigest()

    @property
    def bad_samples(self) -> list[BadSample]:
        """The first bad samples met so far (up to 1,000), each once."""
        return list(self._bad.listed)

    @property
    def bad_count(self) -> int:
        """How often a bad sample was skipped or substituted."""
        return self._bad.count

    # What `fastfeed.DataLoader` asks for

    def fastfeed_fetcher(
        self, threads: int, device: DeviceSide | None = None, *, shuffled: bool | None = None
    ) -> Feed:
        """Return a feed for one process; `device` is what the trainer's device does, if any.

        It reads ahead in the order of the plan if that is how the samples are `shuffled`, else in
        the order of the shards; not at all without an order, where single samples are asked for.
        """
        options = FeedOptions(
            fields=self.fields,
            transform=Transform(self.transform) if self.transform else None,
            seed=self.seed,
            on_error=self.on_error,
            verify=self.verify,
            device=device,
            decoded=None if self._kept is None else self._kept.file,
        )
        ahead = None
        # Local shards that are read one after the other are read ahead by the kernel.
        if shuffled or (shuffled is not None and self._staged is not None):
            worker = get_worker_info()
            number, count = (worker.id, worker.num_workers) if worker else (0, 1)
            order = self.plan if shuffled else self._in_order
            ahead = ReadAhead(self.shards, order, worker=number, workers=count, staged=self._staged)
        return Feed(self.shards, options, threads=threads, ahead=ahead)

    def _in_order(self, _epoch: int) -> InOrder:
        return InOrder(self.shards.shard_count)

    def fastfeed_sampler(self, *, shuffle: bool) -> ShardSampler:
        """Return the sampler for `shuffle=`."""
        return ShardSampler(self, shuffle=shuffle)

    def fastfeed_under_way(self) -> str:
        """Say to a person what is being staged now; nothing if nothing is."""
        return "" if self._staged is None else self._staged.under_way()

    def fastfeed_report(self, report: FeedReport, stats: Stats | None = None) -> None:
        """Take in what a feed met beside a batch; `stats` of the loader gets the times."""
        if stats is not None:
            for step, seconds in report.steps_s.items():
                stats.spent(step, seconds)
            stats.left_to_device(
                deferred=report.deferred, refused=report.refused, failed=report.failed
            )
            if report.decoded is not None:
                stats.looked_up(report.decoded)
        for bad in report.bad:
            if self._bad.add(bad):
                log.warning(
                    "bad sample (on_error=%r; further ones are only counted): %s",
                    self.on_error,
                    bad.message,
                )

    def fastfeed_take_report(self) -> FeedReport:
        """Return what this process met since the last call, if it is a worker."""
        report, self._pending = self._pending, FeedReport()
        return report

    def __getstate__(self) -> dict[str, Any]:
        """Leave the feed behind: descriptors and threads belong to one process."""
        return {**self.__dict__, "_feed": None, "_all_shards": None}

    def _check_fields(self) -> None:
        if not self.fields:
            raise OptionError("fields={} asks for nothing", way_out="Name at least one field")
        held = self.shards.fields
        for output, field in self.fields.items():
            if not isinstance(field, Field):
                raise OptionError(
                    f"{output!r}: {field!r} describes no field",
                    way_out='Write for example ff.Int("cls")',
                )
            if not any(name in held or name + PACKED in held for name in field.names):
                asked = " or ".join(f"`{name}`" for name in field.names)
                counts = self.shards.count_fields()
                seen = ", ".join(f"`{name}` ({count:,})" for name, count in counts.items())
                raise MissingFieldError(
                    f"0 of {len(self)} samples have field {asked}; fields seen: {seen}",
                    field=output,
                    way_out="Ask for a field that the shards hold",
                )


def _check_reading(verify: object, storage_options: object) -> None:
    """Raise OptionError for what cannot be meant."""
    if not isinstance(verify, bool):
        raise OptionError(f"verify={verify!r} is neither True nor False")
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise OptionError(
            f"storage_options must be a dict, not {type(storage_options).__name__}",
            way_out="Write what the file system of the URL takes, such as {'anon': True}",
        )


def _folders(source: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the folders of this machine that a source names, each with a slash at its end."""
    local = (os.fspath(item) for item in items_of(source) if not is_remote(os.fspath(item)))
    # As when it is opened: what cannot be looked at is a shard.
    return [f"{item if os.path.isdir(item) else Path(item).parent}/" for item in local]  # noqa: PTH112
