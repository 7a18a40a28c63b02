"""What the report says of a wait, against the figures that must prove it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.stats import Delivery, Snapshot, Spread, StageFacts, Stats, WorkerFacts
from fastfeed.stats.hints import verdict
from fastfeed.stats.report import describe

EMPTY = Stats().snapshot()


def worker(number=0, *, busy=0.5, sends=0.0, batches=50):
    """One that works for so much of a hundred seconds."""
    made = Spread(count=batches, total_s=100 * busy)
    return WorkerFacts(number, 0, made, 100 * (1 - busy - sends), 100 * sends)


def seen(share, *, workers=(), batches=100, p50=None, stage=None):
    """A loop of a hundred seconds that waited for so much of them, alike for all batches."""
    return replace(
        EMPTY,
        batches=batches,
        elapsed_s=100.0,
        waited_s=100 * share,
        wait_p50_s=100 * share / batches if p50 is None else p50,
        workers=tuple(workers),
        stage=stage,
    )


def stage(*, busy=0.0, waits=0.0, full=0.0, copying=0.0):
    return StageFacts(100, busy, waits, full, copying)


BUSY, RESTING = [worker(n, busy=0.95) for n in range(2)], [worker(n, busy=0.3) for n in range(2)]

# What was seen, whether the number of workers is tuned, and what may be said of it.
TABLE = {
    "fed": (seen(0.01, workers=RESTING), False, "keeps up"),
    "one batch": (seen(1.0, workers=BUSY, batches=1), False, "too few batches"),
    "busy workers": (seen(0.3, workers=BUSY), False, "busy for 95% of theirs, more of them may"),
    "busy workers, much waiting": (seen(0.9, workers=BUSY), False, "more of them may help"),
    "busy workers, tuned": (seen(0.3, workers=BUSY), True, "ff.AUTO has as many as help"),
    "resting workers": (seen(0.3, workers=RESTING), False, "rest for 70% of theirs, so that more"),
    "few late batches": (seen(0.2, workers=RESTING, p50=1e-4), False, "few batches are waited"),
    "one slow worker": (
        seen(0.5, workers=[worker(0, busy=0.99), *(worker(n, busy=0.2) for n in range(1, 4))]),
        False,
        "the slowest is waited for",
    ),
    "held up in sending": (
        seen(0.2, workers=[worker(n, busy=0.3, sends=0.6) for n in range(2)]),
        False,
        "more will not help",
    ),
    "a slow link": (
        seen(0.4, workers=BUSY, stage=stage(busy=5, copying=80, waits=10)),
        False,
        "copies to the device take 89%",
    ),
    "a slow stage": (
        seen(0.4, workers=RESTING, stage=stage(busy=80, copying=5, waits=10)),
        False,
        "bringing batches to the device takes 89%",
    ),
    "a stage that waits": (
        seen(0.4, workers=BUSY, stage=stage(busy=5, waits=90)),
        False,
        "more of them may help",
    ),
}


@pytest.mark.parametrize(("snapshot", "tuned", "words"), TABLE.values(), ids=TABLE)
def test_hints(snapshot, tuned, words):
    """Each way to lose time has its sentence."""
    assert words in verdict(snapshot, workers=2, tuned=tuned)


def test_without_workers_they_are_the_hint():
    """A loop that makes its batches itself has nobody to be idle."""
    assert "makes each batch itself" in verdict(seen(0.5), workers=0)
    assert "num_workers=ff.AUTO" in verdict(seen(0.5), workers=0)


PARTS = st.floats(0, 1, allow_nan=False)


@given(
    share=PARTS,
    busy=st.lists(PARTS, max_size=4),
    sends=PARTS,
    batches=st.integers(1, 1000),
    p50=st.none() | st.floats(0, 10),
    stages=st.none() | st.builds(stage, busy=PARTS, waits=PARTS, full=PARTS, copying=PARTS),
    tuned=st.booleans(),
)
def test_more_workers_only_where_all_are_busy(*, share, busy, sends, batches, p50, stages, tuned):
    """Whatever was measured, more workers are not advised beside ones that rest."""
    workers = [
        worker(n, busy=part, sends=min(sends, 1 - part), batches=batches)
        for n, part in enumerate(busy)
    ]
    snapshot = seen(share, workers=workers, batches=batches, p50=p50, stage=stages)
    text = verdict(snapshot, workers=len(workers), tuned=tuned)
    assert text.startswith("The loop waited for data")
    assert ("keeps up" in text) == (share < 0.05)
    if "more of them may help" in text:
        assert sum(busy) / len(busy) >= 0.79
        assert not tuned
    if "more will not help" in text:
        assert sum(busy) / len(busy) <= 0.81
    if "rest for" in text:
        assert workers


def test_the_last_line_of_the_report_says_it():
    """Resting workers of real deliveries are no reason for more."""
    stats = Stats()
    for number in range(100):
        times = (float(number), 0.9, 0.0, 0.0)
        stats.delivered(
            Delivery(
                number, number + 0.2, number, 8, 0, copied=False, worker=0, busy_s=0.1, times=times
            )
        )
    snapshot: Snapshot = stats.snapshot()
    last = describe(snapshot, workers=1).splitlines()[-1]
    assert "so that more will not help" in last
    assert "may help" not in last
