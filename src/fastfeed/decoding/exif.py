"""Orientation from the EXIF block of a JPEG: bounded, and never an error on rubbish."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastfeed.decoding.jpeg_header import SEGMENT
from fastfeed.decoding.window import Box

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

_ORIENTATION = 0x0112
# More directory entries than any camera writes; a bound for hostile files.
_ENTRIES = 1000


def jpeg_orientation(data: memoryview) -> int:
    """Return 1 to 8 from the first EXIF segment of a JPEG; 1 where there is none that is right."""
    place, last = 2, len(data) - SEGMENT.size
    while place <= last:
        start, marker, length = SEGMENT.unpack_from(data, place)
        if start != 0xFF or marker in {0xDA, 0xD9}:
            break
        if marker == 0xFF:  # fill bytes may stand before a marker
            place += 1
            continue
        if marker == 0xE1 and bytes(data[place + 4 : place + 10]) == b"Exif\0\0":
            return _orientation(data[place + 10 : place + 2 + length])
        place += 2 + max(2, length)
    return 1


def _orientation(block: memoryview) -> int:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(block[:4]))
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", block, 4)
        (count,) = struct.unpack_from(f"{order}H", block, start)
        for entry in range(min(count, _ENTRIES)):
            tag, kind, number = struct.unpack_from(f"{order}HHI", block, start + 2 + 12 * entry)
            if tag == _ORIENTATION:
                if kind != 3 or number != 1:
                    return 1
                (value,) = struct.unpack_from(f"{order}H", block, start + 10 + 12 * entry)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Return where a box of the displayed picture (`height` x `width`) lies in the stored one."""
    if orientation == 1:
        return box
    x, y, w, h = box
    right, below = width - x - w, height - y - h
    return {
        2: Box(right, y, w, h),
        3: Box(right, below, w, h),
        4: Box(x, below, w, h),
        5: Box(y, x, h, w),
        6: Box(y, right, h, w),
        7: Box(below, right, h, w),
        8: Box(below, x, h, w),
    }[orientation]


def turn_back(picture: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return a view of a displayed picture as it is stored."""
    return turn(picture, {6: 8, 8: 6}.get(orientation, orientation))


def turn(picture: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return a view of a stored picture [height, width, ...] as it is displayed."""
    if orientation in {5, 6, 7, 8}:
        picture = picture.swapaxes(0, 1)
    if orientation in {2, 3, 6, 7}:
        picture = picture[:, ::-1]
    if orientation in {3, 4, 7, 8}:
        picture = picture[::-1]
    return picture
