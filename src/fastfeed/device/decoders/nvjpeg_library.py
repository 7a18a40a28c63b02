"""Finds libnvjpeg, which comes with one of several packages or with the system, and binds it."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUNCTIONS: Final = {
    "nvjpegCreateEx": [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_void_p,
    ],
    "nvjpegDestroy": [ctypes.c_void_p],
    "nvjpegJpegStateCreate": [ctypes.c_void_p, ctypes.c_void_p],
    "nvjpegJpegStateDestroy": [ctypes.c_void_p],
    "nvjpegDecodeBatchedInitialize": [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
    ],
    "nvjpegDecodeBatched": [ctypes.c_void_p] * 6,
}


@cache
def shared_library() -> Any | None:
    """Return libnvjpeg, or None if there is none here."""
    for path in _candidates():
        try:
            found = ctypes.CDLL(path)
            for name, arguments in _FUNCTIONS.items():
                function = getattr(found, name)
                function.restype, function.argtypes = ctypes.c_int, arguments
        except (OSError, AttributeError):
            continue
        return found
    return None


def _candidates() -> Iterator[str]:
    # That of torch's own CUDA first; another one shares the device through the driver as well.
    own = (torch.version.cuda or "13").partition(".")[0]
    versions = sorted({own, "13", "12"}, key=lambda version: (version != own, version))
    for version in versions:
        for folder in _folders("nvidia"):
            for inside in (f"cu{version}", "nvjpeg"):
                path = folder / inside / "lib" / f"libnvjpeg.so.{version}"
                if os.access(path, os.R_OK):
                    yield str(path)
    for folder in _folders("torchvision"):  # its wheels carry one, under a name with a hash
        yield from map(str, sorted(folder.with_name("torchvision.libs").glob("libnvjpeg.*so*")))
    for version in versions:
        yield f"libnvjpeg.so.{version}"  # what this process has loaded, or the loader's path
    system = ctypes.util.find_library("nvjpeg")
    if system:
        yield system


def _folders(package: str) -> list[Path]:
    """Return where a package lies, without importing it."""
    found = importlib.util.find_spec(package)
    return [Path(place) for place in (found and found.submodule_search_locations) or ()]
