"""What can be said of a JPEG from its bytes alone: is it one, and is its end there?"""

from __future__ import annotations

START = b"\xff\xd8\xff"
_END, _SCAN = b"\xff\xd9", b"\xff\xda"


def is_complete(data: memoryview) -> bool:
    """Say whether an end-of-image marker follows the last start of a scan.

    Neither marker can occur inside coded data, so a picture that was cut short has its last scan
    after any end marker (such as that of a thumbnail before it). What follows the end is no matter.
    """
    if data[-2:] == _END:
        return True
    whole = bytes(data)
    return whole.rfind(_END) > whole.rfind(_SCAN) >= 0
