"""The random numbers of one sample, from (seed, epoch, sample) alone."""

from __future__ import annotations

import struct
from hashlib import blake2b

_BLOCK = struct.Struct("<8Q")
_WORD = (1 << 128) - 1
_MANTISSA = 1.0 / (1 << 53)


class Draw:
    """A stream of numbers that is the same on every platform, in every worker and decoder.

    Outputs that share a draw use the same `stream` name; others are independent.
    """

    __slots__ = ("_block", "_key", "_left", "_next")

    def __init__(self, draw: tuple[int, int, int], stream: str) -> None:
        seed, epoch, sample = draw
        words = (seed & _WORD) | (epoch & _WORD) << 128 | (sample & _WORD) << 256
        self._key = words.to_bytes(48, "little") + stream.encode()
        self._block = 0
        self._left: tuple[int, ...] = ()
        self._next = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next number, from `low` up to but not including `high`."""
        if self._next == len(self._left):
            key = self._key + self._block.to_bytes(8, "little")
            self._left = _BLOCK.unpack(blake2b(key, digest_size=64).digest())
            self._block += 1
            self._next = 0
        word = self._left[self._next]
        self._next += 1
        return low + (high - low) * ((word >> 11) * _MANTISSA)

    def below(self, count: int) -> int:
        """Return the next whole number from 0 to `count - 1`."""
        return min(int(self.uniform() * count), count - 1)
