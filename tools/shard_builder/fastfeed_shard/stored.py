"""Samples of shards that exist already: what is known of them, and how they are copied.

A shard is walked once while a copy is planned. What stays are arrays: where each sample lies, how
much room it takes, and a digest of its key. Keys themselves are read again when they are copied.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from fastfeed.errors import IndexMismatchError, OptionError
from fastfeed.shardfile.header import BLOCK
from fastfeed.shardfile.index import MISSING, load_index
from fastfeed.shardfile.names import index_name, split_name
from fastfeed.shardfile.tar import read_member
from fastfeed.storage.compressed import open_shard
from fastfeed.storage.open import exists, facts, local_path, read_if_there
from fastfeed.storage.urls import is_remote, shown
from fastfeed_shard.browse import read_contents
from fastfeed_shard.importers.whole import beside
from fastfeed_shard.pool import run_tasks
from fastfeed_shard.reader import Reader, ahead_of
from fastfeed_shard.safe import rename_key, why_unsafe
from fastfeed_shard.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from fastfeed.shardfile.index import ShardIndex
    from fastfeed.storage.open import Storage

_OFFENDERS = 5
_INDEX_LIMIT = 8 << 30


@dataclass(frozen=True, slots=True)
class Keys:
    """How the keys of one data set are changed on their way into another."""

    prefix: str = ""
    rename: bool = False

    def changed(self, key: str) -> str:
        """Return the new key."""
        return self.prefix + (rename_key(key) if self.rename else key)


@dataclass(frozen=True, slots=True, eq=False)
class StoredShard:
    """One shard of a source."""

    path: str
    keys: Keys
    fields: tuple[str, ...]
    cells: NDArray[np.uint64]
    """Where each field of each sample lies, as `ShardIndex.cells`."""
    digests: NDArray[np.uint64]
    """[samples, 2]: 128 bits of each new key, the high half first."""
    facts: str
    """What would change if the shard did."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes that each sample takes in a tar."""
        return _sizes(self.cells)

    def size_of(self, row: int) -> int:
        """Return the bytes that one sample takes in a tar."""
        return int(_sizes(self.cells[row : row + 1])[0])


def _sizes(cells: NDArray[np.uint64]) -> NDArray[np.int64]:
    present = cells[..., 0] != MISSING
    padded = -(-cells[..., 2].astype(np.int64) // BLOCK) * BLOCK + BLOCK
    total: NDArray[np.int64] = np.where(present, padded, 0).sum(axis=1)
    return total


def read_shards(
    sources: Sequence[tuple[str, Keys]],
    *,
    jobs: int,
    seed: int = 0,
    progress: Callable[[int], None],
) -> list[StoredShard]:
    """Walk every shard with `jobs` processes; `progress` gets the bytes of each.

    `seed` is for the digests of keys. Raises OptionError, before anything is written, for keys that
    some reader would misread, and for a key that is there twice.
    """

    def work(number: int) -> tuple[StoredShard, int, list[tuple[str, str]]]:
        return _read_shard(*sources[number], seed=seed)

    done: dict[int, StoredShard] = {}
    offenders: list[tuple[str, str]] = []
    paths = [path for path, _ in sources]
    with closing(run_tasks(work, paths, jobs=jobs)) as results:
        for number, (shard, nbytes, bad) in results:
            done[number] = shard
            offenders += bad
            progress(nbytes)
    if offenders:
        shown_ones = "; ".join(f"{name!r} ({reason})" for name, reason in offenders[:_OFFENDERS])
        renamed = all(keys.rename for _, keys in sources)
        raise OptionError(
            f"some readers would misread these names: {shown_ones}",
            way_out=("" if renamed else "Let --rename rewrite keys. ")
            + "Fields can only be renamed in files (extract, then build)",
        )
    shards = [done[number] for number in range(len(paths))]
    _refuse_twins(shards)
    return shards


def _read_shard(
    path: str, keys: Keys, *, seed: int
) -> tuple[StoredShard, int, list[tuple[str, str]]]:
    state = facts(path)
    with open_shard(path) as storage:
        # From far away one long read is cheaper than a short one for each header.
        near = Reader(storage, ahead=ahead_of(path)) if is_remote(path) else storage
        names, index = read_contents(path, near)
        size = storage.size
    changed = [keys.changed(name) for name in names]
    digests = np.frombuffer(
        b"".join(xxhash.xxh3_128_digest(key.encode("utf-8", "surrogateescape"), seed=seed)
                 for key in changed),
        ">u8",
    ).astype(np.uint64)  # fmt: skip
    shard = StoredShard(
        path,
        keys,
        index.fields,
        _with_checksums(index, path),
        digests.reshape(-1, 2),
        f"{shown(path)} {state.size} {state.tag}",
    )
    return shard, size, _offenders(changed, index)


def _with_checksums(index: ShardIndex, path: str) -> NDArray[np.uint64]:
    """Return the cells of a shard just walked, with the checksums of the index beside it.

    Raises IndexMismatchError if that index is of another shard.
    """
    place = beside(path, index_name)
    if not is_remote(place):
        known = load_index(local_path(place), verify=True) if exists(place) else None
        return index.cells if known is None else _matching(index, known, path)
    content = read_if_there(place, limit=_INDEX_LIMIT)
    if content is None:
        return index.cells
    with scratch_folder() as folder:
        (folder / "index").write_bytes(content)
        return _matching(index, load_index(folder / "index", verify=True), path)


def _matching(index: ShardIndex, known: ShardIndex, path: str) -> NDArray[np.uint64]:
    same = (known.fields, known.shard_bytes) == (index.fields, index.shard_bytes)
    if same and len(known) == len(index):
        same = bool((known.cells[..., :3] == index.cells[..., :3]).all())
    if not same or len(known) != len(index):
        raise IndexMismatchError(
            "the index beside this shard is of another one",
            way_out="Run `fastfeed-shard index` on it if the shard itself is right",
            shard=shown(path),
        )
    return known.cells.copy()


def _offenders(keys: Sequence[str], index: ShardIndex) -> list[tuple[str, str]]:
    """Return the first names, with the reason, that some reader would misread."""
    found: list[tuple[str, str]] = []
    for place, key in enumerate(keys):
        for field, header in zip(index.fields, index.cells[place, :, 0].tolist(), strict=True):
            reason = why_unsafe(key, field) if header != MISSING else None
            if reason is not None:
                found.append((f"{key}.{field}", reason))
        if len(found) >= _OFFENDERS:
            break
    return found


def _refuse_twins(shards: Sequence[StoredShard]) -> None:
    """Refuse two samples with the same key, wherever they are."""
    digests = np.concatenate([shard.digests for shard in shards])
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    same = (digests[order[1:]] == digests[order[:-1]]).all(axis=1).nonzero()[0]
    if not len(same):
        return
    starts = np.cumsum([0, *(len(shard.digests) for shard in shards)])
    places = []
    for row in sorted(order[same[0] : same[0] + 2].tolist()):
        number = int(np.searchsorted(starts, row, "right")) - 1
        places.append((shards[number], row - int(starts[number])))
    (one, row), (other, _) = places
    with open_shard(one.path) as storage:
        key = one.keys.changed(key_at(one, row, storage))
    raise OptionError(
        f"{len(same):,} keys are there twice, such as this one in {shown(one.path)!r} and in "
        f"{shown(other.path)!r}",
        way_out="Set the data sets apart: merge with --prefix",
        key=key,
    )


def key_at(shard: StoredShard, row: int, storage: Storage) -> str:
    """Return the key of a sample as it is in its shard."""
    header = int(shard.cells[row, :, 0].min())
    member = read_member(storage.read_at, storage.size, header=header, shard=shown(shard.path))
    return (split_name(member.name) or (member.name, ""))[0]


def count_fields(shards: Sequence[StoredShard]) -> Mapping[str, int]:
    """Return for each field how many samples have it."""
    found: dict[str, int] = {}
    for shard in shards:
        present = (shard.cells[..., 0] != MISSING).sum(axis=0)
        for field, count in zip(shard.fields, present.tolist(), strict=True):
            found[field] = found.get(field, 0) + count
    return dict(sorted(found.items()))
