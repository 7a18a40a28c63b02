"""How many workers are in use: grown while they wait, never beyond the cores when they compute."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fastfeed.workforce import Workforce

MS = 1e-3


class Pool:
    """Workers that take `work` seconds for a batch and compute for a part of them."""

    def __init__(self, folder, *, most=16, ready_after=0):
        self.most = most
        self.started = self.ready = 2
        self.computed_s = 0.0
        self._folder = folder
        self._ready_after = ready_after
        self._asked = 0

    def employ(self, workers):
        if workers > self.started:
            self.started, self._asked = min(workers, self.most), 0
        self._asked += 1
        if self._asked > self._ready_after:
            self.ready = self.started
        return self.ready

    def tasks(self, _workers):
        (self._folder / "schedstat").write_text(f"{round(self.computed_s * 1e9)} 0 1")
        return [self._folder]


@pytest.fixture
def clock(monkeypatch):
    """Time that only passes when a test says so."""
    held = SimpleNamespace(now=100.0)
    monkeypatch.setattr("fastfeed.workforce.time", SimpleNamespace(perf_counter=lambda: held.now))
    return held


def run(workforce, pool, clock, *, seconds, work, step, computes=0.0):
    """Deliver batches for some seconds; return the numbers that were in use."""
    used = []
    until = clock.now + seconds
    while clock.now < until:
        number = workforce.in_use
        took = max(step, work / number)
        clock.now += took
        pool.computed_s += computes * work
        workforce.delivered(pool, wait_s=took - step, busy_s=work, stock=2 * number)
        used.append(number)
    return used


def grown(pool):
    workforce = Workforce(2, fixed=False, grows=True)
    workforce.begin(pool)
    return workforce


def test_workers_that_wait_are_more_than_cores(tmp_path, clock):
    """A job that waits for storage gets the workers it needs, on two cores too."""
    pool = Pool(tmp_path)
    workforce = grown(pool)
    run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS, computes=0.05)
    assert workforce.in_use in {10, 11}
    assert workforce.first == workforce.in_use


def test_workers_that_compute_are_as_many_as_cores(tmp_path, clock):
    """However long the loop waits, no more compute than there are cores for."""
    pool = Pool(tmp_path)
    workforce = grown(pool)
    used = run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS, computes=1.0)
    assert max(used) == 2
    assert pool.started == 2


def test_workers_that_compute_half_of_their_time(tmp_path, clock):
    """Four workers that each take half a core are as many as two cores bear."""
    pool = Pool(tmp_path)
    workforce = grown(pool)
    used = run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS, computes=0.49)
    assert (workforce.in_use, max(used)) == (4, 4)


def test_many_workers_that_begin_to_compute_are_too_many(tmp_path, clock):
    """When the work changes from waiting to computing, the number falls to about the cores."""
    pool = Pool(tmp_path)
    workforce = grown(pool)
    run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS, computes=0.05)
    run(workforce, pool, clock, seconds=20, work=100 * MS, step=10 * MS, computes=1.0)
    assert workforce.in_use <= 3


def test_new_workers_get_jobs_when_they_are_ready(tmp_path, clock):
    """While workers start, those that are there go on alone; those that cannot start are no aim."""
    pool = Pool(tmp_path, most=3, ready_after=30)
    workforce = grown(pool)
    used = run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS)
    assert used.index(3) > 30
    assert max(used) == workforce.in_use == 3
    assert all(made.now <= 3 for made in workforce.decisions)


def test_pauses_of_the_loop_say_nothing(tmp_path, clock):
    """A loop that stops for a validation every few seconds keeps its workers."""
    pool = Pool(tmp_path)
    workforce = grown(pool)
    run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS)
    before = workforce.decisions
    for _ in range(20):
        clock.now += 30.0
        run(workforce, pool, clock, seconds=0.4, work=100 * MS, step=10 * MS)
    assert workforce.decisions == before


def test_without_figures_of_the_kernel_cores_are_the_bound(tmp_path, clock):
    """Where nothing tells what workers compute, they are as many as there are cores."""
    pool = Pool(tmp_path)
    pool.tasks = lambda _workers: [tmp_path / "gone"]
    workforce = grown(pool)
    used = run(workforce, pool, clock, seconds=60, work=100 * MS, step=10 * MS)
    assert max(used) == 2


@pytest.mark.parametrize("kinds", [{"fixed": True}, {"fixed": True, "grows": True}])
def test_a_fixed_number_is_kept(tmp_path, clock, kinds):
    """A number that is not ours to change stays."""
    pool = Pool(tmp_path)
    workforce = Workforce(2, **kinds)
    workforce.begin(pool)
    used = run(workforce, pool, clock, seconds=5, work=100 * MS, step=10 * MS)
    assert set(used) == {2}
    assert workforce.most == workforce.first == 2
    assert workforce.decisions == ()


def test_nothing_is_read_while_the_loop_does_not_wait(tmp_path, clock):
    """What workers compute is looked up where more of them might be wanted, and again later."""
    pool = Pool(tmp_path)
    looked = []
    tasks = pool.tasks
    pool.tasks = lambda workers: looked.append(clock.now) or tasks(workers)
    workforce = grown(pool)
    run(workforce, pool, clock, seconds=60, work=10 * MS, step=100 * MS, computes=0.05)
    assert clock.now - looked[-1] > 50
    run(workforce, pool, clock, seconds=300, work=100 * MS, step=10 * MS, computes=0.05)
    assert workforce.in_use in {10, 11}
