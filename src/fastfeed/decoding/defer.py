"""Pictures whose decoding is left to the GPU: header, window and bytes, nothing decoded yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastfeed.decoding import turbojpeg
from fastfeed.decoding.exif import jpeg_orientation, stored_box
from fastfeed.decoding.jpeg_header import is_complete, is_jpeg
from fastfeed.decoding.jpeg_kind import is_regular, read_kind
from fastfeed.decoding.raw_picture import is_raw, view_raw
from fastfeed.decoding.window import Box

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.decoding.jpeg_kind import Kind
    from fastfeed.decoding.window import Window
    from fastfeed.fields import Image

CUT_FIELDS = (
    # The picture as it is stored, and what of it is wanted.
    *("height", "width", "channels", "box_x", "box_y", "box_w", "box_h"),
    # That part's size after the resize, still as stored.
    *("size_h", "size_w"),
    # Where pixel (y, x) of the result lies in it: row = yy * y + yx * x + y0, and so on.
    *("yy", "yx", "y0", "xy", "xx", "x0"),
)
"""The columns of a table of cuts, int32."""


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """What the trainer's device does for a data set beyond taking its batches.

    It normalises pictures of a fixed size, which then travel as uint8, and decodes those that
    `supports` says yes to (a function that workers can be sent), or none.
    """

    supports: Callable[[Kind], bool] | None


class Deferred(NamedTuple):
    """One picture that is left to the GPU."""

    data: memoryview
    """A whole JPEG; or rows of uint8 pixels, [box_h, width, channels]."""
    is_raw: bool
    cut: tuple[int, ...]
    """Values in the order of `CUT_FIELDS`."""
    window: Window


def defer_image(  # noqa: PLR0911 - each is a reason why the CPU decodes it
    data: memoryview,
    field: Image,
    window_of: Callable[[int, int], Window],
    side: DeviceSide,
) -> Deferred | None:
    """Return a picture for the GPU to decode, None if it is one for the CPU.

    Pictures that cannot be right are for the CPU as well, which says what is wrong with them.
    """
    if field.dtype != "uint8" or field.mode == "RGBA":
        return None
    if is_raw(data):
        return _defer_raw(data, field, window_of)
    if side.supports is None or not is_jpeg(data):
        return None
    if turbojpeg.shared_library() is None:
        return None
    header = turbojpeg.read_header(np.frombuffer(data, np.uint8))
    if header is None or not header.supported:
        return None
    height, width = header.height, header.width
    kind = read_kind(data)
    if kind is None or not side.supports(kind) or height * width > field.max_pixels:
        return None
    # Engines decode past a stray marker, and nobody would know.
    if not (is_regular(data, kind) if kind.has_one_scan else is_complete(data)):
        return None
    orientation = jpeg_orientation(data) if field.exif == "apply" else 1
    displayed = (width, height) if orientation >= 5 else (height, width)
    window = window_of(*displayed)
    box = stored_box(window.crop, orientation, *displayed)
    channels = 1 if field.mode == "L" else 3
    cut = (height, width, channels, *box, *_affine(window, orientation))
    return Deferred(data, False, cut, window)


def _defer_raw(
    data: memoryview, field: Image, window_of: Callable[[int, int], Window]
) -> Deferred | None:
    pixels = view_raw(data, max_pixels=field.max_pixels)
    height, width, channels = pixels.shape
    if pixels.dtype != np.uint8 or channels != (1 if field.mode == "L" else 3):
        return None
    window = window_of(height, width)
    x, y, w, h = window.crop
    rows = pixels[y : y + h].reshape(-1).data  # only these rows are sent
    cut = (h, width, channels, *Box(x, 0, w, h), *_affine(window, 1))
    return Deferred(rows, True, cut, window)


def _affine(window: Window, orientation: int) -> tuple[int, ...]:
    """Return the resized part's size as stored, and the way from the result's pixels to its own."""
    height, width = window.size
    size = (width, height) if orientation >= 5 else (height, width)
    # Row and column of the part as displayed, each as (factor of y, factor of x, constant).
    row = (1, 0, window.final.y)
    column = (0, 1, window.final.x)
    if window.flip:
        column = (0, -1, window.final.x + window.final.w - 1)
    if orientation in {3, 4, 7, 8}:
        row = (-row[0], -row[1], height - 1 - row[2])
    if orientation in {2, 3, 6, 7}:
        column = (-column[0], -column[1], width - 1 - column[2])
    if orientation >= 5:
        row, column = column, row
    return (*size, *row, *column)
