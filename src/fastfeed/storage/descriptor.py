"""A file's descriptor that cannot leak, and is never closed twice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Descriptor:
    """An open descriptor, until `close` or until the last reference dies.

    Whoever still uses what a cache has dropped keeps it open, and never meets a number used again.
    """

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """Below zero once it is closed."""

    def close(self) -> None:
        """Close it; more than once is fine."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if os is not None:  # at the interpreter's end modules are emptied; the system closes then
            self.close()
