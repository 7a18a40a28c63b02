"""Python literals, which the headers of arrays are, read in several threads at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_TRIES = 100


def undisturbed(read: Callable[[], _T]) -> _T:
    """Return what `read` returns, which parses a literal; where another thread disturbed it, anew.

    Some versions of CPython count how deep the parser is for all threads together: a switch of
    threads in the middle is a SystemError. No lock, since a fork may copy it closed.
    """
    for _ in range(_TRIES):
        try:
            return read()
        except SystemError:
            continue
    return read()
