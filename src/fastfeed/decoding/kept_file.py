"""A file of arrays under keys, filled until it is full: decoded samples, shared by any processes.

All of it is one file, in memory without a name or in a folder, of a size fixed when it is made:

    header, 4096 bytes   magic, sizes, how far the data goes, whose data it is
    table                buckets of eight slots of 64 bytes; a key may lie in either of two buckets
    data                 entries one after the other, 64 bytes of head before each array

A key stands for what is decoded and how, so all who write an entry write the same bytes; whoever
has room writes, and nobody waits. A slot is valid with its own checksum, an entry with the one in
its slot: what a killed writer left, or a disk lost, is not there. Nothing is ever replaced, since
an epoch reads each sample once: of a cache of half the samples half are found, whichever they are,
and dropping the least recently used would drop each one just before it is wanted.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import xxhash

from fastfeed.decoding.kept_turn import alone_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

log = logging.getLogger("fastfeed")

HEADER_BYTES: Final = 4096
_MAGIC: Final = b"ffdecod1"
# Magic, bytes of the whole file, buckets, where the data begins, checksum of these.
_HEADER: Final = struct.Struct("<8sQQQQ")
_TAIL_AT, _OWNERS_AT, _OWNERS = 64, 256, 32
_NUMBER: Final = struct.Struct("<Q")
# Key, place, bytes with the head, checksum of them (0 while they are written), checksum of these.
_SLOT: Final = struct.Struct("<16sQQQQ")
_SLOT_BYTES, _SLOTS = 64, 8
_BUCKET: Final = _SLOT_BYTES * _SLOTS
# The table has a slot for so many bytes of the file; of smaller entries fewer than fit are kept.
_BYTES_A_SLOT: Final = 8 << 10
# Size of an element, dimensions, shape, and three numbers of whoever keeps the array.
_HEAD: Final = struct.Struct("<BB6x3Q3I20x")
_HEAD_BYTES: Final = 64
_TYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<u1"), 2: np.dtype("<u2")}


class Entry(NamedTuple):
    """One array that was kept."""

    array: NDArray[Any]
    about: tuple[int, int, int]


class _Slot(NamedTuple):
    place: int
    """Of the slot itself, in the file."""
    key: bytes
    offset: int
    nbytes: int
    checksum: int


class KeptFile:
    """An open file of kept arrays; used by any threads, and by processes that inherit it.

    The descriptor is the caller's to close. Errors of the disk are misses, never raised.
    """

    def __init__(self, descriptor: int) -> None:
        """Take a file that `begin` has made."""
        header = os.pread(descriptor, _HEADER.size, 0)
        if not is_valid(header):
            raise ValueError("no file of kept arrays")
        budget, buckets, start = _HEADER.unpack(header)[1:4]
        self.budget: int = budget
        self._buckets: int = buckets
        self._start: int = start
        self._descriptor = descriptor
        self._ended = False

    @property
    def nbytes(self) -> int:
        """Bytes of the file that are in use, by whoever wrote them."""
        with suppress(OSError):
            return min(self._tail(), self.budget)
        return 0

    def has_room(self, nbytes: int) -> bool:
        """Say whether an array of so many bytes would be kept, as things are."""
        return not self._ended and self.nbytes + _taken(nbytes) <= self.budget

    def get(self, key: bytes, memory: Callable[[int], NDArray[np.uint8]]) -> Entry | None:
        """Return the array under a key, in what `memory(nbytes)` gives; None if it is not there."""
        try:
            for bucket in self._buckets_of(key):
                base, data = self._bucket(bucket)
                at = data.find(key)
                while at >= 0:
                    if at % _SLOT_BYTES == 0:
                        slot = self._slot(base + at, data[at : at + _SLOT_BYTES])
                        if slot.checksum:
                            return self._read(slot, memory)
                    at = data.find(key, at + 1)
        except OSError:
            pass
        return None

    def put(self, key: bytes, array: NDArray[Any], about: tuple[int, int, int] = (0, 0, 0)) -> bool:
        """Keep an array of uint8 or uint16 with three numbers; says whether there was room."""
        array = np.ascontiguousarray(array)
        shape = (*array.shape, *(0,) * (3 - array.ndim))
        head = _HEAD.pack(array.itemsize, array.ndim, *shape, *about)
        body = array.reshape(-1).view(np.uint8)
        nbytes = len(head) + len(body)
        if not self.has_room(array.nbytes):
            return False
        try:
            slot = self._reserve(key, nbytes)
            if slot is None:
                return False
            _write(self._descriptor, head, slot.offset)
            _write(self._descriptor, body.data, slot.offset + len(head))
            checksum = _checksum(head, body)
            _write(self._descriptor, _packed(key, slot.offset, nbytes, checksum), slot.place)
        except OSError as error:
            if not self._ended:
                log.warning("the decoded cache takes no more: %s", error.strerror)
            self._ended = True
            return False
        return True

    # Whose data it is

    def owners(self) -> frozenset[int]:
        """Return the numbers of the data sets that used the file."""
        data = os.pread(self._descriptor, _OWNERS * _NUMBER.size, _OWNERS_AT)
        return frozenset(number for (number,) in _NUMBER.iter_unpack(data)) - {0}

    def add_owner(self, number: int) -> None:
        """Add the number of a data set, if there is room for it."""
        if number in self.owners():
            return
        with alone_in(self._descriptor) as alone:
            for place in range(_OWNERS_AT, _OWNERS_AT + _OWNERS * _NUMBER.size, _NUMBER.size):
                if alone and os.pread(self._descriptor, _NUMBER.size, place) == bytes(8):
                    _write(self._descriptor, _NUMBER.pack(number), place)
                    return

    # The table

    def _buckets_of(self, key: bytes) -> tuple[int, int]:
        one = int.from_bytes(key[:8], "little") % self._buckets
        other = int.from_bytes(key[8:], "little") % self._buckets
        return one, other if other != one else (one + 1) % self._buckets

    def _bucket(self, number: int) -> tuple[int, bytes]:
        """Return where a bucket lies and what is in it; what somebody has cut off is empty."""
        base = HEADER_BYTES + number * _BUCKET
        return base, os.pread(self._descriptor, _BUCKET, base).ljust(_BUCKET, b"\0")

    def _slots(self, bucket: int) -> Iterator[_Slot]:
        """Yield the slots of a bucket that are taken; one that is damaged has no key."""
        base, data = self._bucket(bucket)
        for at in range(0, _BUCKET, _SLOT_BYTES):
            stored = data[at : at + _SLOT_BYTES]
            if stored != bytes(_SLOT_BYTES):
                yield self._slot(base + at, stored)

    def _slot(self, place: int, stored: bytes) -> _Slot:
        key, offset, nbytes, checksum, own = _SLOT.unpack_from(stored)
        inside = self._start <= offset <= self.budget - nbytes and nbytes >= _HEAD_BYTES
        if own != xxhash.xxh3_64_intdigest(stored[: _SLOT.size - 8]) or not inside:
            key, checksum = b"", 0
        return _Slot(place, key, offset, nbytes, checksum)

    def _reserve(self, key: bytes, nbytes: int) -> _Slot | None:
        """Return a slot and room for an entry, None if there is none or others keep us from it."""
        with alone_in(self._descriptor) as alone:
            if not alone:
                return None
            found = {bucket: list(self._slots(bucket)) for bucket in self._buckets_of(key)}
            for slot in (one for slots in found.values() for one in slots):
                if slot.key == key:  # of somebody who died, or whose bytes went bad: ours are equal
                    return slot if slot.nbytes == nbytes else None
            bucket = min(found, key=lambda one: len(found[one]))
            offset = self._tail()
            if len(found[bucket]) == _SLOTS or offset + _taken(nbytes - _HEAD_BYTES) > self.budget:
                return None
            # First the room: whoever is killed here has lost it, and nobody gets it twice.
            room = _taken(nbytes - _HEAD_BYTES)
            _write(self._descriptor, _NUMBER.pack(offset + room), _TAIL_AT)
            taken = {slot.place for slot in found[bucket]}
            base = HEADER_BYTES + bucket * _BUCKET
            place = next(p for p in range(base, base + _BUCKET, _SLOT_BYTES) if p not in taken)
            _write(self._descriptor, _packed(key, offset, nbytes, 0), place)
            return _Slot(place, key, offset, nbytes, 0)

    def _tail(self) -> int:
        stored = os.pread(self._descriptor, _NUMBER.size, _TAIL_AT)
        return max(int.from_bytes(stored, "little"), self._start)  # 0 at the beginning

    def _read(self, slot: _Slot, memory: Callable[[int], NDArray[np.uint8]]) -> Entry | None:
        whole = memory(slot.nbytes)
        view, at = whole.data, 0
        while at < slot.nbytes:
            got = os.preadv(self._descriptor, [view[at:]], slot.offset + at)
            if not got:
                return None  # somebody has cut the file
            at += got
        if (xxhash.xxh3_64_intdigest(view) or 1) != slot.checksum:
            return None
        head: tuple[int, ...] = _HEAD.unpack_from(view)
        size, dimensions, *numbers = head
        shape, dtype = tuple(numbers[:dimensions]), _TYPES.get(size)
        body = whole[_HEAD_BYTES:]
        if dtype is None or dimensions > 3 or math.prod(shape) * size != len(body):
            return None
        a, b, c = numbers[3:]
        return Entry(body.view(dtype).reshape(shape), (a, b, c))


def is_valid(header: bytes) -> bool:
    """Say whether a file begins as one of kept arrays that was made to its end."""
    if len(header) < _HEADER.size or header[:8] != _MAGIC:
        return False
    *_, own = _HEADER.unpack_from(header)
    return bool(own == xxhash.xxh3_64_intdigest(header[: _HEADER.size - 8]))


def begin(descriptor: int, budget: int) -> None:
    """Make an empty file of kept arrays of a file, whatever was in it; nobody else may use it."""
    os.ftruncate(descriptor, 0)
    os.ftruncate(descriptor, budget)
    buckets = max(2, budget // _BYTES_A_SLOT // _SLOTS)
    start = -(-(HEADER_BYTES + buckets * _BUCKET) // _HEAD_BYTES) * _HEAD_BYTES
    header = _HEADER.pack(_MAGIC, budget, buckets, start, 0)[:-8]
    _write(descriptor, header + _NUMBER.pack(xxhash.xxh3_64_intdigest(header)), 0)


def _taken(nbytes: int) -> int:
    """Return what an array of so many bytes takes of the file."""
    return -(-(nbytes + _HEAD_BYTES) // _HEAD_BYTES) * _HEAD_BYTES


def _packed(key: bytes, offset: int, nbytes: int, checksum: int) -> bytes:
    slot = _SLOT.pack(key, offset, nbytes, checksum, 0)[:-8]
    slot += _NUMBER.pack(xxhash.xxh3_64_intdigest(slot))
    return slot.ljust(_SLOT_BYTES, b"\0")


def _checksum(head: bytes, body: NDArray[np.uint8]) -> int:
    state = xxhash.xxh3_64(head)
    state.update(body.data)
    return state.intdigest() or 1  # 0 says that they are being written


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done
