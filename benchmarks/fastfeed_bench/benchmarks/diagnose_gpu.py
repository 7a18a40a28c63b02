"""diagnose-gpu: steps on a GPU with a known bottleneck, as `diagnose` has them for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed_bench.benchmarks.diagnose import AS_IT_IS, case_of
from fastfeed_bench.model import Benchmark

if TYPE_CHECKING:
    from fastfeed_bench.model import Case, Context

_TARGET = "fastfeed_bench.systems.diagnose:gpu_job_session"
# Alone and beside a busy core each.
_TIMES, _QUICK_TIMES = 10, 1


def _cases(context: Context) -> list[Case]:
    from fastfeed_bench.systems.gpu_jobs import GPU_JOBS

    settings = {"times": _QUICK_TIMES if context.quick else _TIMES}
    return [case_of(name, job, _TARGET, settings) for name, job in GPU_JOBS.items()]


BENCHMARK = Benchmark(
    name="diagnose-gpu",
    unit="samples/s",
    higher_is_better=True,
    summary="steps on a GPU with a known bottleneck: the verdicts, and the rate with the advice",
    cases=_cases,
    peers=(AS_IT_IS,),
)
