"""The workers' tuner against jobs of known rates, noisy ones too, and a sweep of each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.errors import OptionError
from fastfeed.tuner.measured import Window
from fastfeed.tuner.workers import WorkerTuner

MS = 1e-3
SECONDS = st.one_of(st.just(0.0), st.floats(1e-6, 100))


@dataclass(frozen=True)
class Job:
    """What workers do for a loop; seconds per batch."""

    work: float
    step: float
    most: int = 16
    crowding: float = 0.0  # how much longer each takes for the square of the others
    cores: int = 16
    storage: float = 1e9  # batches a second that what they share can give
    latency: bool = False  # workers wait for something far away, not for cores

    def at(self, workers, *, slower=1.0, longer=1.0):
        """Return batches a second, the part spent waiting, and how many workers are busy.

        All that workers do takes `slower` times as long now, and a step `longer`.
        """
        work = slower * self.work * (1 + self.crowding * (workers - 1) ** 2)
        if not self.latency:
            work *= max(1.0, workers / self.cores)
        made = min(workers / work, self.storage / slower)
        step = self.step * longer
        rate = min(made, 1 / step)
        waits = made < 1 / step
        return rate, max(0.0, 1 - rate * step), workers if waits else rate * work

    def rates(self):
        return {workers: self.at(workers)[0] for workers in range(1, self.most + 1)}

    def fewest(self):
        rates = self.rates()
        return min(number for number, rate in rates.items() if rate >= 0.97 * max(rates.values()))


def run_job(job, tuner, windows, *, noise=0.0, seed=0, batches=64):
    """Drive a tuner through windows of batches; return the seconds at which it changed."""
    draws = random.Random(seed)
    now, changed = 0.0, []
    for _ in range(windows):
        rate, waited, busy = job.at(
            tuner.workers,
            slower=draws.lognormvariate(0, noise),
            longer=draws.lognormvariate(0, noise / 3),
        )
        elapsed = batches / rate
        now += elapsed
        window = Window(elapsed, waited * elapsed, busy * elapsed, batches, tuner.workers)
        if tuner.observe(window):
            changed.append(now)
    return changed


JOBS = {
    "small-jpeg": Job(work=48 * MS, step=10 * MS),
    "large-jpeg": Job(work=400 * MS, step=30 * MS),
    "large-jpeg-too-few-cores": Job(work=400 * MS, step=10 * MS, most=8, cores=4),
    "raw": Job(work=3 * MS, step=20 * MS),
    "slow-storage": Job(work=20 * MS, step=5 * MS, storage=60),
    "latency": Job(work=590 * MS, step=50 * MS, latency=True),
    "latency-of-more-than-there-are": Job(work=5.0, step=50 * MS, latency=True),
    "contention": Job(work=30 * MS, step=5 * MS, crowding=1 / 8),
    "contention-hidden": Job(work=30 * MS, step=16 * MS, crowding=1 / 8),
    "host-runs-ahead": Job(work=48 * MS, step=0.1 * MS, storage=100),
}


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("start", [1, 4, 16])
@pytest.mark.parametrize("name", JOBS)
def test_workers_as_few_as_come_near_the_best(name, start, noise):
    """Within 5 % of the best rate, with at most one worker more than 3 % needs, then quiet."""
    job = JOBS[name]
    tuner = WorkerTuner(start, most=job.most)
    run_job(job, tuner, 60, noise=noise)
    found = tuner.workers
    assert job.at(found)[0] >= 0.95 * max(job.rates().values())
    assert found <= job.fewest() + 1
    before = len(tuner.decisions)
    run_job(job, tuner, 200, noise=noise, seed=1)
    assert len(tuner.decisions) == before
    assert all(made.now <= job.most for made in tuner.decisions)


@pytest.mark.parametrize("name", JOBS)
def test_workers_under_noise(name):
    """Where windows differ by 3 % for no reason, nearly all searches still end as well."""
    job = JOBS[name]
    best = max(job.rates().values())
    missed = 0
    for seed in range(20):
        tuner = WorkerTuner((1, 4, 16)[seed % 3], most=job.most)
        run_job(job, tuner, 80, noise=0.03, seed=seed)
        # Noise makes even the best number wait a little.
        missed += job.at(tuner.workers)[0] < 0.93 * best or tuner.workers > job.fewest() + 1
    assert missed <= 3


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(
    ("name", "other"),
    [("small-jpeg", "large-jpeg"), ("latency", "raw"), ("raw", "contention"), ("raw", "latency")],
)
def test_workers_follow_other_work(name, other, noise):
    """When the work changes, the number is found again, with at most two changes in a minute."""
    tuner = WorkerTuner(4, most=16)
    run_job(JOBS[name], tuner, 60, noise=noise)
    times = run_job(JOBS[other], tuner, 1000, noise=noise)
    job = JOBS[other]
    assert times
    assert job.at(tuner.workers)[0] >= 0.95 * max(job.rates().values())
    assert tuner.workers <= job.fewest() + 1
    assert all(third - first >= 60 for first, third in pairwise(times[::2]))


def test_workers_obey_a_new_limit():
    """When fewer workers may be used than there are, the number falls at once."""
    tuner = WorkerTuner(8, most=16)
    tuner.most = 3
    decision = tuner.observe(Window(1.0, 0.5, 8.0, 10, 8))
    assert (decision.was, decision.now, tuner.workers) == (8, 3, 3)
    assert "no more than 3" in decision.why


def test_workers_forget_what_is_beyond_a_new_limit():
    """A number that may not be used any more is no answer, however good it was."""
    tuner = WorkerTuner(8, most=16)
    run_job(JOBS["latency"], tuner, 6)
    tuner.most = 6
    run_job(JOBS["latency"], tuner, 60)
    assert tuner.workers == 6
    assert all(made.now <= 6 for made in tuner.decisions[-3:])


def test_workers_ignore_windows_of_another_number():
    """While workers start or end, windows say nothing about the number that was asked for."""
    tuner = WorkerTuner(4, most=16)
    for _ in range(50):
        assert tuner.observe(Window(1.0, 0.5, 3.0, 10, 3)) is None
        assert tuner.observe(Window(1.0, 0.0, 0.0, 0, 4)) is None


def test_worker_decisions_say_why():
    """A decision names what was tried with its rate and waiting."""
    tuner = WorkerTuner(1, most=16)
    run_job(JOBS["latency"], tuner, 60)
    assert [made.now for made in tuner.decisions][:3] == [2, 4, 8]
    assert "the loop waits" in tuner.decisions[0].why
    assert "12: 20.00 batches/s, waiting 0%" in tuner.decisions[-1].why


@pytest.mark.parametrize(("least", "most"), [(0, 4), (5, 4)])
def test_workers_refuse(least, most):
    """A range that holds no number of workers is an error."""
    with pytest.raises(OptionError):
        WorkerTuner(1, most=most, least=least)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(SECONDS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))))
def test_workers_survive_any_windows(windows):
    """Whatever is observed, the number stays in its range, and once settled changes are rare."""
    tuner = WorkerTuner(4, most=8, least=2)
    now, changes = 0.0, []
    for elapsed, waited, busy, batches in windows * 8:
        now += elapsed
        settled = not tuner._first
        window = Window(
            elapsed, waited * elapsed, busy * tuner.workers * elapsed, batches, tuner.workers
        )
        if tuner.observe(window) and settled:
            changes.append(now)
        assert 2 <= tuner.workers <= 8
    assert all(later - earlier >= 30 for earlier, later in pairwise(changes))
