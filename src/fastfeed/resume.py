"""Where a loader stands in its data, as values: what a checkpoint holds and must agree with.

A state counts what was delivered to the training loop. It never holds the order of an epoch: that
comes again from the sampler, whose random generators are put back to where they were.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fastfeed.errors import OptionError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """How far one worker is in its epoch; where one that takes its place, or resumes, goes on."""

    state: Any = None
    """The data set's own state after some batch, None if it has none."""
    steps: int = 0
    """Batches made since."""

    def after(self, state: Any) -> Place:
        """Return the place one batch later; `state` is the data set's, if it was asked for it."""
        return replace(self, steps=self.steps + 1) if state is None else Place(state)

    def at_beginning(self) -> Place:
        """Return the place of a worker that has just begun an epoch, with what it then said."""
        return self if self.state is None else Place({**self.state, "over": True})

    def in_next_epoch(self) -> Place:
        """Return where the next epoch begins: what the data set keeps, not where it was."""
        kept = None if self.state is None else self.state.get("dataset")
        return Place() if kept is None else Place({"dataset": kept, "over": True})


START = Place()
"""The beginning."""


@dataclass(frozen=True, slots=True)
class Draws:
    """States of the generators that an order is drawn from, in the order of `generators_of`."""

    begin: list[Any]
    """Before the sampler was asked to begin."""
    first: list[Any] | None
    """Before it gave the first batch; None if it gave none yet."""
    now: list[Any]


@dataclass(frozen=True, slots=True)
class LoaderState:
    """What `DataLoader.state_dict` returns, as a value."""

    epoch: int
    """The epoch that is under way, or that comes next if `begun` is false."""
    begun: bool
    delivered: int = 0
    """Batches that the loop got, without a gap."""
    ahead: tuple[int, ...] = ()
    """Numbers of further batches that it got, with `in_order=False`."""
    drawn: int = 0
    """Batches that the sampler gave, delivered or not."""
    exhausted: bool = False
    """Whether the sampler has no more."""
    last: int | None = None
    """A checksum of the indices of batch `delivered` - 1."""
    draws: Draws | None = None
    sampler: Any = None
    """The sampler's own state after it gave batch `sampler_at` - 1."""
    sampler_at: int = 0
    sampler_epoch: int | None = None
    base_seed: int | None = None
    places: tuple[Place, ...] | None = None
    """Of each worker, for iterable data sets and those that have a state."""
    ended: tuple[bool, ...] = ()
    """Which workers had no more to give."""
    next_worker: int = 0
    data: dict[str, Any] | None = None
    """What the data was: see `check`."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain containers, numbers and tensors only."""
        state = {part.name: getattr(self, part.name) for part in fields(self)}
        if self.draws is not None:
            draws = self.draws
            state["draws"] = {"begin": draws.begin, "first": draws.first, "now": draws.now}
        if self.places is not None:
            state["places"] = [(place.state, place.steps) for place in self.places]
        return {"fastfeed": VERSION, **state}

    @classmethod
    def of(cls, state: Any) -> LoaderState:
        """Return the value of a dict; OptionError if it is none of ours."""
        if not isinstance(state, dict) or "fastfeed" not in state:
            raise OptionError(
                "this is no state of a fastfeed.DataLoader",
                way_out="Give load_state_dict what state_dict returned",
            )
        if state["fastfeed"] != VERSION:
            raise OptionError(
                f"the state has version {state['fastfeed']!r}, not {VERSION}",
                way_out="Resume with the version of fastfeed that saved it",
            )
        found = {name: value for name, value in state.items() if name != "fastfeed"}
        try:
            if found.get("draws") is not None:
                found["draws"] = Draws(**found["draws"])
            if found.get("places") is not None:
                found["places"] = tuple(Place(*place) for place in found["places"])
            for name in ("ahead", "ended"):
                found[name] = tuple(found[name])
            _check_counts(found)
            return cls(**found)
        except (TypeError, KeyError) as error:
            raise OptionError(
                f"the state of the loader is damaged: {type(error).__name__}: {error}",
                way_out="Give load_state_dict what state_dict returned",
            ) from error

    def check(self, data: dict[str, Any], *, workers: int) -> None:
        """Raise OptionError if the state is of other data, or cannot go on in so many workers."""
        for name, now in data.items():
            before = (self.data or {}).get(name)
            if before != now:
                raise OptionError(
                    f"the state was saved with {name} {before!r}, and now it is {now!r}",
                    way_out="Resume with the same data, or pass strict=False to go on regardless",
                )
        if self.places is not None and len(self.places) != max(1, workers):
            raise OptionError(
                f"the state is of {len(self.places)} workers with a part of the data each, and now "
                f"there are {workers:d}",
                way_out="Resume with as many workers; other data sets can change their number",
            )


def _check_counts(found: dict[str, Any]) -> None:
    for name in ("epoch", "delivered", "drawn", "sampler_at", "next_worker"):
        if not isinstance(found[name], int) or found[name] < 0:
            raise TypeError(f"{name!r} is {found[name]!r}")
