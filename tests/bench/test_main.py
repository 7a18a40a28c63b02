"""The command: what it prints, and its exit codes."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from fastfeed_bench.judges import judge_same
from fastfeed_bench.main import main
from fastfeed_bench.model import OURS, Benchmark, Case, System
from fastfeed_bench.registry import NAMES, load_benchmark


@pytest.fixture
def small(monkeypatch, system_path):
    """Let `transport` be a small benchmark with a peer that is missing and one that runs."""
    names = {OURS: ("Steady", 4.0), "torch": ("Steady", 2.0), "gone": ("missing", 0.0)}
    systems = tuple(
        System(
            name,
            f"bench_systems:{target}",
            {"value": value},
            role="ours" if name == OURS else "peer",
        )
        for name, (target, value) in names.items()
    )

    def judge(evidence):
        return judge_same({name: {"digest": e["digest"]} for name, e in evidence.items()})

    cases = [Case(name, systems, judge) for name in ("one", "Two, 1 worker")]
    benchmark = Benchmark("transport", "img/s", True, "", lambda _: cases, ("torch", "gone"))
    module = import_module("fastfeed_bench.benchmarks.transport")
    monkeypatch.setattr(module, "BENCHMARK", benchmark)


def test_json_is_one_object_last_on_standard_output(small, tmp_path, capsys):
    """Progress goes to standard error; the object has every row, a missing peer included."""
    code = main(["run", "transport", "--json", "--quick", "--work", str(tmp_path)])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert (result["name"], result["ratio"], result["equal"]) == ("transport", 2.0, True)
    rows = {row["system"]: row for row in result["cases"][0]["rows"]}
    assert rows["gone"]["median"] is None
    assert "peerlib" in rows["gone"]["note"]
    assert rows[OURS]["n"] == 3
    assert "/" not in json.dumps(result["machine"]).replace("\\/", "")


def test_people_get_a_table(small, tmp_path, capsys):
    """Without --json the same result is a table; --peers leaves the others out."""
    code = main(["run", "transport", "--quick", "--peers", "torch", "--work", str(tmp_path)])
    printed = capsys.readouterr().out
    assert code == 0
    assert "ratio to the best peer 2.00" in printed
    assert "peerlib" not in printed


def test_a_part_is_run_by_a_word_of_its_name(small, tmp_path, capsys):
    """--cases takes the cases that have the word, large or small; the result is theirs alone."""
    work = ["--quick", "--json", "--work", str(tmp_path)]
    assert main(["run", "transport", "--cases", "TWO", *work]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [case["case"] for case in result["cases"]] == ["Two, 1 worker"]


def test_a_word_that_no_case_has_is_refused_with_the_names(small, tmp_path, capsys):
    """Nothing is run, and the message lists what there is."""
    assert main(["run", "transport", "--cases", "three", "--work", str(tmp_path)]) == 2
    assert "one; Two, 1 worker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "known"),
    [(["run", "no-such"], "jpeg-cpu"), (["run", "transport", "--peers", "nobody"], "torch")],
)
def test_misuse_ends_with_two_and_a_way_out(arguments, known, capsys):
    """Unknown names are refused with the known ones."""
    assert main(arguments) == 2
    assert known in capsys.readouterr().err


def test_the_list_names_every_benchmark(capsys):
    """Each benchmark of the registry can be loaded and says what it measures."""
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)
    assert all(load_benchmark(name).name == name for name in NAMES)
