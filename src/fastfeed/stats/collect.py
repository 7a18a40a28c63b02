"""Where a loader's iterators count what they deliver, and where exports listen."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from fastfeed.stats.histogram import Waits
from fastfeed.stats.tally import ROW, Tally, write, write_moved
from fastfeed.stats.values import Delivery, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fastfeed.stats.decoded import DecodedFacts
    from fastfeed.stats.values import DeviceFacts

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Deliveries are counted when so many are there. Between two batches other work has taken the
# processor's caches, so that what counts them is slow to begin with, however few they are.
_AT_ONCE = 2048
# The steps in the order that a batch passes them; steps of other names come last.
_STEPS = ("read", "defer", "decode", "fetch", "collate", "slots", "device")


class Observer(Protocol):
    """Is told of each batch that the loop is given, in the loop's thread."""

    def __call__(self, delivery: Delivery) -> None:
        """Take note of a batch; it should take microseconds."""
        ...


class Stats:
    """Counts one loader's deliveries; written by one thread at a time, read by any."""

    def __init__(self) -> None:
        # What was counted, rows of what came since, and the bytes of these that are written:
        # replaced together, so that who looks from another thread sees each delivery once. Rows lie
        # in memory that is there before. Objects that stay would take new memory for each batch,
        # which no cache holds, and have the garbage collector look at them.
        self._state = (Tally(), bytearray(_AT_ONCE * ROW), 0)
        self._steps: dict[str, Waits] = {}
        self._deferred = self._refused = self._failed = 0
        self._decoded: DecodedFacts | None = None
        self._observers: tuple[Observer, ...] = ()
        self._ranges: tuple[Callable[[str], AbstractContextManager[Any]], ...] = ()

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        """A copy has counted nothing."""
        return Stats, ()

    def delivered(self, delivery: tuple[Any, ...]) -> None:
        """Count a batch that is about to be handed to the training loop.

        `delivery` has the values of a `Delivery`, which is made only if somebody observes.
        """
        tally, rows, written = self._state
        asked, got, _, samples, nbytes, copied, who, busy, times, _, moved = delivery
        if moved is None:
            write(rows, written, asked, got, samples, nbytes, copied, who, busy, *times)
        else:
            first = (asked, got, samples, nbytes, copied, who, busy)
            write_moved(rows, written, *first, *times, *moved)
        written += ROW
        if written == len(rows):
            tally, rows, written = tally.plus(rows), bytearray(written), 0
        self._state = (tally, rows, written)
        if self._observers:
            made = Delivery(*delivery)
            for observer in self._observers:
                observer(made)

    def spent(self, step: str, seconds: float) -> None:
        """Count time that went into one step of the path, for one batch."""
        waits = self._steps.get(step)
        if waits is None:
            waits = self._steps[step] = Waits()
        waits.add(seconds)

    def left_to_device(self, *, deferred: int, refused: int, failed: int) -> None:
        """Count samples by what became of their decoding on the device."""
        self._deferred += deferred
        self._refused += refused
        self._failed += failed

    def looked_up(self, decoded: DecodedFacts) -> None:
        """Count what the cache of decoded samples was asked for."""
        self._decoded = decoded if self._decoded is None else self._decoded.plus(decoded)

    def snapshot(self, device: DeviceFacts | None = None) -> Snapshot:
        """Return the counts so far, with what is known of the device."""
        tally, rows, written = self._state
        tally = tally.plus(rows[:written])
        steps = {name: waits.spread for name, waits in list(self._steps.items())}
        whole = tally.steps
        if steps.keys() - {"device"}:  # the data set splits its work
            whole.pop("fetch", None)
        steps |= whole
        known = [name for name in _STEPS if name in steps]
        steps = {name: steps[name] for name in [*known, *(steps.keys() - set(known))]}
        return Snapshot(
            **tally.facts(),
            steps=steps,
            steps_s={name: spread.total_s for name, spread in steps.items()},
            deferred=self._deferred,
            refused=self._refused,
            failed=self._failed,
            device=device,
            decoded=self._decoded,
        )

    # For exports

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Tell `observer` of every batch from now on; the result is called to end that."""
        self._observers = (*self._observers, observer)

        def end() -> None:
            self._observers = tuple(one for one in self._observers if one is not observer)

        return end

    def mark(self, ranges: Callable[[str], AbstractContextManager[Any]]) -> Callable[[], None]:
        """Have `ranges(name)` entered around each step in this process, from the next epoch on.

        The result is called to end that.
        """
        self._ranges = (*self._ranges, ranges)

        def end() -> None:
            self._ranges = tuple(one for one in self._ranges if one is not ranges)

        return end

    def named(self, name: str, step: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return `step` with the marks around it that exports asked for: itself if there are none.

        So a step that nobody marks costs nothing.
        """
        for ranges in self._ranges:
            step = _within(ranges, f"fastfeed.{name}", step)
        return step


def _within(
    ranges: Callable[[str], AbstractContextManager[Any]], name: str, step: Callable[_P, _T]
) -> Callable[_P, _T]:
    @wraps(step)
    def marked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with ranges(name):
            return step(*args, **kwargs)

    return marked
