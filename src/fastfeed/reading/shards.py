"""The shards of a data set as one row of samples; few of them open at a time."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import IndexMismatchError, OptionError, StorageError
from fastfeed.reading.indexing import find_index
from fastfeed.reading.sources import list_shards
from fastfeed.shardfile.index import MISSING
from fastfeed.shardfile.names import split_name
from fastfeed.shardfile.tar import read_member
from fastfeed.staging.shard import StagedShard
from fastfeed.storage.compressed import CompressedShard, wrap
from fastfeed.storage.frames import FrameCache
from fastfeed.storage.inflated import InflatedFile, forget_damage
from fastfeed.storage.local import LocalFile
from fastfeed.storage.open import open_storage
from fastfeed.storage.urls import is_remote, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from fastfeed.errors import ShardError
    from fastfeed.shardfile.index import ShardIndex
    from fastfeed.staging.staged import Staged
    from fastfeed.storage.open import Storage

# Reads of a batch under way at a time, where each is a round trip.
_FAR = 64

MAX_OPEN = 128
"""Shards open at a time; each takes a descriptor, and one more for the map of its index."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenShard:
    """One shard that is open: its bytes, and where its samples lie in them."""

    name: str
    """As messages show it."""
    storage: Storage
    index: ShardIndex
    cells: NDArray[np.uint64]
    """The rows of the index: uint64 [samples, fields, (header, offset, size, checksum)]."""
    columns: dict[str, int]
    """Position of each field in `cells`."""

    def is_near(self) -> bool:
        """Say whether reads go to a file of this machine, and so take no round trips."""
        storage = self.storage
        if isinstance(storage, CompressedShard):
            storage = storage.stored
        return (
            storage.is_near()
            if isinstance(storage, StagedShard)
            else isinstance(storage, LocalFile)
        )


class ShardSet:
    """All samples of some shards, numbered through.

    `source` is a folder with a manifest, a shard, a pattern of shards, or a list of these. With a
    manifest no shard is opened here; shards without one are opened once to count their samples,
    and indexed if nobody did so before (`cache` holds indexes of folders we may not write to).

    May be shared by threads, inherited by forked processes and pickled: what is open stays behind.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        cache: str | os.PathLike[str] | None = None,
        max_open: int = MAX_OPEN,
        staged: Staged | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`cache` is for indexes, `staged` brings remote shards to a local disk."""
        listing = list_shards(source, storage_options=storage_options)
        self._names = listing.paths
        self._staged = staged
        self._storage_options = storage_options
        if staged is not None:
            staged.learn(listing.sources())
        self._frames: FrameCache | None = None
        self._is_far = any(map(is_remote, self._names))
        self._entries = listing.entries
        self._readers: ThreadPoolExecutor | None = None
        self._readers_pid = 0
        self._cache = None if cache is None else Path(cache)
        self._max_open = max_open
        self._open: dict[int, OpenShard] = {}
        self._used: dict[int, int] = {}
        self._clock = count()
        self._fields = listing.fields
        self._field_counts = listing.counts
        self.decodes_frames = False
        """Whether shards are compressed in frames, of which all is decoded for one sample."""
        self.frame_bytes = 0
        """Bytes of the largest of these frames, of those that are known without opening a shard."""
        counts, sizes = self._count()
        self.starts: NDArray[np.int64] = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        """Number of the first sample of each shard, and the number of all: int64 [shards + 1]."""
        self.shard_bytes: NDArray[np.int64] = np.array(sizes, np.int64)
        """Bytes of each shard: int64 [shards]."""

    def _count(self) -> tuple[list[int], list[int]]:
        counts, sizes, fields = [], [], set(self._fields)
        for number, entry in enumerate(self._entries):
            if entry is None:
                shard = self._opened(number)
                counts.append(len(shard.index))
                sizes.append(shard.index.shard_bytes)
                fields.update(shard.index.fields)
                if isinstance(shard.storage, CompressedShard):
                    self.decodes_frames = True
                    self.frame_bytes = max(self.frame_bytes, shard.storage.frame_bytes)
            else:
                counts.append(entry.samples)
                sizes.append(entry.bytes)
                self.decodes_frames |= entry.compression == "zstd"
                self.frame_bytes = max(self.frame_bytes, entry.frame_bytes or 0)
        self._fields = frozenset(fields)
        return counts, sizes

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def samples(self) -> NDArray[np.int64]:
        """Running total of samples at the end of each shard: int64 [shards]."""
        return self.starts[1:]

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return len(self._names)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that any sample has, sorted."""
        return tuple(sorted(self._fields))

    def count_fields(self) -> dict[str, int]:
        """Return for each field how many samples have it; without a manifest this opens all."""
        if self._field_counts is not None:
            return dict(self._field_counts)
        counts: Counter[str] = Counter()
        for shard in range(self.shard_count):
            counts.update(self.open(shard).index.counts())
        return dict(sorted(counts.items()))

    def name(self, shard: int) -> str:
        """Return the path of a shard as the user wrote it."""
        return self._names[shard]

    def shown(self, shard: int) -> str:
        """Return the name of a shard for messages, without what signs or opens a URL."""
        return shown(self._names[shard])

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard."""
        return self.open(shard).index

    def locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard of each sample and its row there, both int64; OptionError if none."""
        shards = np.searchsorted(self.starts, indices, side="right") - 1
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise OptionError(f"sample numbers go from 0 to {len(self) - 1:,}, not {indices!r}")
        return shards, indices - self.starts[shards]

    def key(self, shard: int, row: int) -> str:
        """Return the key of a sample, read from the header of its first field."""
        opened = self.open(shard)
        headers = opened.cells[row, :, 0]
        header = int(headers.min(initial=MISSING))
        member = read_member(
            opened.storage.read_at, opened.storage.size, header=header, shard=opened.name
        )
        key, _ = split_name(member.name) or (member.name, "")
        return key

    def advise(self, shard: int) -> None:
        """Hint that all of a shard will be read soon."""
        storage = self.open(shard).storage
        storage.advise(0, storage.size)

    def open(self, shard: int) -> OpenShard:
        """Return a shard, opened if need be, and checked against what is known of it.

        Raises IndexMismatchError if shard, index and manifest do not agree; StorageError if the
        shard cannot be opened.
        """
        opened = self._opened(shard)
        if len(opened.index) != self.starts[shard + 1] - self.starts[shard]:
            raise self._disagree(opened, f"{len(opened.index):,} samples")
        if opened.storage.size != self.shard_bytes[shard]:
            raise self._disagree(opened, f"{opened.storage.size:,} bytes")
        return opened

    def open_all(self, shards: Sequence[int]) -> list[OpenShard]:
        """Return shards as `open` does; remote ones side by side, since each takes round trips."""
        far = self.far_readers()
        if far is None or all(shard in self._open for shard in shards):
            return [self.open(shard) for shard in shards]
        return list(far.map(self.open, shards))

    def lose_copy(self, error: ShardError, *, of: NDArray[np.int64]) -> bool:
        """Give up the staged copy of the shard that an error names, among those of some samples.

        False if there is none, or if it was given up before in this epoch: the shard is bad then.
        """
        if self._staged is None:
            return False
        for number in np.unique(self.locate(of)[0]).tolist():
            if self.shown(number) == error.shard and self._staged.doubt(self._names[number], error):
                self._open.pop(number, None)  # what it holds was read from that copy
                forget_damage(self._names[number])
                return True
        return False

    def _opened(self, number: int) -> OpenShard:
        # No lock: one held by another thread while a process forks would never be released. Each
        # step on the plain dictionaries is atomic; two threads may open the same shard, and one
        # of the two is dropped. Closing runs Python code, so nothing is replaced in place.
        self._used[number] = next(self._clock)
        opened = self._open.get(number)
        if opened is None:
            try:
                opened = self._open_now(number)
            except StorageError:
                if not self._let_inflated_go():
                    raise
                opened = self._open_now(number)
            opened = self._open.setdefault(number, opened)
            if len(self._open) > self._max_open:
                # One in eight at a time, so that sorting them costs little for each.
                idle = sorted(self._open.copy(), key=self._last_use)
                for shard in idle[: len(idle) - self._max_open + self._max_open // 8]:
                    # Whoever still reads from it holds it open.
                    self._open.pop(shard, None)
                    self._used.pop(shard, None)
        return opened

    def _let_inflated_go(self) -> bool:
        """Let go of inflated shards, which take room while they are open; says if there were any.

        Whoever still reads from one holds it open.
        """
        held = [n for n, one in self._open.copy().items() if isinstance(one.storage, InflatedFile)]
        for number in held:
            self._open.pop(number, None)
        return bool(held)

    def _last_use(self, number: int) -> int:
        return self._used.get(number, -1)

    def _open_now(self, number: int) -> OpenShard:
        name, entry = self._names[number], self._entries[number]
        if self._staged is None:
            stored = open_storage(name, storage_options=self._storage_options)
        else:
            stored = self._staged.open(name)
        try:
            storage = stored
            # What the manifest calls plain need not be looked at, which would be a round trip.
            if entry is None or entry.compression is not None or not is_remote(name):
                folder, budget = (None, None) if self._staged is None else self._staged.place
                frames = self._frames_of_process()
                storage = wrap(
                    stored, name, entry=entry, cache=frames, folder=folder, budget=budget
                )
            index = find_index(
                name, storage, cache=self._cache, storage_options=self._storage_options
            )
        except BaseException:
            stored.close()
            raise
        columns = {field: column for column, field in enumerate(index.fields)}
        return OpenShard(shown(name), storage, index, index.cells, columns)

    def far_readers(self) -> Executor | None:
        """Return what reads from remote shards side by side; None if there are none.

        Each read is a round trip; one after the other a batch would take as many.
        """
        if not self._is_far:
            return None
        if self._readers is None or self._readers_pid != os.getpid():  # a fork has no threads
            self._readers, self._readers_pid = ThreadPoolExecutor(_FAR, "fastfeed-far"), os.getpid()
        return self._readers

    def _frames_of_process(self) -> FrameCache:
        """Return the decoded frames of all shards of this process."""
        if self._frames is None:
            self._frames = FrameCache()
        return self._frames

    def _disagree(self, opened: OpenShard, has: str) -> IndexMismatchError:
        return IndexMismatchError(
            f"the shard has {has}, which is not what the manifest says",
            way_out="Run `fastfeed-shard index` on the folder to write both anew",
            shard=opened.name,
        )

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "_open": {},
            "_used": {},
            "_clock": count(),
            "_frames": None,
            "_readers": None,
        }
        return {**self.__dict__, **fresh}
