"""Turns, statistics and the JSON contract, with fake systems."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed_bench.harness import Bench, run_benchmark, run_case
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.station import StationError

ROW = {"system", "median", "min", "max", "n", "note"}


class FakeStation:
    """Takes its figures from a list; an exception among them is raised."""

    def __init__(self, system, log):
        self.note = f"{system.name} 1.0"
        self._figures = iter(system.settings["figures"])
        self._evidence = system.settings.get("evidence", {"digest": "same"})
        self._name, self._log = system.name, log

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._log.append(f"close {self._name}")

    def run(self):
        self._log.append(self._name)
        figure = next(self._figures)
        if isinstance(figure, Exception):
            raise figure
        return {"value": figure, "held_mb": 2 * figure}

    def evidence(self):
        return self._evidence


class NoTuning:
    """Every system as it is."""

    def choose(self, case, system):
        return system.settings


def fake(name, figures, *, role="peer", **settings):
    # The first run is the warm-up.
    return System(name, "no:where", {"figures": [0.001, *figures], **settings}, role=role)


def run(systems, *, rounds=3, higher=True):
    log = []

    def start(system, _):
        if system.settings.get("missing"):
            raise StationError("ModuleNotFoundError: No module named 'peerlib'")
        return FakeStation(system, log)

    bench = Bench(
        start=start,
        tuner=NoTuning(),
        rounds=rounds,
        higher_is_better=higher,
        say=lambda _: None,
    )
    return run_case(Case("case", tuple(systems), judge_same), bench), log


def test_runs_take_turns_after_one_warm_up():
    """Systems run A B A B, the warm-up apart and not counted, and all are closed."""
    case, log = run([fake(OURS, [4, 5, 6], role="ours"), fake("peer", [1, 2, 3])])
    assert log == [OURS, "peer", *[OURS, "peer"] * 3, "close peer", f"close {OURS}"]
    assert case["rows"][0] == {
        "system": OURS,
        "median": 5,
        "min": 4,
        "max": 6,
        "n": 3,
        "note": "fastfeed 1.0",
        "held_mb": 10,
    }
    assert (case["ratio"], case["equal"]) == (2.5, True)


def test_the_ratio_is_over_the_best_peer_and_above_one_is_better():
    """For seconds the best peer is the lowest, and a smaller figure of ours is a larger ratio."""
    systems = [
        fake(OURS, [2] * 3, role="ours"),
        fake("slow", [9] * 3),
        fake("fast", [3] * 3),
        fake("floor", [1] * 3, role="reference"),
    ]
    case, _ = run(systems, higher=False)
    assert case["ratio"] == 1.5
    assert case["of_floor"] == 0.5


def test_a_case_may_have_a_unit_of_its_own():
    """Seconds among rates: the smaller figure is better there, and the result says so."""
    systems = (fake(OURS, [2] * 3, role="ours"), fake("peer", [3] * 3))
    case = Case("case", systems, judge_same, unit="s", higher_is_better=False)
    found = run_case(case, Bench(lambda s, _: FakeStation(s, []), NoTuning(), 3, True, str))
    assert (found["unit"], found["higher_is_better"], found["ratio"]) == ("s", False, 1.5)


def test_a_case_without_peers_has_no_part_in_the_worst_ratio():
    """What only has a bound beside it is measured, and compared with nobody."""
    ours, peer = fake(OURS, [4] * 3, role="ours"), fake("peer", [2] * 3)
    bound = fake("bound", [5] * 3, role="reference")
    cases = [
        Case(name, systems, judge_same)
        for name, systems in (("one", (ours, peer)), ("two", (ours, bound)))
    ]
    benchmark = Benchmark("name", "MB/s", True, "", lambda _: cases, ("peer", "bound"))
    bench = Bench(lambda s, _: FakeStation(s, []), NoTuning(), 3, True, str)
    result = run_benchmark(benchmark, cases, bench, machine={})
    assert result["ratio"] == 2.0
    assert [case["ratio"] for case in result["cases"]] == [2.0, None]


def test_a_missing_peer_is_a_row_without_figures():
    """A peer that cannot run is null with the reason; the comparison goes on without it."""
    systems = [
        fake(OURS, [4] * 3, role="ours"),
        fake("gone", [], missing=True),
        fake("peer", [2] * 3),
    ]
    case, _ = run(systems)
    row = case["rows"][1]
    assert {name: row[name] for name in ("median", "min", "max", "n")} == {
        "median": None,
        "min": None,
        "max": None,
        "n": 0,
    }
    assert "No module named 'peerlib'" in row["note"]
    assert (case["ratio"], case["equal"]) == (2.0, True)


def test_a_peer_that_dies_on_the_way_has_no_figures():
    """Figures from before a failure are not used, and its turns are left out."""
    systems = [fake(OURS, [4] * 3, role="ours"), fake("peer", [9, StationError("died")])]
    case, log = run(systems)
    assert case["rows"][1]["median"] is None
    assert case["ratio"] is None
    assert log.count("peer") == 3


def test_other_work_is_not_equal():
    """A system that delivered something else makes the case unequal, and its row says so."""
    systems = [
        fake(OURS, [4] * 3, role="ours"),
        fake("peer", [2] * 3, evidence={"digest": "other"}),
    ]
    case, _ = run(systems)
    assert not case["equal"]
    assert "NOT EQUAL: digest other, not same" in case["rows"][1]["note"]


def test_nothing_is_not_equal_to_nothing():
    """Systems that end well and deliver nothing are told, fastfeed itself included."""
    nothing = {"samples": 0, "digest": "0"}
    systems = [
        fake(OURS, [4] * 3, role="ours", evidence=nothing),
        fake("peer", [2] * 3, evidence=nothing),
    ]
    case, _ = run(systems)
    assert not case["equal"]
    assert all("nothing was delivered" in row["note"] for row in case["rows"])


def test_without_our_own_figures_nothing_is_equal():
    """If fastfeed itself cannot run there is neither ratio nor equality."""
    case, _ = run([fake(OURS, [], role="ours", missing=True), fake("peer", [2] * 3)])
    assert (case["ratio"], case["equal"]) == (None, False)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=9))
def test_median_lies_between_least_and_most(figures):
    """The statistics of a row agree with each other."""
    case, _ = run([fake(OURS, figures, role="ours")], rounds=len(figures))
    row = case["rows"][0]
    assert row["min"] <= row["median"] <= row["max"]
    assert row["n"] == len(figures)


@pytest.mark.parametrize(("second", "worst"), [([4, 2], 2.0), ([1, 2], 0.5), ([None, 2], None)])
def test_the_result_has_the_form_of_the_contract(second, worst):
    """The outer ratio is the worst case's, and the object is plain JSON with the named keys."""
    log = []
    ours, peer = second
    cases = []
    for name, (a, b) in {"one": (6, 2), "two": (ours or StationError("died"), peer)}.items():
        systems = (fake(OURS, [a] * 3, role="ours"), fake("peer", [b] * 3))
        cases.append(Case(name, systems, judge_same))
    bench = Bench(
        start=lambda system, _: FakeStation(system, log),
        tuner=NoTuning(),
        rounds=3,
        higher_is_better=True,
        say=lambda _: None,
    )
    benchmark = Benchmark("fake", "img/s", True, "", lambda _: cases, ("peer",))
    result = run_benchmark(benchmark, cases, bench, machine={"cores": 2})
    result = json.loads(json.dumps(result))
    assert set(result) == {
        "name",
        "unit",
        "higher_is_better",
        "machine",
        "ratio",
        "equal",
        "cases",
    }
    assert result["ratio"] == worst
    assert result["equal"] == (worst is not None)
    for case in result["cases"]:
        assert {"case", "ratio", "equal", "rows"} <= set(case)
        assert all(set(row) >= ROW for row in case["rows"])
