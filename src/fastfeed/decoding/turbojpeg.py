"""The one door to libjpeg-turbo: decodes only a region of a JPEG, through ctypes.

ctypes releases the GIL for each call. The library is a system libturbojpeg of version 3 or later,
else the one inside the PyPI package `turbojpeg`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import threading
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from fastfeed.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from fastfeed.decoding.window import Box

_STOP_ON_WARNING = 0
_SUBSAMPLING, _WIDTH, _HEIGHT, _PRECISION, _COLORSPACE = 4, 5, 6, 7, 8
_SCANLIMIT = 13
_ARITHMETIC, _LOSSLESS = 14, 15
_RGB, _GRAY = 0, 6
_CMYK_SPACES = {3, 4}
# Progressive files need few scans; thousands are an attack on time.
_MOST_SCANS = 500
# A warning that means a picture was cut short; others come with files that decode well elsewhere.
_CUT_SHORT = "premature end"
# Width of a coded block of all channels in pixels, by the subsampling's number: 4:4:4, 4:2:2,
# 4:2:0, gray, 4:4:0, 4:1:1, 4:4:1.
_UNITS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}
# Pixels beside the region that its colours are interpolated from.
_BORDER = 4


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in "xywh"]


class _Factor(ctypes.Structure):
    _fields_ = [("num", ctypes.c_int), ("denom", ctypes.c_int)]


class _Symbol(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class Header(NamedTuple):
    """What the decoder says of a JPEG before decoding it."""

    data: NDArray[np.uint8]
    height: int
    width: int
    subsampling: int
    supported: bool
    """Whether this decoder makes RGB of it; CMYK, 12-bit and the like are for others."""


def _candidates() -> Iterator[str]:
    system = ctypes.util.find_library("turbojpeg")
    if system:
        yield system
    try:
        files = metadata.files("turbojpeg") or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libturbojpeg") and ".so" in file.name:
            yield str(file.locate())


@cache
def shared_library() -> Any | None:
    """Return libturbojpeg 3, or None if there is none here."""
    for path in _candidates():
        try:
            found = ctypes.CDLL(path)
            pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
            for name, result, arguments in (
                ("tj3Init", pointer, [number]),
                ("tj3Destroy", None, [pointer]),
                ("tj3Get", number, [pointer, number]),
                ("tj3Set", number, [pointer, number, number]),
                ("tj3GetErrorStr", ctypes.c_char_p, [pointer]),
                ("tj3DecompressHeader", number, [pointer, pointer, size]),
                ("tj3SetCroppingRegion", number, [pointer, _Region]),
                ("tj3SetScalingFactor", number, [pointer, _Factor]),
                ("tj3Decompress8", number, [pointer, pointer, size, pointer, number, number]),
            ):
                function = getattr(found, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue
        return found
    return None


def version() -> str:
    """Return a digest of the library's file, as it does not say its version; "" without one."""
    library = shared_library()
    if library is None:
        return ""
    found = _Symbol()
    ctypes.CDLL(None).dladdr(ctypes.cast(library.tj3Init, ctypes.c_void_p), ctypes.byref(found))
    path = Path(os.fsdecode(found.file))
    try:
        return xxhash.xxh3_64_hexdigest(path.read_bytes())
    except OSError:  # it was deleted, or renewed by half
        return str(path)


class _Handle:
    """One thread's decoder; freed with the thread."""

    def __init__(self, functions: Any) -> None:
        self.functions = functions
        self.address = functions.tj3Init(1)
        if not self.address:
            raise MemoryError("libturbojpeg has no memory for a decoder")
        functions.tj3Set(self.address, _SCANLIMIT, _MOST_SCANS)
        # A failure after a warning looks like a warning, so that neither can be trusted.
        functions.tj3Set(self.address, _STOP_ON_WARNING, 1)

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self.functions.tj3Destroy(self.address)


_own = threading.local()


def _handle() -> _Handle:
    handle: _Handle | None = getattr(_own, "handle", None)
    if handle is None:
        handle = _own.handle = _Handle(shared_library())
    return handle


def read_header(data: NDArray[np.uint8]) -> Header | None:
    """Return the header of a JPEG, None if this decoder fails at it."""
    handle = _handle()
    functions, address = handle.functions, handle.address
    if functions.tj3DecompressHeader(address, data.ctypes.data, len(data)) < 0:
        _give_up()
        return None
    get = functions.tj3Get
    height, width, subsampling, precision, space, arithmetic, lossless = [
        get(address, parameter)
        for parameter in (
            _HEIGHT,
            _WIDTH,
            _SUBSAMPLING,
            _PRECISION,
            _COLORSPACE,
            _ARITHMETIC,
            _LOSSLESS,
        )
    ]
    supported = (
        precision == 8
        and space not in _CMYK_SPACES
        and subsampling in _UNITS
        and arithmetic != 1
        and lossless != 1
    )
    return Header(data, height, width, subsampling, supported)


def decode_region(
    header: Header,
    box: Box,
    *,
    shrink: int,
    gray: bool,
    scratch: Any,
    tolerant: bool,
) -> NDArray[np.uint8] | None:
    """Return a region of the picture as [height, width, channels], a view of scratch memory.

    The `header` must be the one read last in this thread. `shrink` is 1, 2, 4 or 8: the region
    comes that many times smaller, its edges moved to the nearest pixel of the smaller picture.
    `scratch(nbytes)` gives the memory. None if this decoder fails at it, or only has a warning.
    Coded data that end too early are a DecodeError unless `tolerant`: the next decoder would fill
    the picture up and say nothing.
    """
    handle, data = _handle(), header.data
    functions, address = handle.functions, handle.address
    unit = _UNITS[header.subsampling]
    width, height = -(-header.width // shrink), -(-header.height // shrink)
    left, right = _nearest(box.x, box.w, shrink, width)
    top, below = _nearest(box.y, box.h, shrink, height)
    # The region must begin at a coded block, and colours at its edges depend on their neighbours.
    step = unit // shrink
    first = max(0, left - _BORDER) // step * step
    upper = max(0, top - _BORDER) // 2 * 2
    region = _Region(
        first,
        upper,
        min(width, right + _BORDER) - first,
        min(height, below + _BORDER) - upper,
    )
    channels = 1 if gray else 3
    memory = scratch(region.w * region.h * channels)
    if (
        functions.tj3SetScalingFactor(address, _Factor(1, shrink)) < 0
        or functions.tj3SetCroppingRegion(address, region) < 0
    ):
        _give_up()
        return None
    target, layout = memory.ctypes.data, _GRAY if gray else _RGB
    if functions.tj3Decompress8(address, data.ctypes.data, len(data), target, 0, layout) < 0:
        reason = _reason(handle)
        _give_up()
        if not tolerant and _CUT_SHORT in reason.lower():
            raise DecodeError(reason)
        return None
    # The next header must not meet a region of this picture.
    functions.tj3SetCroppingRegion(address, _Region(0, 0, 0, 0))
    functions.tj3SetScalingFactor(address, _Factor(1, 1))
    picture: NDArray[np.uint8] = memory.reshape(region.h, region.w, channels)
    return picture[top - upper : below - upper, left - first : right - first]


def _nearest(start: int, length: int, shrink: int, limit: int) -> tuple[int, int]:
    """Return the first pixel and the one behind the last, on an axis `shrink` times shorter."""
    first = min(round(start / shrink), limit - 1)
    return first, min(max(round((start + length) / shrink), first + 1), limit)


def _give_up() -> None:
    """Give this thread's decoder up: it keeps markers and tables of the picture that it failed at.

    Some versions then fail at the next picture, or decode it wrongly.
    """
    _own.handle = None


def _reason(handle: _Handle) -> str:
    text = handle.functions.tj3GetErrorStr(handle.address) or b""
    return f"libjpeg-turbo: {text.decode('utf-8', 'replace')}"
