"""Settings are chosen by measuring, once per machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import Case, System
from fastfeed_bench.station import StationError
from fastfeed_bench.tuning import Tuning

SYSTEM = System("peer", "no:where", {"folder": "a"}, ({"workers": 2}, {"workers": 3}))
CASE = Case("case", (SYSTEM,), judge_same)


class Fast:
    """Runs faster the more workers it has."""

    note = ""

    def __init__(self, settings, opened):
        opened.append(settings)
        self._value = settings["workers"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self):
        return {"value": self._value}

    def evidence(self):
        return {}


def tuning(folder, opened, *, machine="this", higher=True, measure=True):
    return Tuning(
        cache=folder / "tuning.json",
        machine={"cpu": machine},
        start=lambda _, settings: Fast(settings, opened),
        higher_is_better=higher,
        measure=measure,
    )


@pytest.mark.parametrize(("higher", "workers"), [(True, 3), (False, 2)])
def test_the_best_candidate_is_kept(tmp_path, higher, workers):
    """The choice goes by the benchmark's direction and keeps the system's own settings."""
    chosen = tuning(tmp_path, [], higher=higher).choose(CASE, SYSTEM)
    assert chosen == {"folder": "a", "workers": workers}


def test_a_choice_is_remembered_per_machine(tmp_path):
    """The second time nothing is measured; on another machine it is measured anew."""
    opened = []
    tuning(tmp_path, opened).choose(CASE, SYSTEM)
    assert len(opened) == 2
    tuning(tmp_path, opened).choose(CASE, SYSTEM)
    assert len(opened) == 2
    tuning(tmp_path, opened, machine="other").choose(CASE, SYSTEM)
    assert len(opened) == 4


def test_cases_that_are_tuned_as_one_share_the_choice(tmp_path):
    """The first case of a kind is measured; another kind is measured for itself."""
    opened = []
    for name, kind in (("one", "images"), ("two", "images"), ("three", "strings")):
        tuning(tmp_path, opened).choose(replace(CASE, name=name, tuned_as=kind), SYSTEM)
        assert len(opened) == (4 if kind == "strings" else 2)


def test_quick_runs_measure_nothing(tmp_path):
    """Without measuring, the first candidate is taken unless a choice is known."""
    opened = []
    assert tuning(tmp_path, opened, measure=False).choose(CASE, SYSTEM)["workers"] == 2
    assert not opened
    tuning(tmp_path, opened).choose(CASE, SYSTEM)
    assert tuning(tmp_path, opened, measure=False).choose(CASE, SYSTEM)["workers"] == 3


def test_a_damaged_cache_is_measured_anew(tmp_path):
    """What a crash left of the cache does no harm."""
    (tmp_path / "tuning.json").write_text('{"half')
    assert tuning(tmp_path, []).choose(CASE, SYSTEM)["workers"] == 3


def test_a_system_that_cannot_run_says_why(tmp_path):
    """If no candidate runs, the reason goes to the row."""

    def start(*_):
        raise StationError("no library")

    chooser = Tuning(tmp_path / "tuning.json", {}, start, higher_is_better=True)
    with pytest.raises(StationError, match="no library"):
        chooser.choose(CASE, SYSTEM)
