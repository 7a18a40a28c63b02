"""One picture: header, window, the cheapest decoder that can do it, resize, orientation, row."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from fastfeed.decoding import pillow, turbojpeg
from fastfeed.decoding.exif import jpeg_orientation, stored_box, turn, turn_back
from fastfeed.decoding.jpeg_header import check_scans, is_complete, is_jpeg
from fastfeed.decoding.raw_picture import as_asked, is_raw, view_raw
from fastfeed.decoding.resize import flip_into, resize_into, resize_nearest
from fastfeed.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from fastfeed.decoding.window import Box, Window
    from fastfeed.fields import Image, Mask, Normalize

JPEG_DECODERS = ("turbojpeg", "simplejpeg", "pillow")
"""In the order of preference; each leaves to the next what it cannot do, so that Pillow judges."""

# Measured on photos, a result decoded smaller differs from the exact one by 0.2 levels on average,
# and by less than 1 level in the worst photo; at twice the size, or 0.1 pixels, by up to 3 levels.
_SHRUNK_RATIO = 3.0
_SHIFT = 0.02
"""Pixels of the result."""


class _Scratch(threading.local):
    """Memory of one thread that grows to the largest picture and is used again for each."""

    def __init__(self) -> None:
        self._pieces: dict[str, NDArray[np.uint8]] = {}

    def piece(self, name: str, nbytes: int) -> NDArray[np.uint8]:
        """Return `nbytes` that are valid until the same name is asked for again."""
        held = self._pieces.get(name)
        if held is None or len(held) < nbytes:
            held = self._pieces[name] = np.empty(nbytes, np.uint8)
        return held[:nbytes]


scratch_piece = _Scratch().piece


class Part(NamedTuple):
    """A decoded region, and what is still to be done to it."""

    pixels: NDArray[Any]
    window: Window
    orientation: int


def deliver(
    part: Part, field: Image, *, out: NDArray[Any] | None, normalize: Normalize | None
) -> NDArray[Any]:
    """Return the picture of a part in `out` [h, w, channels], or in fresh memory."""
    shape = (*part.window.shape, part.pixels.shape[2])
    if out is None:
        kind = normalized_type(normalize) if normalize else np.dtype(field.dtype)
        out = np.empty(shape, kind)
    target = out
    if normalize is not None:
        raw = scratch_piece("normalize", int(np.prod(shape)) * part.pixels.itemsize)
        target = raw.view(part.pixels.dtype).reshape(shape)
    finish(part, target)
    if normalize is not None:
        _normalize(target, normalize, out)
    return out


def mask_pixels(data: memoryview, field: Mask) -> NDArray[np.uint8]:
    """Return the class numbers [h, w] of a whole mask, as displayed."""
    pixels, orientation = _by_pillow(data, field, mode="index", wide=False)
    whole: NDArray[np.uint8] = turn(pixels, orientation)[..., 0]
    return whole


def cut_mask(
    pixels: NDArray[np.uint8], window_of: Callable[[int, int], Window]
) -> NDArray[np.uint8]:
    """Return the class numbers [h, w] of a mask's window."""
    height, width = pixels.shape
    window = window_of(height, width)
    x, y, w, h = window.crop
    part = resize_nearest(pixels[y : y + h, x : x + w], window.size)
    out = np.zeros(window.shape, np.uint8)
    _place(part, window.final, out)
    return np.ascontiguousarray(out[:, ::-1]) if window.flip else out


def decode_part(
    data: memoryview,
    field: Image,
    window_of: Callable[[int, int], Window],
    decoders: Sequence[str],
) -> Part:
    """Decode what a picture's window wants of it.

    `window_of(height, width)` is asked once the size of the displayed picture is known.
    """
    if is_raw(data):
        part = cut(view_raw(data, max_pixels=field.max_pixels), 1, window_of)
        return part._replace(pixels=as_asked(part.pixels, field.mode, field.dtype))
    if is_jpeg(data):
        if field.truncated == "error" and not is_complete(data):
            raise DecodeError(
                f"the JPEG is cut short: its {len(data):,} bytes hold no end of the picture",
                way_out="Repair the file, or use truncated='keep'",
            )
        if field.mode != "RGBA" and field.dtype == "uint8":
            for name in decoders:
                if name == "pillow":
                    break
                found = _JPEG[name](data, field, window_of)
                if found is not None:
                    return found
        if field.truncated == "keep":
            data = memoryview(bytes(data) + b"\xff\xd9")  # given an end, Pillow fills it up
    pixels, orientation = _by_pillow(data, field, mode=field.mode, wide=field.dtype == "uint16")
    return cut(pixels, orientation, window_of)


def _by_pillow(
    data: memoryview, field: Image | Mask, *, mode: pillow.Mode, wide: bool
) -> tuple[NDArray[Any], int]:
    """Return a whole stored picture, and the orientation that is still to be applied."""
    if is_jpeg(data):
        check_scans(data)
    picture = pillow.open_picture(data, max_pixels=field.max_pixels)
    if wide:
        pillow.check_depth(picture)
    stored = jpeg_orientation(data) if is_jpeg(data) else pillow.orientation_of(picture)
    pixels = pillow.decode_picture(picture, mode=mode, wide=wide)
    turned = stored != 1 and not is_jpeg(data) and pillow.orientation_of(picture) != stored
    if field.exif == "apply":
        return pixels, 1 if turned else stored
    return turn_back(pixels, stored) if turned else pixels, 1  # Pillow turns TIFFs by itself


def _turbojpeg(
    data: memoryview, field: Image, window_of: Callable[[int, int], Window]
) -> Part | None:
    if turbojpeg.shared_library() is None:
        return None
    header = turbojpeg.read_header(np.frombuffer(data, np.uint8))
    if header is None:
        return None
    _check_budget(header.height, header.width, field)
    if not header.supported:
        return None
    orientation = jpeg_orientation(data) if field.exif == "apply" else 1
    height, width = _displayed((header.height, header.width), orientation)
    window = window_of(height, width)
    box = stored_box(window.crop, orientation, height, width)
    pixels = turbojpeg.decode_region(
        header,
        box,
        shrink=_shrink(box, _displayed(window.size, orientation)),
        gray=field.mode == "L",
        scratch=lambda nbytes: scratch_piece("region", nbytes),
        tolerant=field.truncated == "keep",
    )
    return None if pixels is None else Part(pixels, window, orientation)


def _simplejpeg(
    data: memoryview, field: Image, window_of: Callable[[int, int], Window]
) -> Part | None:
    import simplejpeg

    check_scans(data)
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None  # Pillow says what is wrong, or can do it
    _check_budget(height, width, field)
    if space in {"CMYK", "YCCK"} or field.truncated == "keep":
        return None
    try:
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if field.mode == "L" else "RGB")
    except ValueError:
        return None
    orientation = jpeg_orientation(data) if field.exif == "apply" else 1
    return cut(pixels, orientation, window_of)


_JPEG = {"turbojpeg": _turbojpeg, "simplejpeg": _simplejpeg}


def _check_budget(height: int, width: int, field: Image) -> None:
    if height * width > field.max_pixels:
        raise DecodeError(
            f"{width}x{height} pixels are more than the budget of {field.max_pixels:,}",
            way_out="If the picture is meant to be so large, raise max_pixels of the field",
        )


def _displayed(size: tuple[int, ...], orientation: int) -> tuple[int, int]:
    height, width = size[:2]
    return (width, height) if orientation >= 5 else (height, width)


def cut(pixels: NDArray[Any], orientation: int, window_of: Callable[[int, int], Window]) -> Part:
    """Cut the window's region out of a whole stored picture."""
    height, width = _displayed(pixels.shape, orientation)
    window = window_of(height, width)
    x, y, w, h = stored_box(window.crop, orientation, height, width)
    return Part(pixels[y : y + h, x : x + w], window, orientation)


def _shrink(box: Box, size: tuple[int, int]) -> int:
    """Return how many times smaller a JPEG's region may be decoded before it is resized."""
    for shrink in (8, 4, 2):
        if _shrinks(box.x, box.w, size[1], shrink) and _shrinks(box.y, box.h, size[0], shrink):
            return shrink
    return 1


def may_shrink(picture: tuple[int, int], size: tuple[int, int]) -> bool:
    """Say whether any part of a JPEG, resized to `size`, may be decoded at a lower size."""
    return all(a >= 2 * _SHRUNK_RATIO * b for a, b in zip(picture, size, strict=True))


def _shrinks(start: int, length: int, target: int, shrink: int) -> bool:
    # A block of fewer coefficients is the picture at half the size or less, with another filter
    # than ours: that shows unless our own resize still does most of the work. The region's edges
    # fall between its pixels, and by so much the result is shifted.
    ratio = length / target
    shift = max(abs(edge - round(edge / shrink) * shrink) for edge in (start, start + length))
    return ratio >= _SHRUNK_RATIO * shrink and shift <= _SHIFT * ratio


def finish(part: Part, out: NDArray[Any]) -> None:
    """Resize, turn, cut or fill, and flip the region into its row."""
    pixels, window, orientation = part
    height, width = window.size
    channels = pixels.shape[2]
    plain = orientation == 1 and window.is_whole and not window.flip
    if plain:
        resize_into(pixels, out)
        return
    stored = _displayed((height, width), orientation)
    if pixels.shape[:2] == stored:
        resized = pixels
    else:
        nbytes = height * width * channels * pixels.itemsize
        memory = scratch_piece("resized", nbytes).view(pixels.dtype)
        resized = memory.reshape(*stored, channels)
        resize_into(pixels, resized)
    resized = turn(resized, orientation)
    if not window.is_whole:
        out[...] = 0
        flipped = out[:, ::-1] if window.flip else out
        _place(resized, window.final, flipped)
    elif window.flip and orientation == 1 and out.dtype == np.uint8:
        flip_into(resized, out)
    else:
        np.copyto(out, resized[:, ::-1] if window.flip else resized)


def _place(source: NDArray[Any], final: Box, out: NDArray[Any]) -> None:
    """Copy what the final box holds of `source` to its place in `out`."""
    height, width = source.shape[:2]
    x0, y0 = max(0, final.x), max(0, final.y)
    x1, y1 = min(width, final.x + final.w), min(height, final.y + final.h)
    if x0 < x1 and y0 < y1:
        out[y0 - final.y : y1 - final.y, x0 - final.x : x1 - final.x] = source[y0:y1, x0:x1]


def normalized_type(normalize: Normalize) -> np.dtype[Any]:
    """Return the type of the memory of normalised values; numpy calls bfloat16 uint16."""
    return np.dtype("uint16" if normalize.dtype == "bfloat16" else normalize.dtype)


def _normalize(pixels: NDArray[Any], normalize: Normalize, out: NDArray[Any]) -> None:
    """Write (value / maximum - mean) / std of each channel, computed as float32."""
    top = float(np.iinfo(pixels.dtype).max)
    mean = torch.tensor(normalize.mean, dtype=torch.float32)
    std = torch.tensor(normalize.std, dtype=torch.float32)
    target = exact = torch.from_numpy(out)
    if normalize.dtype != "float32":
        target = target.view(getattr(torch, normalize.dtype))
        exact = torch.from_numpy(scratch_piece("exact", 4 * out.size).view(np.float32))
        exact = exact.view(target.shape)
    if pixels.dtype == np.uint16:
        pixels = pixels.astype(np.float32)
    exact.copy_(torch.from_numpy(pixels))
    exact.div_(top).sub_(mean).div_(std)
    if exact is not target:
        target.copy_(exact)
