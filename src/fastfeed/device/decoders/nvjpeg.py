"""The JPEG engines of NVIDIA's GPUs by way of nvJPEG: a whole batch in one call, through ctypes."""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fastfeed.device.decoders.nvjpeg_library import shared_library
from fastfeed.device.decoders.places import Marks, Places, Planes, Verdict, lay_out
from fastfeed.device.decoders.protocol import Decoded, Encoded
from fastfeed.device.decoders.streams import gpu_queues, settle, stream_handle
from fastfeed.errors import DeviceError, OptionError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from fastfeed.decoding.jpeg_kind import Kind

SUPPORTS: Final = frozenset({"444", "422", "420", "440", "gray"})
"""Subsamplings that the engines take; anything else is answered with an error."""

_HARDWARE: Final = 3
_LUMA, _RGB = 2, 3
# Interpolated colours cost the engines nothing and are what libjpeg-turbo has: equal but for 1
# level; without it colour edges differ by up to 41. Not strict: that finds stray markers, which
# workers have looked for (`is_regular`), and takes the calling thread 50 microseconds a picture.
_INTERPOLATE = 1 << 5
# The library's pipeline has a stream for each engine. Where streams share few queues of the
# hardware, it waits for itself through the one that training keeps full: 1,000 pictures a second
# beside a training, 12,300 without it. With a queue for each stream it is 21,200, 15,600 without.
_NO_PIPELINE, _QUEUES_OF_PIPELINE = 1, 16
_REFUSALS: Final = {7: "this GPU has no JPEG engines", 9: "this GPU has no JPEG engines"}
# Statuses that speak of one picture: wrong parameter, broken, not supported, incomplete.
_ABOUT_A_PICTURE: Final = frozenset({2, 3, 4, 10})
# Each bad picture costs one more call for those after it.
_MOST_BAD: Final = 3
# Before a bad picture as many may be missing as the pipeline holds, one an engine.
_NEAR: Final = 9
# So that a batch a little larger than the last does not allocate anew.
_ROOM: Final = 1.25
# Two calls under way at once hung on a GPU that trains, whosever they are.
_one_call = threading.Lock()


def supports(kind: Kind) -> bool:
    """Say whether the engines decode this kind; asked by workers, so no GPU is needed."""
    whole = kind.is_common and kind.has_one_scan
    return whole and kind.subsampling in SUPPORTS


def overlaps() -> bool:
    """Say whether a second decoder gains anything: if there are queues for the streams of both."""
    return gpu_queues() >= 2 * _QUEUES_OF_PIPELINE


class NvjpegDecoder:
    """Decodes whole pictures as planes, into one piece of memory that is used again each time."""

    name = "nvjpeg"

    def __init__(self, device: torch.device, *, library: Any = None) -> None:
        library = shared_library() if library is None else library
        if library is None:
            raise OptionError(
                "libnvjpeg was not found",
                way_out="Install nvidia-nvjpeg (CUDA 13) or nvidia-nvjpeg-cu12",
            )
        self.device = device
        self._library = library
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._prepared: tuple[int, int] | None = None
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._waited_s = self._held_s = 0.0
        flags = _INTERPOLATE
        if gpu_queues() < _QUEUES_OF_PIPELINE:
            flags |= _NO_PIPELINE
        with self._on_device(), _one_call:
            status = library.nvjpegCreateEx(
                _HARDWARE, None, None, flags, ctypes.byref(self._handle)
            )
            if status == 0:
                status = library.nvjpegJpegStateCreate(self._handle, ctypes.byref(self._state))
        if status != 0:
            self.close()
            raise OptionError(
                _REFUSALS.get(status, f"nvJPEG does not start: its status is {status}")
            )

    def can(self, kind: Kind) -> bool:
        """Say whether the engines decode this kind."""
        return supports(kind)

    def decode(self, encoded: Encoded) -> Decoded:
        """Decode all pictures; after an error go on behind the bad one, a few times."""
        places = lay_out(encoded.shapes, encoded.channels)
        good = np.zeros(len(encoded), np.bool_)
        waiting = np.arange(len(encoded), dtype=np.int64)
        self._waited_s = self._held_s = 0.0
        with self._on_device():
            self._reserve(places.nbytes)
            for _ in range(_MOST_BAD):
                if not len(waiting):
                    break
                status, verdict = self._decode_some(encoded, places, waiting)
                good[waiting] = verdict.good & (status == 0 or status in _ABOUT_A_PICTURE)
                if status == 0:
                    break
                if status not in _ABOUT_A_PICTURE:
                    raise DeviceError(f"nvJPEG fails with status {status}")
                waiting = self._without_bad(encoded, places, waiting, verdict, good)
        pictures = Planes(places, self._memory, good)
        return Decoded(pictures, whole=True, waited_s=self._waited_s, held_s=self._held_s)

    def close(self) -> None:
        """Give back what the library holds, once nothing on the device uses it."""
        with self._on_device(), _one_call:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            if self._state:
                self._library.nvjpegJpegStateDestroy(self._state)
            if self._handle:
                self._library.nvjpegDestroy(self._handle)
        self._state, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = torch.empty(0, dtype=torch.uint8, device=self.device)

    def _without_bad(
        self,
        encoded: Encoded,
        places: Places,
        waiting: NDArray[np.int64],
        verdict: Verdict,
        good: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Find the picture at which a call failed; return those that are still to be decoded.

        Pictures after it are not written, and some before it may not be. Or it is the last one that
        was. So those around the first gap are tried alone, in turn.
        """
        gap = int(verdict.unwritten.argmax()) if verdict.unwritten.any() else len(waiting)
        for number in waiting[max(0, gap - 1) :][:_NEAR]:
            status, seen = self._decode_some(encoded, places, number.reshape(1))
            good[number] = status == 0 and seen.good[0]
            waiting = waiting[waiting != number]
            if not good[number]:
                break
        return waiting[~good[waiting]]

    def _decode_some(
        self, encoded: Encoded, places: Places, chosen: NDArray[np.int64]
    ) -> tuple[int, Verdict]:
        some = places.some(chosen)
        marks = Marks(some, self.device)
        marks.put(self._memory)
        # The engines would write before the marks are there, or while the last pictures are read.
        settle(self.device)
        asked = time.perf_counter()
        with _one_call:
            began = time.perf_counter()
            status = self._call(encoded, some, chosen)
            settle(self.device)  # also lets the arrays go
            self._held_s += time.perf_counter() - began
        self._waited_s += began - asked
        return status, marks.read(self._memory)

    def _call(self, encoded: Encoded, places: Places, chosen: NDArray[np.int64]) -> int:
        count, form = len(chosen), _LUMA if encoded.gray else _RGB
        # The library wants to know the number of pictures beforehand. It keeps its buffers, so
        # telling it a new number for each batch is cheap; padding batches would decode for nothing.
        if self._prepared != (count, form):
            self._prepared = None
            status = self._library.nvjpegDecodeBatchedInitialize(
                self._handle, self._state, count, 1, form
            )
            if status != 0:
                return int(status)
            self._prepared = (count, form)
        pointers = (encoded.buffer.data_ptr() + encoded.starts[chosen]).astype(np.uint64)
        sizes = encoded.sizes[chosen].astype(np.uint64)
        images = self._images(places)
        return int(
            self._library.nvjpegDecodeBatched(
                self._handle,
                self._state,
                pointers.ctypes.data,
                sizes.ctypes.data,
                images.ctypes.data,
                stream_handle(self.device),
            )
        )

    def _images(self, places: Places) -> NDArray[np.uint64]:
        """Return the library's records of where to write: four pointers, then four pitches."""
        images = np.zeros((len(places.starts), 8), np.uint64)
        first = self._memory.data_ptr() + places.starts
        for channel in range(places.channels):
            images[:, channel] = first + channel * places.planes
            images[:, 4 + channel] = places.pitches
        return images

    def _reserve(self, nbytes: int) -> None:
        if len(self._memory) < nbytes:
            self._memory = torch.empty(0, dtype=torch.uint8, device=self.device)
            self._memory = torch.empty(int(nbytes * _ROOM), dtype=torch.uint8, device=self.device)

    def _on_device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
