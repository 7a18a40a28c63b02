"""The plan of a copy: which samples of which shards go into which new shard, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from fastfeed.errors import OptionError
from fastfeed_shard.packing import END_BYTES
from fastfeed_shard.plan import check_shard_name, shard_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fastfeed_shard.stored import StoredShard


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """All samples of the source in their new order, cut into shards."""

    shards: Sequence[StoredShard]
    order: NDArray[np.int64]
    """Numbers of samples, counted through all shards of the source."""
    cuts: NDArray[np.int64]
    """Where each new shard begins in `order`, and where the last one ends."""
    names: tuple[str, ...]
    in_order: bool

    def rows(self, number: int) -> list[tuple[int, int]]:
        """Return (number of the source shard, row in it) of the samples of a new shard."""
        samples = self.order[self.cuts[number] : self.cuts[number + 1]]
        starts = _starts(self.shards)
        sources = np.searchsorted(starts, samples, "right") - 1
        return list(zip(sources.tolist(), (samples - starts[sources]).tolist(), strict=True))

    def nbytes(self) -> list[int]:
        """Return the bytes of each new shard as a plain tar."""
        sizes = np.concatenate([shard.sizes for shard in self.shards])[self.order]
        totals = np.concatenate([[0], np.cumsum(sizes)])[self.cuts]
        return [int(size) for size in np.diff(totals) + END_BYTES]

    def samples(self) -> list[int]:
        """Return the number of samples of each new shard."""
        return [int(count) for count in np.diff(self.cuts)]

    def digest(self, options: str) -> str:
        """Return a digest of all that the bytes of the new shards depend on."""
        state = xxhash.xxh3_128(options.encode())
        for shard in self.shards:
            state.update(f"{shard.facts} {shard.keys!r} {shard.fields!r}\n".encode())
            state.update(shard.cells[..., :3].tobytes())
        for part in (self.order, self.cuts):
            state.update(part.tobytes())
        state.update(repr(self.names).encode())
        return state.hexdigest()


def plan_copy(
    shards: Sequence[StoredShard],
    *,
    name: str,
    shard_size: int | None = None,
    count: int | None = None,
    shuffle: bool = False,
) -> Copy:
    """Plan new shards of at most `shard_size` bytes, or `count` of about the same size.

    With neither, each new shard has the samples of one that exists. `shuffle` orders samples by the
    digests of their keys, which must then have been made with the seed, as a build does.
    """
    check_shard_name(name)
    digests = np.concatenate([shard.digests for shard in shards])
    total = len(digests)
    if not total:
        raise OptionError("the source holds no sample", way_out="Name another")
    order = np.arange(total, dtype=np.int64)
    if shuffle:
        order = np.lexsort((digests[:, 1], digests[:, 0])).astype(np.int64)
    sizes = np.concatenate([shard.sizes for shard in shards])[order]
    if count is not None:
        cuts = _cut_in(sizes, count)
    elif shard_size is not None:
        cuts = _cut_by(sizes, shard_size)
    else:
        cuts = np.unique(_starts(shards))
    names = tuple(shard_name(name, number) for number in range(len(cuts) - 1))
    return Copy(shards, order, cuts, names, in_order=not shuffle)


def _starts(shards: Sequence[StoredShard]) -> NDArray[np.int64]:
    return np.cumsum([0, *(len(shard.digests) for shard in shards)], dtype=np.int64)


def _cut_by(sizes: NDArray[np.int64], shard_size: int) -> NDArray[np.int64]:
    """Fill one shard after the other, as a build does."""
    cuts, nbytes = [0], END_BYTES
    for place, size in enumerate(sizes.tolist()):
        if nbytes + size > shard_size and place > cuts[-1]:
            cuts.append(place)
            nbytes = END_BYTES
        nbytes += size
    return np.array([*cuts, len(sizes)], np.int64)


def _cut_in(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Cut into `count` shards of about the same number of bytes, none of them empty."""
    if count > len(sizes):
        raise OptionError(
            f"{len(sizes):,} samples cannot fill {count:,} shards", way_out="Ask for fewer"
        )
    ends = np.cumsum(sizes)
    targets = ends[-1] * np.arange(1, count) / count
    cuts = np.searchsorted(ends - sizes / 2, targets)
    # Large samples may leave nothing for a neighbour: each shard keeps at least one.
    cuts = np.maximum.accumulate(cuts - np.arange(count - 1)) + np.arange(count - 1)
    cuts = np.clip(cuts, np.arange(1, count), len(sizes) - np.arange(count - 1, 0, -1))
    return np.concatenate([[0], cuts, [len(sizes)]]).astype(np.int64)
