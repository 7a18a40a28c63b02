"""An export that is switched on, and how it ends."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol, Self

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.stats import Snapshot, Stats


class Measured(Protocol):
    """A loader that measures itself, as `fastfeed.DataLoader` does."""

    num_workers: int

    @property
    def collector(self) -> Stats:
        """Where it counts."""
        ...

    @property
    def workers_in_use(self) -> int:
        """How many workers get jobs now."""
        ...

    def stats(self) -> Snapshot:
        """Return what was measured so far."""
        ...


class Export:
    """On until `close`, the end of a `with`, the end of the loader, or that of the program."""

    def __init__(self, loader: Measured, end: Callable[[], None]) -> None:
        """`end` is called once, and does not hold the loader."""
        self._finalizer = weakref.finalize(loader, end)

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return not self._finalizer.alive

    def close(self) -> None:
        """End it; does nothing the second time."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def collector_of(loader: Any) -> Stats:
    """Return where a loader counts; OptionError if it does not."""
    collector = getattr(loader, "collector", None)
    if collector is None:
        raise OptionError(
            f"a {type(loader).__name__} does not measure itself",
            way_out="Give the fastfeed.DataLoader itself, not what a trainer made of it",
        )
    return collector  # type: ignore[no-any-return]
