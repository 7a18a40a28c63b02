"""What a JPEG's bytes alone say: is it one, is its end there, and how many scans has it?"""

from __future__ import annotations

import re
import struct
from typing import Final

from fastfeed.errors import DecodeError

MOST_SCANS: Final = 500
"""Progressive files need some ten scans; each goes over all pixels, so thousands attack time."""

SEGMENT: Final = struct.Struct(">BBH")
"""How a segment begins: 0xFF, its marker, and how long it is."""

_START = b"\xff\xd8\xff"
_END = b"\xff\xd9"
_SCAN = 0xDA
# Any marker that a length follows, or the end; 00 and the restarts stand inside coded data.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")


def is_jpeg(data: memoryview) -> bool:
    """Say whether these bytes begin as a JPEG does."""
    return bytes(data[:3]) == _START


def is_complete(data: memoryview) -> bool:
    """Say whether the picture's end is there. What follows the end is no matter.

    Segments are stepped over, so the end of a thumbnail inside one is not taken for it.
    """
    if data[-2:].tobytes() == _END:
        return True
    place = 2
    while (marker := _MARKER.search(data, place)) is not None:
        place = marker.end()
        if data[place - 1] == _END[1]:
            return True
        place += max(2, int.from_bytes(data[place : place + 2], "big"))
    return False


def check_scans(data: memoryview) -> None:
    """Raise DecodeError for more scans than any camera or program writes.

    For decoders that have no such limit themselves: a file of 1 MB can keep them busy for hours.
    """
    place, scans = 2, 0
    while (marker := _MARKER.search(data, place)) is not None:
        place = marker.end()
        if data[place - 1] == _END[1]:
            break
        scans += data[place - 1] == _SCAN
        if scans > MOST_SCANS:
            raise DecodeError(
                f"the JPEG has more than {MOST_SCANS} scans",
                way_out="Write the picture anew, or leave it out",
            )
        place += max(2, int.from_bytes(data[place : place + 2], "big"))
