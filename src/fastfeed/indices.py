"""The indices of an epoch's batches as the sampler gives them, and how to come back to a place.

A sampler draws its order from generators that others use too. So their states are kept from just
before the sampler drew, and to resume they are put back, the sampler is asked again for what it had
given, and the generators get the states they had when the checkpoint was made. A sampler with a
state of its own (`state_dict`, `load_state_dict`) is asked for that instead.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import SequentialSampler

from fastfeed.collating.fetch import has_state
from fastfeed.errors import OptionError
from fastfeed.resume import Draws

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.resume import LoaderState

# Deeper than batch sampler, sampler and what a trainer wraps around both, nobody nests them.
_LAYERS = 6


def samplers_of(index_sampler: Any) -> Iterator[Any]:
    """Yield a loader's index sampler and the samplers it wraps, outermost first."""
    for _ in range(_LAYERS):
        if index_sampler is None:
            return
        yield index_sampler
        inner = getattr(index_sampler, "batch_sampler", None)
        index_sampler = getattr(index_sampler, "sampler", None) if inner is None else inner


def generators_of(index_sampler: Any, generator: torch.Generator | None) -> list[torch.Generator]:
    """Return the generators that an order may be drawn from; none if it is not drawn at all."""
    samplers = list(samplers_of(index_sampler))
    if type(samplers[-1]) is SequentialSampler or hasattr(samplers[-1], "draws_nothing"):
        return []
    theirs = [getattr(sampler, "generator", None) for sampler in samplers]
    found = [generator or torch.default_generator, *theirs]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def states_of(generators: list[torch.Generator]) -> list[torch.Tensor]:
    """Return the states of generators."""
    return [generator.get_state() for generator in generators]


def put_back(generators: list[torch.Generator], states: list[torch.Tensor]) -> None:
    """Set generators to states; OptionError if these are of others."""
    if len(generators) != len(states):
        raise OptionError(
            f"the state holds {len(states)} random generators, and the sampler has "
            f"{len(generators)}",
            way_out="Resume with the sampler that the state was saved with",
        )
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


class IndexStream:
    """The indices of one epoch; counts what was drawn and what was delivered."""

    def __init__(
        self,
        index_sampler: Any,
        generators: list[torch.Generator],
        begin: list[torch.Tensor],
        *,
        snapshot_every: int,
    ) -> None:
        self._generators, self._begin = generators, begin
        self._first: list[torch.Tensor] | None = None
        self._holder = next((one for one in samplers_of(index_sampler) if has_state(one)), None)
        self._every = 1 if hasattr(self._holder, "draws_nothing") else snapshot_every
        self._snapshots: deque[tuple[int, Any]] = deque()
        self._buffer: deque[tuple[int, Any]] = deque()
        self._exhausted = False
        self._ordered = True
        self._last: Any = None
        """Indices of the last batch that was delivered."""
        self._kept: dict[int, Any] = {}
        self.drawn = 0
        """Batches that the sampler gave."""
        self.delivered = 0
        """Batches that the loop got, without a gap."""
        self.ahead: set[int] = set()
        """Numbers of further ones that it got."""
        self._samplings: Iterator[Any] = iter(())

    def start(self, samplings: Iterator[Any], *, ordered: bool) -> None:
        """Take the sampler's iterator, as torch has made it; without an order, only count."""
        self._samplings, self._ordered = samplings, ordered
        if self._holder is not None:
            self._snapshots.append((0, _state_of(self._holder)))

    def release(self) -> None:
        """Let go of the sampler's iterator."""
        self._samplings = iter(())

    def next(self) -> tuple[int, Any]:
        """Return the next batch that was not delivered yet: its number and its indices.

        Raises StopIteration if there is none.
        """
        while True:
            number, index = self._buffer.popleft() if self._buffer else self._draw()
            if self._ordered:
                self._kept[number] = index
            if number not in self.ahead:
                return number, index

    def _draw(self) -> tuple[int, Any]:
        if self._first is None:
            self._first = states_of(self._generators)
        try:
            index = next(self._samplings)
        except StopIteration:
            self._exhausted = True
            raise
        number = self.drawn
        self.drawn += 1
        if self._holder is not None and self.drawn % self._every == 0:
            self._snapshots.append((self.drawn, _state_of(self._holder)))
        return number, index

    def deliver(self, number: int) -> None:
        """Count a batch that the loop is given, or that is left out for ever."""
        if not self._ordered:  # numbers that ended workers were given never come
            self.delivered += 1
            return
        self.ahead.add(number)
        while self.delivered in self.ahead:
            self.ahead.remove(self.delivered)
            self._last = self._kept.pop(self.delivered, None)
            self.delivered += 1
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= self.delivered:
            self._snapshots.popleft()

    def capture(self) -> dict[str, Any]:
        """Return this stream's part of a `LoaderState`."""
        at, sampler = self._snapshots[0] if self._snapshots else (0, None)
        draws = None
        if self._generators:
            draws = Draws(self._begin, self._first, states_of(self._generators))
        return {
            "delivered": self.delivered,
            "ahead": tuple(sorted(self.ahead)),
            "drawn": self.drawn,
            "exhausted": self._exhausted,
            "last": checksum(self._last),
            "draws": draws,
            "sampler": sampler,
            "sampler_at": at,
        }

    def resume(self, state: LoaderState) -> None:
        """Go to the place of a state. The sampler has its own state, if it keeps one, already.

        Raises OptionError if the sampler gives other indices than it gave then.
        """
        draws = state.draws
        if draws is not None and draws.first is not None:
            put_back(self._generators, draws.first)
        self.drawn = state.sampler_at
        if self._holder is not None:
            self._snapshots = deque([(state.sampler_at, state.sampler)])
        self._ask_again(state)
        known = state.last is not None and state.delivered > state.sampler_at
        if known and checksum(self._last) != state.last:
            raise OptionError(
                "the sampler does not give the same indices again, so samples would be repeated "
                "and left out; or the data is not what it was",
                way_out="Give the sampler `state_dict` and `load_state_dict`, or draw its order "
                "from a torch.Generator that it keeps as `generator`",
            )
        if draws is not None:
            put_back(self._generators, draws.now)
        self.delivered, self.ahead = state.delivered, set(state.ahead)

    def _ask_again(self, state: LoaderState) -> None:
        """Ask the sampler for what it had given; what was not delivered is kept for `next`."""
        given = state.drawn if self._generators else state.delivered
        try:
            while self.drawn < given:
                number, index = self._draw()
                if number < state.delivered:
                    self._last = index
                else:
                    self._buffer.append((number, index))
            if state.exhausted and self._generators:
                self._buffer.append(self._draw())  # draws its last numbers, and ends
        except StopIteration:
            pass

    def skip(self, delivered: int) -> None:
        """Count batches as delivered that no sampler orders, as for iterable data sets."""
        self.drawn = self.delivered = delivered


def _state_of(sampler: Any) -> Any:
    state = sampler.state_dict()
    # A user's may be what the sampler works on, and change; ours is made for the asking.
    return state if hasattr(sampler, "draws_nothing") else copy.deepcopy(state)


def checksum(index: Any) -> int | None:
    """Return a checksum of a batch's indices, the same in every process; None if there is none."""
    try:
        return zlib.crc32(json.dumps(index).encode())
    except (TypeError, ValueError):  # what a sampler yields is its own affair
        return None


def count_samples(index: Any) -> int:
    """Return how many samples a batch sampler asks for; what it yields is its own affair."""
    try:
        return len(index)
    except TypeError:
        return 1
