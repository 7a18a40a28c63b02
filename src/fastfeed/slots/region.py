"""One worker's shared memory: a memfd that both sides map once, sparse up to its maximum."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class Region:
    """Shared memory of `capacity` bytes; pages are taken only when they are first written.

    A forked worker inherits it; to a spawned one it travels as an argument of the process. The map
    is never closed: it goes away with the last array over it, since closing it under a living
    tensor would make the next access a crash.
    """

    def __init__(self, capacity: int) -> None:
        capacity = max(1, capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        self.capacity = capacity
        descriptor = anonymous_file()
        try:
            os.ftruncate(descriptor, capacity)
            self._map = mmap.mmap(descriptor, capacity)
        except (OSError, ValueError, OverflowError) as error:
            os.close(descriptor)
            raise OptionError(
                f"cannot reserve {capacity:,} bytes of shared memory: {error}",
                way_out="Raise the limits of the process (`ulimit -v`, `ulimit -f`), or use fewer "
                "workers",
            ) from error
        self._descriptor: int | None = descriptor
        self.base = self._base()

    @classmethod
    def up_to(cls, capacity: int, *, least: int) -> Region:
        """Return the largest region up to `capacity` bytes that the process's limits allow."""
        while True:
            try:
                return cls(capacity)
            except OptionError:
                if capacity <= least:
                    raise
            capacity = max(least, capacity // 2)

    def _base(self) -> int:
        root = np.ndarray((self.capacity,), np.uint8, self._map)
        return int(root.__array_interface__["data"][0])

    def array(self, shape: tuple[int, ...], dtype: DTypeLike, start: int) -> NDArray[Any]:
        """Return a view of the region; the view alone keeps the memory mapped."""
        # Straight on the map: of an array over another array numpy would keep only the map.
        return np.ndarray(shape, dtype, self._map, start)

    def close_descriptor(self) -> None:
        """Close the file once every process has mapped it; the map stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __getstate__(self) -> dict[str, Any]:
        """Travel to a spawned worker as a duplicated descriptor."""
        if self._descriptor is None:
            raise RuntimeError("the region's descriptor is closed; it can go to no more processes")
        return {"capacity": self.capacity, "descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.capacity = state["capacity"]
        descriptor = state["descriptor"].detach()
        self._map = mmap.mmap(descriptor, self.capacity)
        os.close(descriptor)
        self._descriptor = None
        self.base = self._base()


def anonymous_file() -> int:
    """Return the descriptor of a file without a name, in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        # Not /dev/shm: containers cap it at 64 MB, and writing beyond that is a SIGBUS.
        return os.memfd_create("fastfeed", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="fastfeed-")
    os.unlink(path)  # noqa: PTH108
    return descriptor
