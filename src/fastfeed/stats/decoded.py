"""What a cache of decoded samples was asked for, and what it saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_COUNTED: Final = ("hits", "misses", "hit_s", "miss_s", "keeping_s")


@dataclass(frozen=True, slots=True)
class DecodedFacts:
    """What a cache of decoded samples was asked for; in seconds, all workers together."""

    hits: int = 0
    misses: int = 0
    hit_s: float = 0.0
    """Finding what was kept."""
    miss_s: float = 0.0
    """Decoding what was not."""
    keeping_s: float = 0.0
    """Writing to the cache."""
    kept_nbytes: int = 0
    """In the cache now, whoever put it there."""
    budget_nbytes: int = 0

    @property
    def saved_s(self) -> float:
        """What decoding the hits would have taken at the mean of the misses, less all it cost.

        0 without misses to compare with; less than 0 where keeping has not paid yet.
        """
        if not self.misses:
            return 0.0
        return self.hits * self.miss_s / self.misses - self.hit_s - self.keeping_s

    def plus(self, other: DecodedFacts) -> DecodedFacts:
        """Return the sum, with the fuller one's bytes."""
        return DecodedFacts(
            **{name: getattr(self, name) + getattr(other, name) for name in _COUNTED},
            kept_nbytes=max(self.kept_nbytes, other.kept_nbytes),
            budget_nbytes=max(self.budget_nbytes, other.budget_nbytes),
        )

    def since(self, before: DecodedFacts) -> DecodedFacts:
        """Return what came after an earlier look."""
        counts = {name: getattr(self, name) - getattr(before, name) for name in _COUNTED}
        return replace(self, **counts)
