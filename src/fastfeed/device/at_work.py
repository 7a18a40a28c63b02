"""Which threads are at work for a device: they may hold locks that the threads of others want."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_here = threading.local()


@contextmanager
def at_work() -> Iterator[None]:
    """Mark the calling thread inside: the garbage collector may end any loader there."""
    before = is_at_work()
    _here.is_so = True
    try:
        yield
    finally:
        _here.is_so = before


def is_at_work() -> bool:
    """Say whether the calling thread must not wait for threads of a loader."""
    return getattr(_here, "is_so", False)
