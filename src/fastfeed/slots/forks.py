"""Forks of the trainer: their copies of a batch keep its memory from reuse.

A child that the user forks sees the same shared memory. The trainer's own tensors may die while the
child still reads, and nobody would tell; so each fork that happens while batches are lent is
witnessed by a pipe that the child holds open until it ends (or runs another program). Workers are
no exception: the data set of one loader may hold batches of another.
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections import deque


class Lending(Protocol):
    """Somebody who lends memory that a fork shares."""

    witnesses: deque[Witness]

    def lends(self) -> bool:
        """Say whether anything is lent now; may be asked from any thread."""
        ...


class Witness:
    """Says whether a fork of this process may still hold what was lent when it was made."""

    def __init__(self, end: int | None) -> None:
        self.moment = next(_clock)
        self._end = end
        self._gone = False

    def gone(self) -> bool:
        """Say whether the child, and all that it forked, have ended."""
        if self._end is not None:
            poll = select.poll()
            poll.register(self._end, select.POLLIN)  # the end of the other side is always told
            if poll.poll(0):
                self._gone = True
                self._close()
        return self._gone

    def _close(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            os.close(end)

    def __del__(self) -> None:
        if os is not None:  # at the interpreter's end modules are emptied; the system closes then
            self._close()


_clock = itertools.count()
_lenders: weakref.WeakSet[Lending] = weakref.WeakSet()
_pending = threading.local()


def moment() -> int:
    """Return a number that grows: what is lent before a fork has a smaller one than its witness."""
    return next(_clock)


def watch(lender: Lending) -> None:
    """Give `lender` a witness of every fork that happens while it lends something."""
    _lenders.add(lender)


def _before() -> None:
    _pending.ends = None
    if not any(lender.lends() for lender in list(_lenders)):
        return
    try:
        _pending.ends = os.pipe()
    except OSError:  # no descriptors left: the memory is never used again, to be safe
        _pending.ends = ()


def _in_trainer() -> None:
    ends = getattr(_pending, "ends", None)
    if ends is None:
        return
    if ends:
        os.close(ends[1])
    witness = Witness(ends[0] if ends else None)
    for lender in list(_lenders):
        if lender.lends():
            lender.witnesses.append(witness)


def _in_child() -> None:
    ends = getattr(_pending, "ends", None)
    if ends:
        os.close(ends[0])  # the other end stays open as long as this process lives


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_trainer, after_in_child=_in_child)
