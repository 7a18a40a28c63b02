"""Where a loader's iterators count what they deliver, and where exports listen."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from fastfeed.stats.histogram import Waits
from fastfeed.stats.tally import Tally
from fastfeed.stats.values import Delivery, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fastfeed.stats.decoded import DecodedFacts
    from fastfeed.stats.values import DeviceFacts

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Deliveries are counted when so many are there. One by one takes many times longer: between two
# batches other work has taken the processor's caches, so what is done then must be little.
_AT_ONCE = 512
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
        # Replaced together and never changed but for appending, so that who looks from another
        # thread sees each delivery once. Plain tuples of numbers are kept, which the garbage
        # collector looks at once, where it would look at objects again and again.
        self._state: tuple[Tally, list[tuple[Any, ...]]] = (Tally(), [])
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
        tally, fresh = self._state
        fresh.append(delivery)
        if len(fresh) >= _AT_ONCE:
            self._state = (tally.plus(fresh), [])
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
        tally, fresh = self._state
        tally = tally.plus(fresh[:])
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
