"""One verdict, and the words that all of them use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fastfeed.diagnosis.evidence import Evidence, Gpu

# A loss that is no larger than this is not worth a verdict.
_LEAST: Final = 0.05
# However the rounds differ, a loss of this size is told.
_SURE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the job loses time to."""

    name: str
    share_of_time_lost: float
    """Of the time of a real step."""
    why: tuple[str, ...]
    """Sentences with the figures that prove it."""
    advice: tuple[str, ...]
    """What to do; the first is what to do first."""
    expected_gain: float
    """By how much the rate may grow at the most when the first advice works; 0.5 is half more."""


def least_share(evidence: Evidence) -> float:
    """Return the smallest loss that can be told from noise in this measurement."""
    return min(_SURE, max(_LEAST, evidence.times.noise))


def gain(share: float) -> float:
    """Return how much the rate grows when this share of the time is no longer lost."""
    return share / max(1 - share, 0.01)


def percent(part: float) -> str:
    """Return a part of 1 as people read it."""
    return f"{part:.0%}"


def ms(seconds: float) -> str:
    """Return a duration as people read it."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def copy_words(gpu: Gpu) -> str:
    """Return how much is copied to the device in a step, how fast, and from where."""
    return (
        f"{gpu.copied_bytes / 1e6:.1f} MB at {gpu.copied_bytes / gpu.copy_s / 1e9:.1f} GB/s, "
        f"{percent(gpu.pageable)} from memory that is not pinned"
    )


def stall_words(evidence: Evidence) -> str:
    """Return how long a step takes with the loader and without, and how long it is waited for."""
    times, waits = evidence.times, evidence.waits
    return (
        f"A step takes {ms(times.real_s)} with the loader and {ms(times.cached_s)} from memory; "
        f"the wait for a batch is {ms(waits.p50_s)} (p50), {ms(waits.p99_s)} (p99)."
    )
