"""diagnose: jobs with a known bottleneck, their verdicts, and what the first advice gains."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed_bench.data import photo_data
from fastfeed_bench.model import OURS, Benchmark, Case, Finding, System

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastfeed_bench.model import Context, Evidence
    from fastfeed_bench.systems.jobs import Job

_TARGET = "fastfeed_bench.systems.diagnose:job_session"
AS_IT_IS = "as it is"


def _cases(context: Context) -> list[Case]:
    from fastfeed_bench.systems.jobs import JOBS

    data = photo_data(context)
    settings = {
        "photos": str(data.photos),
        "shards": str(Path(data.shards[0]).parent),
        "times": 2 if context.quick else 10,
    }
    return [case_of(name, job, _TARGET, settings) for name, job in JOBS.items()]


def case_of(name: str, job: Job, target: str, settings: dict[str, Any]) -> Case:
    """Return the case of a job: cured, and as it is, which is diagnosed `times` times."""
    settings = {**settings, "job": name}
    systems = (
        System(OURS, target, {**settings, "cured": True, "times": 0}, role="ours"),
        System(AS_IT_IS, target, {**settings, "cured": False}),
    )
    return Case(name, systems, partial(_judge, job))


def _judge(job: Job, evidence: Mapping[str, Evidence]) -> dict[str, Finding]:
    """Find equal if every verdict was right, and the first advice what the cure is."""
    found = evidence.get(AS_IT_IS)
    if found is None:
        return {}
    alone, beside = found["alone"], found["beside"]
    advice = Counter(one["advice"] for one in alone).most_common(1)[0][0]
    right = all(one["verdicts"][: len(job.verdicts)] == list(job.verdicts) for one in alone)
    right &= all(one["verdicts"][0] == job.verdicts[0] for one in beside)
    words = [
        f"alone {_told(alone)}; beside a busy core {_told(beside)}",
        f"in {max(one['seconds'] for one in (*alone, *beside)):.1f} s at the most",
        f"first advice: {advice}",
    ]
    good = right and job.advice in advice
    return {OURS: Finding(equal=True), AS_IT_IS: Finding(good, "; ".join(words))}


def _told(found: Sequence[Mapping[str, Any]]) -> str:
    verdicts = Counter(" + ".join(one["verdicts"][:2]) for one in found)
    return ", ".join(f"{count}x {names}" for names, count in verdicts.most_common())


BENCHMARK = Benchmark(
    name="diagnose",
    unit="samples/s",
    higher_is_better=True,
    summary="jobs with a known bottleneck: the verdicts, and the rate with the first advice",
    cases=_cases,
    peers=(AS_IT_IS,),
)
