"""The benchmarks of the GPU, as far as they go without one: cases, judges, meters, one go."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import time
from dataclasses import replace
from importlib import import_module
from itertools import product, repeat

import pytest
import torch

from fastfeed_bench import gpu
from fastfeed_bench.benchmarks import diagnose_gpu, h2d, jpeg_gpu, train_feed
from fastfeed_bench.gpu_data import RawData
from fastfeed_bench.model import OURS, Context
from fastfeed_bench.networks import NETWORKS
from fastfeed_bench.systems.gpu_meter import DeviceSession, cpu_seconds
from fastfeed_bench.systems.h2d import TransferSession, hidden_share

MODULES = {
    "h2d": h2d,
    "diagnose-gpu": diagnose_gpu,
    "jpeg-gpu": jpeg_gpu,
    "train-feed": train_feed,
}
CPU = torch.device("cpu")


# Cases


@pytest.fixture
def cases(monkeypatch, tmp_path):
    """Return a function from the name of a benchmark to its cases, over data that is not there."""
    photos = {"photos": "p", "shards": ["s"], "count": 1000, "probe": "q", "probe_shards": ["t"]}
    for module in (jpeg_gpu, train_feed):
        data = type("Data", (), {"settings": photos})
        monkeypatch.setattr(module, "photo_data", lambda _, data=data, **__: data)
    monkeypatch.setattr(train_feed, "raw_data", lambda _: RawData(tmp_path, [0] * 1000))

    def make(name, *, quick=False):
        return MODULES[name].BENCHMARK.cases(Context(work=tmp_path, photos=None, quick=quick))

    return make


@pytest.mark.parametrize(("name", "quick"), [*product(MODULES, (False, True))])
def test_cases_are_well_formed(cases, name, quick):
    """Names are unique, we are in each case, every peer is listed, and settings are plain JSON."""
    made = cases(name, quick=quick)
    assert len({case.name for case in made}) == len(made) > 0
    for case in made:
        roles = {system.name: system.role for system in case.systems}
        assert len(roles) == len(case.systems)
        assert [one for one, role in roles.items() if role == "ours"] == [OURS]
        assert set(roles) - {OURS} <= set(MODULES[name].BENCHMARK.peers)
        for system in case.systems:
            json.dumps([system.settings, system.candidates])
            module, _, function = system.target.partition(":")
            assert callable(getattr(import_module(module), function))


def test_every_network_is_fed_from_both_sources(cases):
    """There are four cases, whose names tell model, batch and source; quick runs have them too."""
    names = {
        "resnet18 batch 512, jpeg",
        "resnet18 batch 512, raw",
        "resnet50 batch 256, jpeg",
        "resnet50 batch 256, raw",
    }
    for quick in (False, True):
        assert {case.name for case in cases("train-feed", quick=quick)} == names


def test_systems_of_a_case_meet_by_their_queues_and_cases_do_not(cases):
    """Ours has the queues that it asks CUDA for, peers CUDA's own, DALI both; each its process."""
    wide = ("synthetic", OURS, "fastfeed-gpu", "dali-gpu-wide")
    made = cases("train-feed")
    for case in made:
        queues = {system.name: system.settings["queues"] for system in case.systems}
        assert {queues.pop(name, 32) for name in wide} == {32}
        assert set(queues.values()) == {8}
        meetings = {system.name: system.settings["meeting"] for system in case.systems}
        assert meetings["synthetic"] == meetings[OURS]
        assert len({meetings[name] for name in queues}) == 1
        apart = {meetings[name] for name in ("dali-gpu", *wide[1:]) if name in meetings}
        assert len(apart) == (4 if "jpeg" in case.name else 3)
    everywhere = {system.settings["meeting"] for case in made for system in case.systems}
    assert len(everywhere) == 3 * len(made) + len(made) // 2
    assert {case.systems[0].name for case in made} == {"synthetic"}


def test_peers_are_tuned_over_their_grids(cases):
    """DALI is tried with every pair of threads and engine load, torch with three worker counts."""
    pairs = {(one["threads"], one["hw_load"]) for one in jpeg_gpu.DALI_GRID}
    assert pairs == set(product((4, 8, 12, 15), (0.65, 0.9, 1.0)))
    systems = {system.name: system for system in cases("train-feed")[0].systems}
    dali = systems["dali-gpu"].settings["candidates"]
    assert pairs <= {(one["threads"], one["hw_load"]) for one in dali}
    assert {one["out"] for one in dali} == {"uint8", "float16"}
    torchs = systems["torch"].settings["candidates"]
    assert {one["workers"] for one in torchs} == {8, 14, 16}


def test_batches_of_h2d_have_the_size_of_their_name(cases):
    """From 1 to 256 MiB, each with the plain link as reference in the same case."""
    made = cases("h2d")
    sizes = [case.systems[0].settings["batch"] * (128 << 10) for case in made]
    assert sizes == [mib << 20 for mib in (1, 4, 16, 64, 256)]
    assert all(case.systems[-1].role == "reference" for case in made)


# Validity and labels

FORM = "[512, 3, 224, 224] torch.bfloat16 on cuda"


def found(**more):
    levels = {"mean": 0.1, "spread": 1.0, "synthetic": 18_500.0}
    return {"form": FORM, "gpu": "NVIDIA H200", **levels, **more}


@pytest.mark.parametrize(
    ("network", "rate", "gpu_name", "valid"),
    [
        ("resnet18", 18_000.0, "NVIDIA H200", True),
        ("resnet18", 17_999.0, "NVIDIA H200", False),
        ("resnet50", 4_800.0, "NVIDIA H200", True),
        ("resnet50", 4_799.0, "NVIDIA H200", False),
        ("resnet50", 900.0, "NVIDIA L4", True),
    ],
)
def test_a_low_ceiling_is_not_valid(network, rate, gpu_name, valid):
    """On an H200 the ceiling has a floor; under it the row says that the run counts for nothing."""
    evidence = {OURS: found(synthetic=rate, gpu=gpu_name)}
    finding = train_feed.judge(evidence, floor=NETWORKS[network].floor)[OURS]
    assert finding.equal is valid
    assert ("NOT VALID" in finding.note) is not valid


@pytest.mark.parametrize("change", [{"form": "other"}, {"mean": 0.3}, {"spread": float("nan")}])
def test_other_batches_are_not_equal(change):
    """A loader whose batches have another form or other levels is told, made-up noise is not."""
    evidence = {OURS: found(), "torch": found(**change), "synthetic": found(mean=0.9)}
    findings = train_feed.judge(evidence, floor=1)
    assert [findings[name].equal for name in (OURS, "torch", "synthetic")] == [True, False, True]
    assert "NOT EQUAL" in findings["torch"].note


def test_without_our_own_batches_peers_are_compared_with_each_other():
    """Noise is no measure for pictures; a peer is then the first."""
    evidence = {"synthetic": found(mean=0.9), "torch": found(), "dali-gpu": found(mean=0.15)}
    findings = train_feed.judge(evidence, floor=1)
    assert all(finding.equal for finding in findings.values())


def test_rows_are_labelled_with_model_and_source():
    """Every row of a result tells its case's model and source; the rest stays as it was."""
    case = {"case": "resnet50 batch 256, raw", "ratio": 1.0, "rows": [{"system": OURS, "n": 3}]}
    labelled = train_feed.labelled({"name": "train-feed", "cases": [case]})
    row = {"system": OURS, "n": 3, "model": "resnet50", "source": "raw"}
    assert labelled["cases"] == [{**case, "rows": [row]}]


# Meters


def _spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_cpu_time_is_that_of_the_process_and_of_all_below_it():
    """Work of a child counts while it lives and when it has ended."""
    before = cpu_seconds()
    child = multiprocessing.get_context("spawn").Process(target=_spin, args=(0.2,))
    child.start()
    child.join()
    assert cpu_seconds() - before >= 0.19


def test_hidden_is_the_share_of_the_shorter_work():
    """Nothing hidden is 0, all is 1, and noise beyond either end is cut."""
    assert hidden_share(compute=2.0, copies=1.0, both=3.0) == 0
    assert hidden_share(compute=2.0, copies=1.0, both=2.0) == 1
    assert hidden_share(compute=2.0, copies=1.0, both=2.5) == 0.5
    assert hidden_share(compute=1.0, copies=1.0, both=0.9) == 1
    assert hidden_share(compute=1.0, copies=1.0, both=2.2) == 0


def test_an_epoch_on_the_device_is_timed_after_its_lead():
    """Rate and cores are of the batches after the lead; an epoch of nothing more is an error."""
    pictures = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    session = DeviceSession("", CPU, lambda: repeat(pictures, 10), 3, lambda: {"a": 1})
    figures = session.run()
    assert set(figures) == {"value", "cores"}
    assert session.evidence() == {"a": 1}
    with pytest.raises(RuntimeError, match="no batch"):
        replace(session, lead=10).run()


def test_copies_are_compared_with_the_link_and_with_compute():
    """A run gives the rate, its share of the link's, and how much is hidden; evidence sums up."""
    batch = torch.ones(1 << 16, dtype=torch.uint8)
    session = TransferSession("", CPU, 1 << 16, 8, 2, lambda: repeat(batch, 10))
    figures = session.run()
    assert figures["link_share"] == pytest.approx(figures["value"] / figures["link_gb_s"])
    assert 0 <= figures["hidden_share"] <= 1
    assert session.evidence() == {
        "batches": 10,
        "sum": 10 * int(batch.view(torch.int64).sum()),
        "form": "65536 torch.uint8 on cpu",
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "target",
    [
        "h2d:link_session",
        "h2d:torch_session",
        "h2d:fastfeed_session",
        "gpu_jpeg:fastfeed_session",
        "gpu_jpeg:torchvision_session",
        "gpu_dali:session",
        "train_hub:open_beside_trainer",
    ],
)
def test_without_a_device_every_system_says_so(target):
    """The reason is plain, and nothing was started."""
    module, _, function = target.partition(":")
    opener = getattr(import_module(f"fastfeed_bench.systems.{module}"), function)
    with pytest.raises(RuntimeError, match=r"^no CUDA device$"):
        opener({"model": "resnet18", "system": "torch"})


# One go


def result(*cases):
    return {"name": "h2d", "ratio": 1.0, "equal": True, "cases": list(cases)}


def case_of(name, *, ratio=1.0, equal=True):
    return {"case": name, "ratio": ratio, "equal": equal, "rows": []}


def test_parts_of_a_benchmark_come_together_in_one_file():
    """A case that is run again is replaced, others stay, and the worst case is the result's."""
    known = gpu.merged({}, "h2d", result(case_of("a", ratio=None), case_of("b", ratio=3.0)))
    assert known["benchmarks"]["h2d"]["ratio"] is None
    known = gpu.merged(known, "h2d", result(case_of("a", ratio=2.0)))
    known = gpu.merged(known, "tests", {"exit": 0, "summary": "9 passed"})
    assert known["tests"]["summary"] == "9 passed"
    merged = known["benchmarks"]["h2d"]
    assert (merged["ratio"], merged["equal"]) == (2.0, True)
    assert [case["ratio"] for case in merged["cases"]] == [2.0, 3.0]


def test_one_go_writes_after_each_case(monkeypatch, tmp_path, capsys):
    """Every case's findings are in the file, and one that is not good makes the exit code 1."""

    def run(_, case, options):
        if case == "lost":
            raise subprocess.TimeoutExpired("run", options.limit)
        return result(case_of(case, ratio=1.5))

    cases = ["a"]
    monkeypatch.setattr(gpu, "_tests", lambda _: {"exit": 0, "summary": "9 passed"})
    monkeypatch.setattr(gpu, "_cases", lambda *_: cases)
    monkeypatch.setattr(gpu, "_benchmark", run)
    out = tmp_path / "out" / "gpu.json"
    assert gpu.main(["--only", "tests,h2d", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["benchmarks"]["h2d"]["ratio"] == 1.5
    assert "a: ratio 1.5" in capsys.readouterr().err
    cases[:] = ["lost", "b"]
    assert gpu.main(["--only", "h2d", "--out", str(out)]) == 1
    assert len(json.loads(out.read_text())["benchmarks"]["h2d"]["cases"]) == 2
    assert "h2d: lost took longer" in capsys.readouterr().err
    monkeypatch.setattr(gpu, "_benchmark", lambda *_: result(case_of("b", equal=False)))
    assert gpu.main(["--only", "h2d", "--out", str(out)]) == 1
