"""A diagnosis as a value, as text, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from fastfeed.diagnosis.finding import ms, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.diagnosis.cost import Cost
    from fastfeed.diagnosis.evidence import Evidence
    from fastfeed.diagnosis.finding import Verdict


# A loss that is smaller than what is left here is hardly one.
_NEAR: Final = 0.9


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a job loses its time to, what proves it, and what to do first; as text by `str`."""

    evidence: Evidence
    verdicts: tuple[Verdict, ...]
    """The largest loss first."""
    cost: Cost | None = None
    """None without a price."""

    @property
    def verdict(self) -> Verdict:
        """The first one."""
        return self.verdicts[0]

    @property
    def samples_per_s(self) -> float:
        """The rate with the loader."""
        return self.evidence.batch.samples / self.evidence.times.real_s

    def document(self) -> dict[str, Any]:
        """Return all of it for JSON; names stay as they are."""
        return {
            "verdict": self.verdict.name,
            "au": self.evidence.times.au,
            "samples_per_s": self.samples_per_s,
            "verdicts": [asdict(one) for one in self.verdicts],
            "cost": None if self.cost is None else asdict(self.cost),
            "evidence": asdict(self.evidence),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        times, waits = self.evidence.times, self.evidence.waits
        yield f"{self.verdict.name}: {self._first()}"
        yield ""
        yield (
            f"  {self.samples_per_s:,.0f} samples/s, AU {percent(times.au)}; a step takes "
            f"{ms(times.real_s)} with the loader, {ms(times.cached_s)} from memory, "
            f"{ms(times.ceiling_s)} on a batch that is there"
        )
        yield (
            f"  wait for a batch: p50 {ms(waits.p50_s)}, p95 {ms(waits.p95_s)}, "
            f"p99 {ms(waits.p99_s)}, max {ms(waits.max_s)}"
        )
        if self.evidence.restarts_s >= times.real_s:
            yield (
                f"  beginnings of epochs took {ms(self.evidence.restarts_s)} more "
                "(persistent_workers=True avoids most of it)"
            )
        if self.cost is not None:
            cost = self.cost
            yield (
                f"  a million samples cost {cost.per_million_samples:.2f}, "
                f"{cost.per_million_samples_at_ceiling:.2f} without waiting; "
                f"{cost.waiting_per_hour:.2f} of {cost.price_per_hour:.2f} an hour pay for waiting"
            )
        for number, verdict in enumerate(self.verdicts, 1):
            yield ""
            lost = f", {percent(verdict.share_of_time_lost)} of the time"
            yield f"{number}. {verdict.name}{lost if verdict.share_of_time_lost else ''}"
            yield from (f"   {sentence}" for sentence in verdict.why)
            yield from (f"   -> {advice}" for advice in verdict.advice)
        if self.evidence.unseen:
            yield ""
            yield f"Not seen: {'; '.join(self.evidence.unseen)}."

    def _first(self) -> str:
        verdict = self.verdict
        if not verdict.share_of_time_lost:
            if len(self.verdicts) > 1 or self.evidence.times.au >= _NEAR:
                return "the step itself is the limit, hardly any time is lost"
            return "no loss can be told from what the rounds differ by"
        return (
            f"{percent(verdict.share_of_time_lost)} of the time is lost to it; up to "
            f"{percent(verdict.expected_gain)} more samples/s if the first advice works"
        )
