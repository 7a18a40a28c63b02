"""What the measured rate costs, given the price of a GPU hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastfeed.diagnosis.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Cost:
    """Money, in whatever currency the price is given in; for one GPU."""

    price_per_hour: float
    per_million_samples: float
    per_million_samples_at_ceiling: float
    """If the step never waited."""
    waiting_per_hour: float
    """Spent in an hour on time in which the step could have run."""


def cost_of(evidence: Evidence, price: float) -> Cost:
    """Return what samples and waiting cost at a price for each GPU hour."""
    times = evidence.times
    a_second = price / 3600 / evidence.batch.samples * 1e6
    return Cost(
        price_per_hour=price,
        per_million_samples=a_second * times.real_s,
        per_million_samples_at_ceiling=a_second * min(times.ceiling_s, times.real_s),
        waiting_per_hour=price * (1 - times.au),
    )
