"""The benchmark of verdicts: its jobs, what it finds equal, and the limit of memory."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice

import pytest

from fastfeed_bench.benchmarks.diagnose import _judge
from fastfeed_bench.model import OURS
from fastfeed_bench.systems.diagnose import job_session
from fastfeed_bench.systems.gpu_jobs import GPU_JOBS
from fastfeed_bench.systems.jobs import JOBS, Job, Place


def found(*verdicts, advice="Do this."):
    return {"verdicts": list(verdicts), "advice": advice, "seconds": 1.0}


JOB = Job(("GIL", "too small batches"), "Do this", lambda place: ([], print))
RIGHT, ONLY_FIRST, WRONG = found(*JOB.verdicts), found("GIL"), found("GPU-bound", "GIL")


@pytest.mark.parametrize(
    ("alone", "beside", "equal"),
    [
        ([RIGHT] * 3, [ONLY_FIRST] * 3, True),
        ([RIGHT, ONLY_FIRST], [RIGHT], False),
        ([RIGHT] * 3, [RIGHT, RIGHT, WRONG], False),
        ([found(*JOB.verdicts, advice="Do that.")], [RIGHT], False),
    ],
)
def test_every_verdict_must_be_right(alone, beside, equal):
    """All verdicts of a job count alone, beside a busy core the first; the advice is the cure."""
    finding = _judge(JOB, {OURS: {}, "as it is": {"alone": alone, "beside": beside}})["as it is"]
    assert finding.equal is equal
    assert "GIL" in finding.note


def test_a_job_that_did_not_run_is_not_judged():
    """Without the job as it is there is nothing to compare with."""
    assert _judge(JOB, {OURS: {}}) == {}


@pytest.mark.parametrize("cured", [False, True])
def test_a_job_trains_and_is_diagnosed(cured):
    """A session has a rate and a wait, and asks as often as it is told."""
    settings = {"photos": "", "shards": "", "cured": cured, "job": "too small batches"}
    session = job_session({**settings, "times": 0 if cured else 1})
    figures = session.run()
    told = session.evidence()
    session.close()
    assert figures["value"] > 0
    assert figures["waiting"] < 0.5
    assert len(told["alone"]) == len(told["beside"]) == (not cured)


# On two cores its workers are more than torch suggests.
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("name", GPU_JOBS)
@pytest.mark.parametrize("cured", [False, True])
def test_a_job_for_a_gpu_runs(name, cured):
    """Loader and step of each job fit together; here on the cores, and small."""
    with ExitStack() as stack:
        loader, step = GPU_JOBS[name].make(Place("", "", cured, stack, device="cpu"))
        for batch in islice(loader, 2):
            assert step(batch) is not None


def test_jobs_are_of_every_bottleneck_that_needs_no_gpu():
    """No verdict that a host alone can have is without a job."""
    assert {name for job in JOBS.values() for name in job.verdicts} == {
        "storage-bound",
        "preprocessing-bound",
        "GIL",
        "one slow worker",
        "memory pressure",
        "waiting in user code",
        "garbage collection",
        "submission-bound",
        "too small batches",
        "GPU-bound",
    }
