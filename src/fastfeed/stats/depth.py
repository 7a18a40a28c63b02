"""How many batches were ready when the loop asked for one: who is ahead of whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Depth:
    """How many batches were ready when the loop asked for one."""

    asked: int = 0
    mean: float = 0.0
    p50: int = 0
    most: int = 0
    none: int = 0
    """How often there was none."""
    counts: tuple[int, ...] = ()
    """How often there were 0, 1, 2, ..."""

    @classmethod
    def of(cls, counts: tuple[int, ...]) -> Depth:
        """Return what the counts say."""
        asked = sum(counts)
        if not asked:
            return cls()
        seen, p50 = 0, 0
        for p50, count in enumerate(counts):  # noqa: B007 - it is what is found
            seen += count
            if 2 * seen >= asked:
                break
        return cls(
            asked=asked,
            mean=sum(depth * count for depth, count in enumerate(counts)) / asked,
            p50=p50,
            most=max(depth for depth, count in enumerate(counts) if count),
            none=counts[0],
            counts=counts,
        )

    def since(self, before: Depth) -> Depth:
        """Return what came after an earlier look."""
        old = before.counts + (0,) * (len(self.counts) - len(before.counts))
        return Depth.of(tuple(max(0, a - b) for a, b in zip(self.counts, old, strict=False)))
