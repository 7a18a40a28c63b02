"""What happens to a sample that cannot be used, and the list of those that could not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from fastfeed.errors import OptionError
from fastfeed.options import BAD_SAMPLES_KEPT
from fastfeed.stats.decoded import DecodedFacts

if TYPE_CHECKING:
    from fastfeed.errors import FastfeedError

OnError = Literal["raise", "skip", "substitute"]


def check_on_error(on_error: str) -> None:
    """Raise OptionError unless `on_error` is one of the three policies."""
    if on_error not in get_args(OnError):
        raise OptionError(
            f"on_error={on_error!r} is no policy",
            way_out=f"Choose one of {', '.join(map(repr, get_args(OnError)))}",
        )


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be used, and why."""

    index: int
    shard: str | None
    key: str | None
    field: str | None
    message: str

    @classmethod
    def of(cls, index: int, error: FastfeedError) -> BadSample:
        """Return the record of an error at a sample index."""
        return cls(index, error.shard, error.key, error.field, str(error))


@dataclass(slots=True)
class FeedReport:
    """What a worker has to tell beside a batch: seconds by step, and bad samples."""

    steps_s: dict[str, float] = field(default_factory=dict)
    bad: list[BadSample] = field(default_factory=list)
    skipped: int = 0
    """Samples that were left out of the batch."""
    deferred: int = 0
    """Samples whose pictures were left to the GPU."""
    refused: int = 0
    """Samples that were to go to the GPU, but are for the CPU."""
    failed: int = 0
    """Samples that the GPU's decoder failed at; the CPU made them then."""

    decoded: DecodedFacts | None = None
    """What the cache of decoded samples was asked for, if there is one."""

    def take_in(self, other: FeedReport) -> None:
        """Add another report to this one."""
        for step, seconds in other.steps_s.items():
            self.steps_s[step] = self.steps_s.get(step, 0.0) + seconds
        self.bad += other.bad
        self.skipped += other.skipped
        self.deferred += other.deferred
        self.refused += other.refused
        self.failed += other.failed
        if other.decoded is not None:
            self.decoded = other.decoded.plus(self.decoded or DecodedFacts())


class BadSamples:
    """Counts bad samples and keeps the first of them by name; repeated epochs count again."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: list[BadSample] = []
        self._seen: set[int] = set()

    def add(self, bad: BadSample) -> bool:
        """Count one and say whether it is the first of all."""
        self.count += 1
        if bad.index not in self._seen and len(self.listed) < BAD_SAMPLES_KEPT:
            self._seen.add(bad.index)
            self.listed.append(bad)
        return self.count == 1
