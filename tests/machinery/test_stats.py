"""Waits and work are counted in bounded memory, said as values, and reported in words."""

from __future__ import annotations

import copy
import json
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.stats import Delivery, Spread, StageTimes, Stats, Waits, describe

DURATIONS = st.lists(st.floats(0, 1000), min_size=1, max_size=600)


@pytest.fixture(autouse=True, scope="module")
def few_at_once():
    """Count after a hundred deliveries or so, to see what happens from one time to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastfeed.stats.collect._AT_ONCE", 100)
        patch.setattr("fastfeed.stats.histogram._AT_ONCE", 100)
        yield


def delivery(number, *, asked=None, wait=0.001, worker=0, busy=0.002, ready=None, **more):
    """A batch that was asked for at `asked`, and whose worker had it at `ready`."""
    asked = float(number) if asked is None else asked
    ready = asked if ready is None else ready
    given = {
        "samples": 8,
        "nbytes": 1000,
        "copied": False,
        "times": (ready - busy, 0.003, 0.001, 0.0005),
        **more,
    }
    return Delivery(asked, asked + wait, number, worker=worker, busy_s=busy, **given)


def counted(deliveries):
    stats = Stats()
    for one in deliveries:
        stats.delivered(one)
    return stats.snapshot()


@given(DURATIONS, st.integers(1, 100))
def test_percentiles_are_within_a_bucket(durations, percent):
    """A percentile is at least numpy's and at most a bucket (19 %) above it."""
    waits = Waits()
    for duration in durations:
        waits.add(duration)
    true = np.percentile(durations, percent, method="inverted_cdf")
    found = waits.percentile(percent)
    assert true <= found * (1 + 1e-9)
    assert found <= max(true * 1.2, 1.2e-6)


@given(DURATIONS, DURATIONS)
def test_a_spread_since_an_earlier_look_is_that_of_the_rest(first, rest):
    """Two looks at the same durations differ by those that came between, within a bucket."""
    waits, later = Waits(), Waits()
    for duration in first:
        waits.add(duration)
    before = waits.spread
    for duration in rest:
        waits.add(duration)
        later.add(duration)
    found, true = waits.spread.since(before), later.spread
    assert found.count == true.count == len(rest)
    assert found.buckets == true.buckets
    assert found.total_s == pytest.approx(true.total_s, abs=1e-6)
    for name in ("p50_s", "p95_s", "p99_s", "max_s"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.2, abs=1.2e-6)


def test_nothing_came_since():
    """Two looks with nothing between them say so."""
    waits = Waits()
    waits.add(0.5)
    assert waits.spread.since(waits.spread) == Spread()


@given(
    st.lists(
        st.tuples(st.floats(0, 0.01), st.integers(0, 3), st.floats(1e-6, 0.01)),
        min_size=1,
        max_size=700,
    )
)
def test_deliveries_counted_together_are_those_counted_one_by_one(given_):
    """However many deliveries are counted at a time, the sums and spreads are the same."""
    deliveries = [
        delivery(n, wait=wait, worker=worker, busy=busy)
        for n, (wait, worker, busy) in enumerate(given_)
    ]
    snapshot = counted(deliveries)
    assert snapshot.batches == snapshot.wait.count == snapshot.depth.asked == len(given_)
    assert snapshot.samples == 8 * len(given_)
    assert snapshot.busy_s == pytest.approx(sum(busy for _, _, busy in given_))
    assert snapshot.waited_s == pytest.approx(sum(wait for wait, _, _ in given_))
    for blocked, each in ((snapshot.blocked_in, 0.003), (snapshot.blocked_out, 0.001)):
        assert (blocked.count, blocked.max_s) == (len(given_), each)
        assert blocked.total_s == pytest.approx(each * len(given_))
        assert each <= blocked.p50_s * (1 + 1e-9)
    assert {one.worker for one in snapshot.workers} == {worker for _, worker, _ in given_}
    for one in snapshot.workers:
        mine = [busy for _, worker, busy in given_ if worker == one.worker]
        assert one.batches == len(mine)
        assert one.busy.max_s == max(mine)
        assert one.nbytes == 1000 * len(mine)
        assert one.blocked_in_s == pytest.approx(0.003 * len(mine))
        assert one.blocked_out_s == pytest.approx(0.001 * len(mine))


@given(st.lists(st.tuples(st.floats(0.05, 5), st.floats(0, 3)), min_size=1, max_size=600))
def test_depth_counts_what_was_ready_at_each_moment_of_asking(given_):
    """A batch counts at every moment of asking between its being ready and its delivery."""
    deliveries, asks, ready_at = [], [], []
    asked = 0.0
    for number, (gap, early) in enumerate(given_):
        asked += gap
        ready = asked + 0.001 - early
        wait = max(0.0, ready - asked)
        deliveries.append(delivery(number, asked=asked, wait=wait, ready=ready))
        asks.append(asked)
        ready_at.append(deliveries[-1].ready)
        asked += wait
    ready = np.array(ready_at)
    true = [int((ready[i:] <= ask).sum()) for i, ask in enumerate(asks)]
    depth = counted(deliveries).depth
    assert depth.counts == tuple(np.bincount(true).tolist())
    assert depth.mean == pytest.approx(np.mean(true))
    assert depth.p50 == np.percentile(true, 50, method="inverted_cdf")
    assert (depth.most, depth.none) == (max(true), true.count(0))


def test_a_look_since_an_earlier_one_is_of_what_came_between():
    """The difference of two snapshots is the snapshot of the deliveries between them."""
    deliveries = [
        delivery(n, wait=0.001 * (n % 7), worker=n % 3, stage=StageTimes(n, 0.1, 0.2, 0.3, 0.4))
        for n in range(700)
    ]
    stats = Stats()
    for one in deliveries[:300]:
        stats.delivered(one)
    before = stats.snapshot()
    for one in deliveries[300:]:
        stats.delivered(one)
    found, true = stats.snapshot().since(before), counted(deliveries[300:])
    assert (found.batches, found.samples, found.nbytes) == (400, 3200, 400_000)
    assert found.wait.buckets == true.wait.buckets
    assert found.blocked_in.buckets == true.blocked_in.buckets
    assert [one.batches for one in found.workers] == [one.batches for one in true.workers]
    assert found.steps.keys() == true.steps.keys()
    assert found.stage.batches == 400
    assert found.stage.copying_s == pytest.approx(160)


def test_json_has_the_names_that_others_read():
    """The document is one JSON object whose names stay: new ones may come, none may go."""
    deliveries = [delivery(n, stage=StageTimes(n, 0.1, 0.2, 0.3, 0.4)) for n in range(3)]
    document = json.loads(counted(deliveries).to_json())
    assert document["version"] == 1
    spread = {"count", "total_s", "p50_s", "p95_s", "p99_s", "max_s", "buckets"}
    assert document.keys() == {
        *("version", "batches", "samples", "nbytes", "copied", "elapsed_s", "waited_s"),
        *("wait_p50_s", "wait_p95_s", "wait_p99_s", "wait_max_s", "busy_s", "steps_s"),
        *("deferred", "refused", "failed", "device", "wait", "steps", "workers", "depth"),
        *("stage", "decoded", "samples_per_s", "waited_share", "blocked_in_s", "blocked_out_s"),
        *("blocked_in", "blocked_out"),
    }
    assert document["wait"].keys() == spread
    assert document["steps"].keys() == {"fetch", "slots"}
    assert document["steps"]["fetch"].keys() == spread
    assert document["workers"][0].keys() == {
        *("worker", "batches", "nbytes", "busy", "blocked_in_s", "blocked_out_s"),
    }
    assert document["depth"].keys() == {"asked", "mean", "p50", "most", "none", "counts"}
    assert document["stage"].keys() == {
        *("batches", "busy_s", "blocked_in_s", "blocked_out_s", "copying_s"),
    }
    json.loads(Stats().snapshot().to_json())


def test_report_says_what_happened():
    """The report carries rates, percentiles, steps and a verdict."""
    stats = Stats()
    for number in range(4):
        stats.delivered(delivery(number, steps_s={"read": 0.25}))
    stats.spent("read", 1.0)
    stats.spent("decode", 3.0)
    report = describe(stats.snapshot(), workers=2)
    for part in (
        *("32 samples in 4 batches", "p50", "p99", "decode 3.00 s (75%)", "waited"),
        *("ready when asked for: 1.0 batches on average", "workers: busy"),
    ):
        assert part in report
    assert "\x1b" not in report
    assert "worker  batches" not in report


def test_report_in_colours_says_the_same():
    """On a terminal the same words come in colours."""
    snapshot = counted([delivery(number) for number in range(4)])
    coloured = describe(snapshot, workers=1, colour=True)
    assert "\x1b[" in coloured
    for part in ("32 samples in 4 batches", "p99", "The loop waited"):
        assert part in coloured


def test_report_shows_workers_that_differ():
    """A worker that takes longer than the others has all of them listed."""
    alike = [delivery(n, worker=n % 3) for n in range(60)]
    one_slow = [delivery(n, worker=n % 3, busy=0.02 if n % 3 == 1 else 0.002) for n in range(60)]
    assert "waits for jobs" not in describe(counted(alike), workers=3)
    report = describe(counted(one_slow), workers=3)
    assert "waits for jobs" in report
    assert "20.00 ms" in report


def test_report_before_the_first_batch():
    """Nothing delivered is said as such."""
    assert "no batch" in describe(Stats().snapshot(), workers=0)


def test_another_thread_may_look_at_any_time():
    """Who looks while batches are delivered sees counts that fit together and never go down."""
    stats, seen, done = Stats(), [], threading.Event()

    def look():
        while not done.is_set():
            seen.append(stats.snapshot())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(5000):
            stats.spent("read", 0.001)
            stats.delivered(delivery(number))
    finally:
        done.set()
        thread.join()
    counts = [one.batches for one in seen]
    assert counts == sorted(counts)
    assert all(one.wait.count == one.batches and one.samples == 8 * one.batches for one in seen)
    assert stats.snapshot().batches == 5000


def test_a_copy_has_counted_nothing():
    """Copies of a loader count for themselves, and do not tell the observers of the first."""
    stats, told = Stats(), []
    stats.observe(told.append)
    stats.delivered(delivery(0))
    for other in (copy.deepcopy(stats), pickle.loads(pickle.dumps(stats))):
        assert other.snapshot().batches == 0
        other.delivered(delivery(1))
    assert [one.number for one in told] == [0]


def test_observers_are_told_until_they_end():
    """An observer sees each delivery, and none after it was taken off."""
    stats, told = Stats(), []
    end = stats.observe(told.append)
    stats.delivered(delivery(0))
    end()
    end()
    stats.delivered(delivery(1))
    assert [one.number for one in told] == [0]


def test_steps_are_marked_only_while_somebody_asks():
    """A step without marks is the step itself; with them it runs inside of each."""
    stats, inside = Stats(), []

    class Mark:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            inside.append(self.name)

        def __exit__(self, *_):
            inside.append(f"end of {self.name}")

    def step(number, *, more):
        inside.append("step")
        return number + more

    assert stats.named("wait", step) is step
    end = stats.mark(Mark)
    assert stats.named("wait", step)(1, more=2) == 3
    assert inside == ["fastfeed.wait", "step", "end of fastfeed.wait"]
    end()
    assert stats.named("wait", step) is step
