"""Samples that come one by one into shards, one after the other; finished ones are passed over."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, located
from fastfeed_shard.build import stored_name
from fastfeed_shard.packing import END_BYTES, Packed, ShardFile
from fastfeed_shard.plan import packed_size, shard_name
from fastfeed_shard.writer import _KeySet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from fastfeed_shard.destination import Destination
    from fastfeed_shard.target import Target


class Stream:
    """Writes samples in the order in which they come, and cuts as a build does.

    Where a shard ends depends on the samples alone. So on the way back to where a former run ended,
    those of finished shards are only counted.
    """

    def __init__(
        self, destination: Destination, target: Target, *, progress: Callable[[int], None]
    ) -> None:
        self._destination = destination
        self._target = target
        self._progress = progress
        self._keys = _KeySet()
        self._packed: list[Packed] = []
        self._shard: ShardFile | None = None
        self._kept: Packed | None = None
        self._samples = 0
        self._nbytes = 0

    def add(self, key: str, parts: Sequence[tuple[str, bytes]]) -> None:
        """Add a sample; OptionError if its key was there before."""
        if not self._keys.add(key):
            raise OptionError(
                "the key is there twice",
                way_out="Keys must be unique over the data set: name another --key",
                key=key,
            )
        size = packed_size([len(data) for _, data in parts])
        if self._samples and self._nbytes + size + END_BYTES > self._target.shard_size:
            self.finish_shard()
        if not self._samples:
            self._begin()
        self._samples += 1
        self._nbytes += size
        if self._shard is None:
            return
        with located(key=key):
            self._shard.begin(size)
            for field, data in parts:
                self._shard.add(f"{key}.{field}", len(data), io.BytesIO(data).readinto)

    def finish_shard(self) -> None:
        """Complete the shard that was begun, and deliver it."""
        shard, self._shard = self._shard, None
        kept, self._kept = self._kept, None
        there = (self._samples, self._nbytes + END_BYTES)
        self._samples = self._nbytes = 0
        if shard is not None:
            with shard:
                packed = shard.finish()
            self._destination.deliver(packed)
            self._packed.append(packed)
            self._progress(packed.entry.bytes)
        elif kept is not None:
            if (kept.entry.samples, kept.entry.bytes) != there:
                raise OptionError(
                    f"the source no longer gives the {kept.entry.samples:,} samples that "
                    f"{kept.entry.name!r} was made of",
                    way_out="Begin anew in another place",
                )
            self._packed.append(kept)
            self._progress(kept.entry.bytes)

    def finish(self) -> list[Packed]:
        """Complete the last shard; returns all of them. OptionError if there was no sample."""
        self.finish_shard()
        if not self._packed:
            raise OptionError("the source holds no sample", way_out="Name another")
        return self._packed

    def _begin(self) -> None:
        name = shard_name(self._target.name, len(self._packed))
        stored = stored_name(name, self._target.compress)
        self._kept = self._destination.kept(stored)
        if self._kept is None:
            self._shard = ShardFile(
                self._destination.folder / stored,
                sync=self._target.sync,
                compress=self._target.compress,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            with suppress(OSError):
                shard.discard()
