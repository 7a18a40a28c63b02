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

    benchmark = Benchmark(
        "transport", "img/s", True, "", lambda _: [Case("one", systems, judge)], ("torch", "gone")
    )
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
