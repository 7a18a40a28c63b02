"""Waits are counted in bounded memory, and reported in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastfeed.stats import Stats, Waits, describe


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=200), st.integers(1, 100))
def test_percentiles_are_within_a_bucket(durations, percent):
    """A percentile is at least the true one and at most a bucket (19 %) above it."""
    waits = Waits()
    for duration in durations:
        waits.add(duration)
    ordered = sorted(durations)
    true = ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
    found = waits.percentile(percent)
    assert true <= found * (1 + 1e-9)
    assert found <= max(true * 1.2, 1.2e-6)


def test_report_says_what_happened():
    """The report carries rates, percentiles, steps and a verdict."""
    stats = Stats()
    for _ in range(4):
        stats.delivered(wait_s=0.001, busy_s=0.002, samples=8, nbytes=1000, copied=False)
    stats.spent("read", 1.0)
    stats.spent("decode", 3.0)
    report = describe(stats.snapshot(), workers=2)
    for part in ("32 samples in 4 batches", "p50", "p99", "decode 3.00 s (75%)", "waited"):
        assert part in report


def test_report_before_the_first_batch():
    """Nothing delivered is said as such."""
    assert "no batch" in describe(Stats().snapshot(), workers=0)
