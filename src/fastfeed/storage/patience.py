"""How long and how often a request is tried: backoff with jitter, under one deadline for all."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from fastfeed.storage.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TOTAL_S: Final = 300.0
IDLE_S: Final = 30.0
ATTEMPTS: Final = 10
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 20.0
# A link slower than this per request feeds nobody; whatever is read has a deadline by it.
SLOWEST: Final = 256 << 10


def jitter() -> float:
    """Return a number from 0 to 1. From the system: forked workers share a generator's state."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


@dataclass(frozen=True, slots=True)
class Patience:
    """When to give up on remote storage. Each read has a deadline of its own."""

    total_s: float = TOTAL_S
    """Seconds for all attempts of one read, beyond what its bytes take at `SLOWEST`."""
    idle_s: float = IDLE_S
    """Seconds without a single byte after which an attempt has failed."""
    attempts: int = ATTEMPTS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = jitter

    def pause(self, attempt: int, fault: Fault) -> float:
        """Return how long to wait after an attempt that failed, counted from 1."""
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (attempt - 1))
        # At least half: a server that is busy is not helped by clients who draw zero.
        drawn = longest * (0.5 + self.jitter() / 2)
        return max(drawn, fault.retry_after or 0.0)


class GaveUp(Exception):  # noqa: N818 - it never leaves this folder
    """The last fault of a request that is not tried again."""

    def __init__(self, fault: Fault, attempts: int, seconds: float) -> None:
        super().__init__(fault.fact)
        self.fault = fault
        self.attempts = attempts
        self.seconds = seconds


def persist(
    work: Callable[[float], T],
    patience: Patience,
    *,
    size: int = 0,
    renew: Callable[[], None] | None = None,
) -> T:
    """Call `work(seconds left)` until it succeeds; GaveUp when it cannot or time is over.

    `size` bytes are to be read, which is what the deadline allows for. `renew` is called once if
    the credentials have expired, and the request tried again.
    """
    began = patience.clock()
    end = began + patience.total_s + size / SLOWEST
    attempt = 0
    while True:
        attempt += 1
        try:
            return work(max(0.001, end - patience.clock()))
        except Fault as error:
            fault = error
        now = patience.clock()
        if fault.kind == "expired" and renew is not None:
            renew()
            renew = None
            continue
        pause = patience.pause(attempt, fault)
        if not fault.passes or attempt >= patience.attempts or now + pause >= end:
            break
        patience.sleep(pause)
    raise GaveUp(fault, attempt, now - began)
