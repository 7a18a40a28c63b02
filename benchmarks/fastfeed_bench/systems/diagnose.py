"""diagnose: runs a job as it is or cured, and asks `fastfeed.diagnose` what it lacks."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import fastfeed
from fastfeed.diagnosis.batches import samples
from fastfeed_bench.systems.gpu_jobs import GPU_JOBS
from fastfeed_bench.systems.gpu_meter import cuda_device
from fastfeed_bench.systems.jobs import JOBS, Job, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings

# It ends with its standard input.
_BURN = """
import sys, threading
threading.Thread(target=sys.stdin.read).start()
while threading.active_count() > 1:
    pass
"""
_SECONDS, _WARM_UP = 1.0, 5
"""Of a run; steps before it, which compile and start workers."""


@dataclass(frozen=True, slots=True)
class JobSession:
    """Each run is some seconds of training; the figure is samples a second."""

    note: str
    loader: Any
    step: Callable[[Any], Any]
    stack: ExitStack
    times: int
    """How often it is diagnosed, alone and beside a busy core each."""

    def run(self) -> Mapping[str, float]:
        """Train for a while; what is waited for a batch is told in milliseconds."""
        batches = self._endless()
        for _ in range(_WARM_UP):
            self.step(next(batches))
        _await_device()
        begin = time.perf_counter()
        count = steps = 0
        waited = 0.0
        while (now := time.perf_counter()) - begin < _SECONDS:
            batch = next(batches)
            waited += time.perf_counter() - now
            self.step(batch)
            count, steps = count + samples(batch), steps + 1
        _await_device()
        seconds = time.perf_counter() - begin
        batches.close()
        return {
            "value": count / seconds,
            "wait_ms": 1e3 * waited / steps,
            "waiting": waited / seconds,
        }

    def _endless(self) -> Generator[Any]:
        while True:
            yield from self.loader

    def evidence(self) -> Evidence:
        """Diagnose the job again and again."""
        alone = [self._diagnosed() for _ in range(self.times)]
        with _busy_core():
            beside = [self._diagnosed() for _ in range(self.times)]
        return {"alone": alone, "beside": beside}

    def _diagnosed(self) -> dict[str, Any]:
        begin = time.perf_counter()
        found = fastfeed.diagnose(self.loader, self.step, seconds=_SECONDS)
        return {
            "verdicts": [one.name for one in found.verdicts],
            "shares": [round(one.share_of_time_lost, 3) for one in found.verdicts],
            "advice": found.verdict.advice[0],
            "gain": found.verdict.expected_gain,
            "seconds": time.perf_counter() - begin,
        }

    def close(self) -> None:
        """End what the job started."""
        self.stack.close()


@contextmanager
def _busy_core() -> Iterator[None]:
    """Keep one core of the machine busy."""
    burner = subprocess.Popen([sys.executable, "-c", _BURN], stdin=subprocess.PIPE)  # noqa: S603
    try:
        yield
    finally:
        burner.communicate()


def _await_device() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def job_session(settings: Settings) -> JobSession:
    """Return the session of the job that the settings name."""
    return _session(
        JOBS[settings["job"]], settings, photos=settings["photos"], shards=settings["shards"]
    )


def gpu_job_session(settings: Settings) -> JobSession:
    """Return the session of a job for a GPU; without one it cannot run."""
    cuda_device()
    return _session(GPU_JOBS[settings["job"]], settings)


def _session(job: Job, settings: Settings, *, photos: str = "", shards: str = "") -> JobSession:
    with ExitStack() as stack:
        loader, step = job.make(Place(photos, shards, settings["cured"], stack))
        return JobSession(
            note=f"fastfeed {fastfeed.__version__}",
            loader=loader,
            step=step,
            stack=stack.pop_all(),
            times=settings["times"],
        )
    raise AssertionError  # an ExitStack may swallow errors for all a checker knows
