"""The order of samples, as a pure function of seed, epoch and data set.

Shards are shuffled, laid into windows, and samples are shuffled inside their window: reads stay
within a few shards at a time while a batch draws from all shards of its window. Compressed shards
are decoded a frame at a time, so there blocks of neighbouring samples are shuffled in the window,
and samples only inside a group of blocks, whose frames can all be kept.

The random numbers are our own (SplitMix64), so that an order can be repeated on any platform and
with any version of numpy. The shuffle of samples is computed place by place (a Feistel network
walked until it stays inside the window), so it costs no memory and the first batch waits for no
sorting, however many samples there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF
# What a hash is for; samples and shards of one epoch never share random numbers.
_SHARD_ORDER, _SAMPLE_ORDER, _SUBSTITUTE, _BLOCK_ORDER = 1, 2, 3, 4
# Turns of the network that shuffles: four are enough to look random, six are sure.
_ROUNDS = 6
PIECE = 1024
"""Samples of a rank whose order is computed at a time: a step that asks for more waits for it."""


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 hash of each word; different words never have the same one."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(_GOLDEN)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))


class Permutation:
    """The permutation of `range(count)` that a key names, computed place by place.

    What a turn of the network makes of half a number is looked up: the halves are few, and the
    loop waits while places are computed.
    """

    def __init__(self, count: int, *, key: np.uint64) -> None:
        self._count = count
        # Halves of a number of at least 8 bits; small ranges are walked more often, not less mixed.
        self._half = max(4, (max(1, count - 1).bit_length() + 1) // 2)
        self._low = (1 << self._half) - 1
        halves = np.arange(1 << self._half, dtype=np.uint64)
        keys = [mix(np.array([key], np.uint64) ^ np.uint64(turn)) for turn in range(_ROUNDS)]
        self._turns = [(mix(halves ^ one) & np.uint64(self._low)).astype(np.int64) for one in keys]

    def of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each of `places` goes."""
        found = self._once(places)
        outside = np.flatnonzero(found >= self._count)
        while len(outside):
            walked = self._once(found[outside])
            found[outside] = walked
            outside = outside[walked >= self._count]
        return found

    def _once(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        left, right = numbers >> self._half, numbers & self._low
        for turn in self._turns:
            left, right = right, left ^ turn[right]
        return (left << self._half) | right


def _hash(words: NDArray[np.int64], *, seed: int, epoch: int, purpose: int) -> NDArray[np.uint64]:
    stem = mix(np.array([seed & _WORD], dtype=np.uint64))
    for word in (epoch, purpose):
        stem = mix(stem ^ np.uint64(word & _WORD))
    return mix(words.astype(np.uint64) ^ stem)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How samples are shuffled that are decoded together with their neighbours."""

    block_bytes: int
    """Bytes of neighbouring samples that stay together as a block, at most."""
    group_bytes: int
    """Bytes of the blocks among which samples are shuffled, at most, but for part of a block."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch's order over shards of known sample counts and sizes in bytes.

    `starts` (int64, shards + 1) holds the running total of samples; `shard_bytes` (int64, shards)
    the size of each shard, decompressed; `window_bytes` how much of the data set is shuffled at a
    time. Without `blocks` samples are shuffled in the whole of a window.
    """

    starts: NDArray[np.int64]
    shard_bytes: NDArray[np.int64]
    window_bytes: int
    seed: int
    epoch: int
    blocks: Blocks | None = None

    def windows(self) -> list[NDArray[np.int64]]:
        """Return the shard numbers of each window, in the order they are read."""
        count = len(self.shard_bytes)
        shards = np.arange(count, dtype=np.int64)
        keys = _hash(shards, seed=self.seed, epoch=self.epoch, purpose=_SHARD_ORDER)
        order = np.argsort(keys)
        ends = np.cumsum(self.shard_bytes[order])
        # A shard belongs to the window in which it begins, so a window may exceed its size by
        # less than one shard, and never holds fewer than one.
        number = (ends - self.shard_bytes[order]) // self.window_bytes
        return np.split(order, np.flatnonzero(np.diff(number)) + 1) if count else []

    def order(self, piece: int = PIECE) -> Iterator[NDArray[np.int64]]:
        """Yield the sample indices of the epoch in pieces, each of one window or group."""
        for number, (lasts, counts) in enumerate(self._groups()):
            ends = np.cumsum(counts)
            count = int(ends[-1])
            permutation = Permutation(count, key=self._key(number, _SAMPLE_ORDER))
            for first in range(0, count, piece):
                places = np.arange(first, min(first + piece, count), dtype=np.int64)
                places = permutation.of(places)
                held = np.searchsorted(ends, places, side="right")
                yield lasts[held] - ends[held] + places

    def _groups(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield what is shuffled sample by sample: where its parts end, and samples of each."""
        counts = np.diff(self.starts)
        for number, shards in enumerate(self.windows()):
            if self.blocks is None:
                yield self.starts[shards + 1], counts[shards]
            else:
                yield from self._groups_of_blocks(number, shards, self.blocks)

    def _groups_of_blocks(
        self, window: int, shards: NDArray[np.int64], blocks: Blocks
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the groups of one window: where the blocks of each end, and their samples."""
        counts, sizes = np.diff(self.starts)[shards], self.shard_bytes[shards]
        # Equal parts of each shard: as many as its bytes ask for, though none without a sample.
        parts = np.clip(-(-sizes // blocks.block_bytes), 1, np.maximum(counts, 1))
        owner = np.repeat(np.arange(len(shards)), parts)
        part = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
        begins, lasts = (counts[owner] * at // parts[owner] for at in (part, part + 1))
        permutation = Permutation(len(owner), key=self._key(window, _BLOCK_ORDER))
        order = permutation.of(np.arange(len(owner), dtype=np.int64))
        lengths = (sizes // parts)[owner][order]
        ends = np.cumsum(lengths)
        # Groups of one size: a last one of few blocks would hardly be shuffled.
        total = int(ends[-1])
        size = max(1, -(-total // max(1, -(-total // blocks.group_bytes))))
        borders = np.flatnonzero(np.diff((ends - lengths) // size)) + 1
        lasts_in_set = (self.starts[shards][owner] + lasts)[order]
        yield from zip(
            np.split(lasts_in_set, borders), np.split((lasts - begins)[order], borders), strict=True
        )

    def _key(self, number: int, purpose: int) -> np.uint64:
        """Return what names the permutation of one window, or of one group."""
        name = np.array([number], np.int64)
        return np.uint64(_hash(name, seed=self.seed, epoch=self.epoch, purpose=purpose)[0])


def substitute(index: int, *, count: int, seed: int, epoch: int, attempt: int) -> int:
    """Return which sample stands in for a bad one: the same on every rank and worker."""
    word = np.array([index], dtype=np.int64) ^ (np.int64(attempt) << np.int64(48))
    return int(_hash(word, seed=seed, epoch=epoch, purpose=_SUBSTITUTE)[0] % np.uint64(count))
