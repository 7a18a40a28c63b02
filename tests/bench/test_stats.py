"""What statistics cost: turns with and without them, told apart by what was counted."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from fastfeed import iteration, worker
from fastfeed_bench.benchmarks.stats import BENCHMARK, judge
from fastfeed_bench.model import OURS, Context
from fastfeed_bench.systems.stats import cpu_seconds, session


@pytest.fixture(autouse=True)
def clocks():
    """Let the clocks go again."""
    yield
    for module in (iteration, worker):
        vars(module)["time"] = time


def test_every_other_turn_is_counted(leak_gauge):
    """The evidence says that only the turns in between were; a run has figures of both kinds."""
    made = session({"shape": "labels", "batch": 4, "workers": 1, "pairs": 2})
    evidence = made.evidence()
    assert (evidence["turns"], evidence["counted"]) == (5, 2)
    assert judge({OURS: evidence})[OURS].equal
    figures = made.run()
    assert figures["wall_us_a_batch"] > 0
    assert figures["cpu_us_a_batch"] > 0
    assert figures.keys() > {"value", "cpu_percent"}
    del made
    gc.collect()


@pytest.mark.parametrize("counted", [0, 1.5, 3, 5])
def test_any_other_count_is_no_comparison(counted):
    """Turns that were counted and should not have been, or the reverse, are found."""
    found = judge({OURS: {"turns": 5, "counted": counted}})[OURS]
    assert not found.equal
    assert "NOT EQUAL" in found.note


def test_cases_have_images_tokens_and_labels_with_one_and_two_workers():
    """A quick run has the same cases, and counts fewer turns."""
    full, quick = (
        BENCHMARK.cases(Context(work=Path(), photos=None, quick=quick)) for quick in (False, True)
    )
    assert [case.name for case in full] == [case.name for case in quick]
    kinds = {(c.systems[0].settings["shape"], c.systems[0].settings["workers"]) for c in full}
    assert kinds == {(shape, n) for shape in ("uint8", "tokens", "labels") for n in (1, 2)}
    for one, other in zip(full, quick, strict=True):
        assert one.systems[0].settings["pairs"] > other.systems[0].settings["pairs"] > 0


def test_cpu_time_is_that_of_all_threads():
    """The figure of this process is the one that Python has a name for."""
    before = time.process_time()
    found = cpu_seconds(0)
    assert before <= found <= time.process_time()
