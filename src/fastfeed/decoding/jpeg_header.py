"""What can be said of a JPEG from its bytes alone: is it one, and is its end there?"""

from __future__ import annotations

import re

_START = b"\xff\xd8\xff"
_END = b"\xff\xd9"
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
