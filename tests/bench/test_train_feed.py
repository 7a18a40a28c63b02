"""train-feed without a GPU: turns beside one trainer, the process they share, ways and data."""

from __future__ import annotations

import os
import secrets
import time
from itertools import product, repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastfeed as ff
from fastfeed_bench.benchmarks import h2d, jpeg_gpu, train_feed
from fastfeed_bench.gpu_data import raw_data
from fastfeed_bench.harness import Bench, run_case
from fastfeed_bench.model import OURS, Case, Finding, System
from fastfeed_bench.networks import Network
from fastfeed_bench.photos import PhotoSet, make_photos
from fastfeed_bench.station import Station
from fastfeed_bench.systems.train_hub import HubSession
from fastfeed_bench.systems.train_session import TrainSession, choose, open_session
from fastfeed_bench.systems.train_torch import Counted, Torch
from fastfeed_bench.train import (
    LOSS_EVERY,
    QUICK,
    Trainer,
    drive,
    is_stable,
    length,
    make_normalise,
    near,
    whole,
)

MODULES = {"h2d": h2d, "jpeg-gpu": jpeg_gpu, "train-feed": train_feed}
CPU = torch.device("cpu")


# Turns


class FakeWay:
    """Batches without end, and what happened to it."""

    note = "fake"

    def __init__(self, batch, log, *, group=1, name="fake"):
        self.group = group
        self._batch, self._log, self._name = batch, log, name

    def epoch(self, steps):
        self._log.append((self._name, steps))
        return repeat(self._batch, steps)

    def pinned_bytes(self):
        return 4096

    def close(self):
        self._log.append((self._name, "closed"))


def trainer(*, step=None, shape=(4, 3, 8, 8)):
    batch = (torch.zeros(shape).to(memory_format=torch.channels_last), torch.zeros(4).long())
    network = Network("tiny", batch=4, floor=1000)
    losses = step or (lambda pictures, _: pictures.sum())
    return Trainer(network, CPU, losses, make_normalise(CPU), batch)


def test_a_drive_times_the_steps_after_its_lead():
    """All batches are trained on, waits are those of the measured steps, the rate is theirs."""
    log = []
    made = trainer(step=lambda pictures, _: log.append(1) or pictures.sum())
    turn = drive(made, repeat(made.batch, 100), lead=5, steps=20)
    assert (len(log), len(turn.waits)) == (25, 20)
    assert turn.rate > 0
    assert turn.wait_ms(50) <= turn.wait_ms(99)


def test_the_loss_is_read_only_now_and_then():
    """The device is waited for before and after the steps, and every fifty between."""
    reads = []

    class Loss:
        def item(self):
            reads.append(1)

    made = trainer(step=lambda *_: Loss())
    drive(made, repeat(made.batch), lead=3, steps=2 * LOSS_EVERY + 10)
    assert len(reads) == 1 + 2 + 1


@pytest.mark.parametrize("count", [0, 5])
def test_an_epoch_that_is_too_short_is_an_error(count):
    """Without a batch to measure there is no rate."""
    made = trainer()
    with pytest.raises(RuntimeError, match="no batch"):
        drive(made, repeat(made.batch, count), lead=5, steps=3)


def test_a_turn_gives_share_waits_and_memory():
    """The warm-up comes with the evidence and is the first run; AU is the rate over the ceiling."""
    log = []
    made = trainer()
    session = TrainSession(made, FakeWay(made.batch, log, group=4), QUICK)
    evidence = session.evidence()
    assert evidence["form"].startswith("[4, 3, 8, 8] torch.float32 on cpu, channels last; labels")
    assert (evidence["mean"], evidence["gpu"]) == (0.0, "none")
    session.run()
    opened = len(log)
    figures = session.run()
    assert figures["au"] == pytest.approx(figures["value"] / figures["synthetic"])
    assert figures["steps"] % 4 == 0
    assert figures["pinned_bytes"] == 4096
    assert set(figures) > {"wait_p50_ms", "wait_p99_ms", "cores"}
    assert log[opened:] == [("fake", 16 + figures["steps"])]
    session.close()
    assert log[-1] == ("fake", "closed")


def test_systems_take_turns_beside_one_trainer(tmp_path):
    """In one process with one step, sessions run A B A B, each with an epoch of its own."""
    log, made = [], trainer()
    sessions = {
        name: TrainSession(made, FakeWay(made.batch, log, name=name), QUICK) for name in "ab"
    }
    for session in sessions.values():
        session.evidence()
        session.run()
    log.clear()
    for _, session in product(range(3), sessions.values()):
        session.run()
    assert [name for name, _ in log] == ["a", "b"] * 3


@given(st.integers(1, 500), st.integers(1, 64))
def test_steps_are_whole_groups(steps, group):
    """No fewer than were asked for and less than a group more, or the other way round."""
    assert whole(steps, group) % group == near(steps, group) % group == 0
    assert near(steps, group) <= max(steps, group) < near(steps, group) + max(steps, group)
    assert 0 <= whole(steps, group) - steps < group


def test_slow_systems_are_measured_for_a_limited_time():
    """A fast system has all its steps; a slow one those of the limit, but some in any case."""
    assert length(QUICK, 1e6, batch=512, group=1) == QUICK.steps
    assert length(QUICK, 6000.0, batch=512, group=1) == int(6000 / 512 * QUICK.limit_s)
    assert length(QUICK, 10.0, batch=512, group=14) == 28
    assert length(QUICK, 10.0, batch=512, group=1) == 16


def test_a_rate_is_stable_when_three_windows_agree():
    """Rising rates, or too few of them, are not."""
    assert is_stable([1.0, 9.8, 10.0, 10.2])
    assert not is_stable([10.0, 10.0])
    assert not is_stable([8.0, 9.0, 10.0])


def settings_for(tmp_path, *candidates):
    return {
        "system": "torch",
        "source": "jpeg",
        "quick": True,
        "cache": str(tmp_path / "tuning.json"),
        "candidates": list(candidates),
    }


def test_candidates_are_tried_beside_the_trainer_and_remembered(tmp_path):
    """Each is opened and closed, one that cannot run is left out, and the choice is kept."""
    log, made = [], trainer()
    slow = trainer(step=lambda pictures, _: time.perf_counter() and pictures.sum())

    def open_way(told, _):
        if told["workers"] == 99:
            raise ValueError("too many")
        return FakeWay(slow.batch, log, name=told["workers"])

    told = settings_for(tmp_path, {"workers": 99}, {"workers": 8})
    assert choose(made, told, open_way, QUICK)["workers"] == 8
    assert log[-1] == (8, "closed")
    log.clear()
    assert choose(made, told, open_way, QUICK)["workers"] == 8
    assert not log


def test_a_system_without_choices_is_opened_at_once(tmp_path):
    """One candidate is not measured."""
    log, made = [], trainer()
    told = settings_for(tmp_path, {})
    open_session(made, told, lambda *_: FakeWay(made.batch, log))
    assert not log


# The hub


@pytest.fixture
def settings(system_path):
    """Return what the systems of one case are told."""
    return {
        "meeting": f"fastfeed-test-{secrets.token_hex(8)}",
        "key": secrets.token_hex(8),
        "queues": 8,
        "sessions": "hub_sessions:Turn",
    }


def test_two_drivers_share_a_process(settings, leak_gauge):
    """The second finds the hub of the first; both run there in turns, and it ends with them."""
    first = HubSession({**settings, "system": "a"})
    second = HubSession({**settings, "system": "b"})
    assert [first.run()["value"], second.run()["value"], first.run()["value"]] == [1, 2, 3]
    evidence = second.evidence()
    assert evidence["ran"] == ["a", "b", "a"]
    assert evidence["pid"] == first.evidence()["pid"] != os.getpid()
    assert first.note == f"a in {evidence['pid']}"
    second.close()
    first.close()
    with pytest.raises(ProcessLookupError):
        os.kill(evidence["pid"], 0)


@pytest.mark.parametrize(
    ("name", "says"), [("missing", "^no CUDA device$"), ("broken", "^ValueError: no such way$")]
)
def test_a_system_that_cannot_open_says_why(settings, name, says):
    """The reason crosses; the other systems of the hub go on."""
    first = HubSession({**settings, "system": "a"})
    with pytest.raises(RuntimeError, match=says):
        HubSession({**settings, "system": name})
    assert first.run()["value"] == 1
    first.close()


def test_the_end_of_the_hub_is_noticed(settings):
    """A process that dies in a run is an error of that run."""
    first = HubSession({**settings, "system": "dying"})
    with pytest.raises(RuntimeError, match="has ended"):
        first.run()
    first.close()


def test_the_harness_runs_systems_that_share_a_process(settings, leak_gauge):
    """Through stations and drivers rows come out as ever, and a system without a way is a note."""
    target = "fastfeed_bench.systems.train_hub:session"
    names = ("synthetic", OURS, "missing")
    roles = {OURS: "ours", "synthetic": "reference"}
    systems = tuple(
        System(name, target, {**settings, "system": name}, role=roles.get(name, "peer"))
        for name in names
    )

    class AsTheyAre:
        def choose(self, case, system):
            return system.settings

    pids = set()

    def judge(evidence):
        pids.update(one["pid"] for one in evidence.values())
        return {name: Finding(equal=True) for name in evidence}

    case = Case("resnet18 batch 512, jpeg", systems, judge)
    bench = Bench(Station, AsTheyAre(), 3, higher_is_better=True, say=lambda _: None)
    rows = {row["system"]: row for row in run_case(case, bench)["rows"]}
    assert len(pids) == 1
    # The warm-ups were 1 and 2; then both ran in turns.
    assert (rows["synthetic"]["median"], rows[OURS]["median"]) == (5, 6)
    assert rows[OURS]["synthetic"] == 10
    assert "no CUDA device" in rows["missing"]["note"]


# Ways and data


@pytest.fixture(scope="module")
def few_photos(photos, tmp_path_factory):
    """Six photos in class folders."""
    folder = tmp_path_factory.mktemp("photos")
    return str(make_photos(photos[:3], folder, PhotoSet(count=6, width=90, height=70)))


def test_raw_pictures_are_the_same_in_all_three_forms(few_photos):
    """Shards, bare files and the array hold the same pictures in the same order, with labels."""
    data = raw_data(few_photos).settings
    array = np.load(data["array"])
    files = sorted(os.listdir(data["files"]))
    assert array.shape == (6, 256, 256, 3)
    first = np.fromfile(Path(data["files"]) / files[4], np.uint8)
    assert np.array_equal(first, array[4].reshape(-1))
    fields = {"array": ff.Array("npy"), "label": ff.Int("cls")}
    dataset = ff.ShardDataset(data["shards"] * 2, fields=fields)
    assert len(dataset) == 2 * data["count"] == 12
    assert np.array_equal(dataset[4]["array"], array[4])
    assert [int(dataset[index]["label"]) for index in range(6)] == data["labels"]


@pytest.mark.parametrize("source", ["jpeg", "raw"])
def test_torchs_way_delivers_what_the_step_takes(few_photos, source):
    """Epochs have the batches asked for: bf16, channels last, flipped and normalised."""
    told = {"photos": few_photos, **raw_data(few_photos).settings}
    way = Torch(trainer(), {**told, "source": source, "workers": 1}, QUICK)
    batches = list(way.epoch(3))
    assert len(batches) == 3
    for pictures, labels in batches:
        assert (pictures.shape, pictures.dtype) == ((4, 3, 224, 224), torch.bfloat16)
        assert pictures.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64
        assert -2.2 < float(pictures.min()) < float(pictures.max()) < 2.7
    way.close()


def test_flips_and_levels_of_the_trainers_kernel():
    """Marked pictures are mirrored, and black and white become what ImageNet's figures say."""
    pictures = torch.tensor([0, 255], dtype=torch.uint8).expand(2, 3, 1, 2).clone()
    made = make_normalise(CPU)(pictures, torch.tensor([False, True])).float()
    assert made[0, 0, 0].tolist() == pytest.approx([-0.485 / 0.229, 0.515 / 0.229], rel=0.01)
    assert torch.equal(made[1], made[0].flip(2))


@given(st.integers(1, 20), st.integers(0, 100))
def test_an_order_of_any_length(samples, count):
    """Indices are as many as asked for, and each round has every sample once."""
    sampler = Counted(samples)
    sampler.count = count
    drawn = list(sampler)
    assert len(drawn) == len(sampler) == count
    for start in range(0, count - samples + 1, samples):
        assert sorted(drawn[start : start + samples]) == list(range(samples))
