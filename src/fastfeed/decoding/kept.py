"""Decoding by way of what was kept of it: the part that is the same in every epoch.

Of a picture with random cuts that is the whole picture, cut when it is found; of one without them
the result, before it is flipped and normalised; of a mask all its class numbers, and of an array in
a compressed field the unpacked bytes. The key is a digest of the stored bytes and of all that
decides what is made of them, so other data or another description is another key.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash

from fastfeed.decoding import pillow, turbojpeg
from fastfeed.decoding.jpeg_header import is_jpeg
from fastfeed.decoding.picture import (
    Part,
    cut,
    decode_part,
    finish,
    mask_pixels,
    may_shrink,
    scratch_piece,
)
from fastfeed.decoding.raw_picture import is_raw
from fastfeed.decoding.values import unpack
from fastfeed.decoding.window import Box, Window
from fastfeed.errors import DecodeError
from fastfeed.fields import HorizontalFlip, Mask, Normalize, RandomResizedCrop
from fastfeed.stats.decoded import DecodedFacts
from fastfeed.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fastfeed.decoding.kept_file import KeptFile
    from fastfeed.fields import Image, Transform

# Below, it takes longer to look an unpacked field up than to unpack it.
_WORTH_KEEPING = 16 << 10


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is made of the bytes of one output, so far as it is the same in every epoch."""

    seed: int
    """Digest of the description."""
    settled: bool
    """Whether nothing is random but the flip, so that the result is kept."""
    decoders: Sequence[str]


def recipe_of(
    field: Image | Mask, transforms: Sequence[Transform], decoders: Sequence[str]
) -> Recipe:
    """Return the recipe of a picture that is cut by `transforms`, its own or its leader's."""
    settled = not isinstance(field, Mask) and not any(
        isinstance(one, RandomResizedCrop) for one in transforms
    )
    plain = [one for one in transforms if not isinstance(one, HorizontalFlip | Normalize)]
    about = [__version__, pillow.version(), type(field).__name__, field.exif, field.max_pixels]
    if not isinstance(field, Mask):
        about += [field.mode, field.dtype, field.truncated, tuple(decoders)]
        about += [turbojpeg.version(), _simplejpeg_version()]
        # What resizes: its results are not the same on all processors either.
        about += [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    about.append(plain if settled else "whole")
    return Recipe(xxhash.xxh3_64_intdigest(repr(about).encode()), settled, decoders)


def _simplejpeg_version() -> str:
    try:
        return metadata.version("simplejpeg")
    except metadata.PackageNotFoundError:
        return ""


class Keeper:
    """Finds what was kept in a file, decodes and keeps the rest, and counts both.

    What it returns lies in memory of the thread, until the thread asks for the next.
    """

    def __init__(self, file: KeptFile) -> None:
        self._file = file
        self._counting = threading.Lock()
        self._facts = DecodedFacts()
        self._unpacking = xxhash.xxh3_64_intdigest(b"unpacked")

    def part(
        self,
        data: memoryview,
        field: Image,
        window_of: Callable[[int, int], Window],
        recipe: Recipe,
    ) -> Part:
        """Return what a picture's window wants of it, as `decode_part` does."""
        if is_raw(data) and not recipe.settled:
            return decode_part(data, field, window_of, recipe.decoders)  # kept as it is already
        started = time.perf_counter()
        key = xxhash.xxh3_128_digest(data, recipe.seed)
        entry = self._file.get(key, _memory)
        if entry is None:
            make = self._settled if recipe.settled else self._whole
            return make(key, data, field, window_of, recipe)
        if recipe.settled:
            _, height, width = entry.about
            part = _result(entry.array, window_of(height, width))
        else:
            orientation, *picture = entry.about
            if _in_parts(data, window_of(*picture)):  # another output's, which is larger
                part = decode_part(data, field, window_of, recipe.decoders)
                self._count(misses=1, miss_s=time.perf_counter() - started)
                return part
            part = cut(entry.array, orientation, window_of)
        self._count(hits=1, hit_s=time.perf_counter() - started)
        return part

    def _settled(
        self,
        key: bytes,
        data: memoryview,
        field: Image,
        window_of: Callable[[int, int], Window],
        recipe: Recipe,
    ) -> Part:
        """Decode a picture and keep its result."""
        started = time.perf_counter()
        drawn: list[Window] = []

        def without_flip(height: int, width: int) -> Window:
            drawn[:] = [window_of(height, width)]
            return drawn[0]._replace(flip=False)

        part = decode_part(data, field, without_flip, recipe.decoders)
        shape = (*part.window.shape, part.pixels.shape[2])
        window = drawn[0]
        if not self._file.has_room(int(np.prod(shape)) * part.pixels.itemsize):
            self._count(misses=1, miss_s=time.perf_counter() - started)
            return part._replace(window=window)
        result = np.empty(shape, part.pixels.dtype)
        finish(part, result)
        self._keep(key, result, (1, *window.picture), started)
        return _result(result, window)

    def _whole(
        self,
        key: bytes,
        data: memoryview,
        field: Image,
        window_of: Callable[[int, int], Window],
        recipe: Recipe,
    ) -> Part:
        """Decode all of a picture and keep it, where that gives what its window alone would."""
        started = time.perf_counter()
        channels = {"L": 1, "RGB": 3, "RGBA": 4}[field.mode] * np.dtype(field.dtype).itemsize
        whole = False

        def all_of_it(height: int, width: int) -> Window:
            nonlocal whole
            window = window_of(height, width)
            room = self._file.has_room(height * width * channels)
            whole = room and not _in_parts(data, window)
            return _all(height, width) if whole else window

        try:
            part = decode_part(data, field, all_of_it, recipe.decoders)
        except DecodeError:
            if not whole:
                raise
            whole = False  # it may be bad outside of the window, where nobody would have looked
            part = decode_part(data, field, window_of, recipe.decoders)
        if not whole:
            self._count(misses=1, miss_s=time.perf_counter() - started)
            return part
        self._keep(key, part.pixels, (part.orientation, *part.window.picture), started)
        return cut(part.pixels, part.orientation, window_of)

    def mask(self, data: memoryview, field: Mask, recipe: Recipe) -> NDArray[np.uint8]:
        """Return the class numbers of a whole mask, as `mask_pixels` does."""
        key = xxhash.xxh3_128_digest(data, recipe.seed)
        return self._array(key, lambda: mask_pixels(data, field))

    def unpacked(self, data: memoryview) -> memoryview:
        """Return the content of a compressed field, as `unpack` does."""
        key = xxhash.xxh3_128_digest(data, self._unpacking)
        return self._array(key, lambda: np.frombuffer(unpack(data), np.uint8)).data

    def _array(self, key: bytes, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        started = time.perf_counter()
        entry = self._file.get(key, _memory)
        if entry is not None:
            self._count(hits=1, hit_s=time.perf_counter() - started)
            return entry.array
        array = make()
        if array.nbytes < _WORTH_KEEPING:
            return array
        self._keep(key, array, (1, 0, 0), started)
        return array

    def _keep(
        self, key: bytes, array: NDArray[Any], about: tuple[int, int, int], started: float
    ) -> None:
        made = time.perf_counter()
        self._file.put(key, array, about)
        self._count(misses=1, miss_s=made - started, keeping_s=time.perf_counter() - made)

    def _count(self, **facts: Any) -> None:
        with self._counting:
            self._facts = self._facts.plus(DecodedFacts(**facts))

    def take_facts(self) -> DecodedFacts:
        """Return what was found and decoded since the last call."""
        with self._counting:
            facts, self._facts = self._facts, DecodedFacts()
        return replace(facts, kept_nbytes=self._file.nbytes, budget_nbytes=self._file.budget)


def _in_parts(data: memoryview, window: Window) -> bool:
    """Say whether of a picture only a part is decoded, perhaps at a lower size.

    That gives other pixels than all of it does, so such a window neither keeps nor uses the whole.
    """
    return is_jpeg(data) and may_shrink(window.picture, window.size)


def _memory(nbytes: int) -> NDArray[np.uint8]:
    return scratch_piece("kept", nbytes)


def _all(height: int, width: int) -> Window:
    box = Box(0, 0, width, height)
    return Window((height, width), box, (height, width), box)


def _result(result: NDArray[Any], window: Window) -> Part:
    """Return a finished picture as a part of which only the flip is left to do."""
    return Part(result, _all(*result.shape[:2])._replace(flip=window.flip), 1)
