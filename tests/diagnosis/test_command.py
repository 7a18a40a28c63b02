"""`fastfeed diagnose` and the job that it is given."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from fastfeed.diagnosis.job import Job, job_of, load_job
from fastfeed.diagnosis.run import diagnose
from fastfeed.doctor.main import main
from fastfeed.errors import OptionError

SCRIPT = """
import torch
from torch.utils.data import DataLoader

def make():
    weight = torch.ones(64, 64)
    return DataLoader(torch.ones(400, 64), batch_size=20), lambda batch: batch @ weight

def as_dict():
    loader, step = make()
    return {"loader": loader, "step": step, "device": "cpu"}

number = 5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a job in it, as the working directory."""
    (tmp_path / "job_of_a_test.py").write_text(SCRIPT)
    (tmp_path / "needs_more.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in ("job_of_a_test", "needs_more"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["make", "as_dict"])
def test_loads_jobs(folder, name):
    """A function may return a pair or a dict."""
    job = load_job(f"job_of_a_test:{name}")
    assert job.device == ("cpu" if name == "as_dict" else None)
    assert job.step(torch.ones(2, 64)).shape == (2, 64)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job_of_a_test", "not MODULE:FUNCTION"),
        ("job_of_a_test:", "not MODULE:FUNCTION"),
        ("nowhere_at_all:make", "no module 'nowhere_at_all'"),
        ("nowhere.at_all:make", "no module 'nowhere.at_all'"),
        ("job_of_a_test:absent", "no function 'absent'"),
        ("job_of_a_test:number", "no function 'number'"),
    ],
)
def test_jobs_that_are_not_there(folder, name, words):
    """What cannot be found is named, with what is expected instead."""
    with pytest.raises(OptionError, match=words) as caught:
        load_job(name)
    assert caught.value.way_out


def test_errors_of_the_users_code_pass(folder):
    """A module that is there but needs another one says so in its own words."""
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        load_job("needs_more:make")


@pytest.mark.parametrize(
    "made", [None, (1,), (1, 2, 3), {"loader": []}, {"loader": [], "step": print, "x": 1}]
)
def test_what_is_no_job(made):
    """What a function returned by mistake is answered with what is expected."""
    with pytest.raises(OptionError, match=r"returned .*Let the function return"):
        job_of(made, "a:b")


@pytest.mark.parametrize(("made", "words"), [((5, print), "iterated"), (([], 5), "called")])
def test_loaders_and_steps_that_are_none(made, words):
    """A loader must be iterable and a step callable."""
    with pytest.raises(OptionError, match=words):
        job_of(made, "a:b")
    assert job_of(([], print), "a:b") == Job([], print)


def test_command_prints_json(folder, capfd):
    """The command runs the job and prints one JSON object with costs in it."""
    assert (
        main(["diagnose", "job_of_a_test:make", "--json", "--price", "2", "--seconds", "0.5"]) == 0
    )
    document = json.loads(capfd.readouterr().out)
    assert document["evidence"]["batch"]["samples"] == 20
    assert document["evidence"]["feed"]["kind"] == "none"
    assert document["cost"]["price_per_hour"] == 2.0
    assert document["evidence"]["rounds"] >= 2


FAILING = """
import sys
from fastfeed.errors import StorageError

def failing(error):
    def step(batch):
        raise error
    return lambda: ([1, 2, 3], step)

step_fails = failing(ZeroDivisionError("a step of the user's"))
step_exits = failing(SystemExit(7))
pipe_breaks = failing(BrokenPipeError("a socket of the user's"))
shard_fails = failing(StorageError("a shard is gone"))
interrupted = failing(KeyboardInterrupt())

class Data:
    def __iter__(self):
        yield 1
        raise OSError("a file of the user's")

def data_fails():
    return Data(), bool

def function_fails():
    raise RuntimeError("no data set here")

def no_batches():
    return [], print

def no_loader():
    return 5, print
"""


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("step_fails", 2, "the job raised ZeroDivisionError"),
        ("step_exits", 2, "the job raised SystemExit"),
        ("pipe_breaks", 2, "the job raised BrokenPipeError"),
        ("data_fails", 2, "the job raised OSError"),
        ("function_fails", 2, "the job raised RuntimeError"),
        ("no_batches", 2, "yields no batch"),
        ("no_loader", 2, "cannot be iterated"),
        ("shard_fails", 1, "a shard is gone"),
        ("interrupted", 130, "interrupted"),
    ],
)
def test_exit_codes_of_jobs_that_fail(folder, capfd, name, code, words):
    """Who failed decides the code; a job's own error comes with its place and without ours."""
    (folder / "needs_more.py").write_text(FAILING)
    assert main(["diagnose", f"needs_more:{name}", "--seconds", "0.2"]) == code
    told = capfd.readouterr()
    assert told.out == ""
    assert words in told.err.splitlines()[-1]
    assert ("Traceback" in told.err) == ("the job raised" in words)
    assert "diagnosis/rounds.py" not in told.err


def test_modules_that_fail_are_jobs_that_fail(folder, capfd):
    """A module that cannot be imported is shown as Python shows it."""
    assert main(["diagnose", "needs_more:make"]) == 2
    error = capfd.readouterr().err
    assert "a_module_that_nobody_has" in error
    assert "the job raised ModuleNotFoundError" in error.splitlines()[-1]


def test_command_refuses(folder, capfd):
    """Wrong calls are exit code 2 with one line that says what is wrong."""
    assert main(["diagnose", "job_of_a_test:absent"]) == 2
    assert "has no function" in capfd.readouterr().err
    for wrong in (["--price", "nan"], ["--price", "x"], ["--seconds", "0"], ["--seconds", "inf"]):
        with pytest.raises(SystemExit) as caught:
            main(["diagnose", "job_of_a_test:make", *wrong])
        assert caught.value.code == 2
        assert f"{wrong[1]!r} is not a " in capfd.readouterr().err


@pytest.mark.parametrize("wrong", [{"price": -1.0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_function_refuses(wrong):
    """The function checks what the command's parser does."""
    with pytest.raises(OptionError):
        diagnose([torch.ones(1)], print, **wrong)


def test_steps_that_fail_on_another_size():
    """A step that demands one batch size is measured all the same, and that is told."""

    def step(batch):
        if batch.shape[0] != 10:
            raise ValueError("ten samples, please")

    found = diagnose([torch.ones(10, 2)] * 20, step, seconds=0.3)
    assert found.evidence.batch.fixed is None
    assert any("ValueError" in text for text in found.evidence.unseen)


def test_steps_that_raise_end_the_diagnosis():
    """What the step raises on its own batches is the user's to see, and nothing is left behind."""

    def step(batch):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        diagnose([torch.ones(10)] * 20, step, seconds=0.3)
