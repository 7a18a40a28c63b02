"""The benchmark of num_workers=AUTO: what it measures, and which aims it finds met."""

from __future__ import annotations

import pytest

from fastfeed_bench.benchmarks.tuner import finish
from fastfeed_bench.systems.tuner import auto_session, sweep_session

SETTINGS = {
    "job": {"kind": "waiting", "wait_s": 0.002},
    "batch": 2,
    "step_s": 0.001,
    "most": 2,
    "run_s": 0.1,
    "warm_s": 0.05,
    "quiet_s": 0.2,
    "limit_s": 0.5,
}


def result(*, ratio=1.0, **figures):
    auto = {"workers": 4, "settled_s": 20.0, "changes_a_minute_after": 0.0} | figures
    rows = [
        {"system": "fastfeed", "n": 5, "note": "as it ran", **auto},
        {"system": "sweep", "n": 5, "note": "", "fewest": 3},
    ]
    return {"cases": [{"case": "a job", "ratio": ratio, "rows": rows}]}


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({}, []),
        ({"ratio": 0.94}, ["rate"]),
        ({"settled_s": 61.0, "workers": 5}, ["in_time", "workers"]),
        ({"changes_a_minute_after": 3.0}, ["quiet"]),
    ],
)
def test_aims_are_judged(figures, missed):
    """Each case says which aims were met, and the row of AUTO says it in words."""
    case = finish(result(**figures))["cases"][0]
    assert [name for name, met in case["met"].items() if not met] == missed
    words = f"MISSED: {', '.join(missed)}" if missed else "all aims met"
    assert case["rows"][0]["note"] == f"{words}; as it ran"


def test_a_system_that_did_not_run_is_not_judged():
    """Without figures no aim is met or missed."""
    found = result()
    found["cases"][0]["rows"][1]["n"] = 0
    assert finish(found)["cases"][0]["met"] is None


def test_both_systems_do_the_same_work():
    """AUTO and the sweep deliver the same first batches and tell their figures."""
    auto, sweep = auto_session(SETTINGS), sweep_session(SETTINGS)
    assert auto.evidence() == sweep.evidence()
    figures = auto.run()
    assert figures["value"] > 0
    assert figures["workers"] >= 1
    swept = sweep.run()
    assert {"with_1", "with_2"} <= set(swept)
    assert 1 <= swept["fewest"] <= 2
    auto.close()
    sweep.close()
