"""Measures a job and judges it: what `fastfeed.diagnose` does."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from fastfeed.diagnosis import batches
from fastfeed.diagnosis.collect import feed_of, host_of, times_of, waits_of
from fastfeed.diagnosis.cost import cost_of
from fastfeed.diagnosis.counters import computed_s, host_counters, own_counters
from fastfeed.diagnosis.device import gpu_of, ops_of
from fastfeed.diagnosis.evidence import Batch, Evidence, Gpu, Host, Ops
from fastfeed.diagnosis.feeder import Feeder
from fastfeed.diagnosis.job import Job, check_job
from fastfeed.diagnosis.report import Diagnosis
from fastfeed.diagnosis.rounds import Rounds, Run
from fastfeed.diagnosis.verdict import judge
from fastfeed.errors import OptionError
from fastfeed.topology import cgroup_quota, memory_rooms, own_affinity

if TYPE_CHECKING:
    from collections.abc import Callable

# So many rounds if time allows, and at least two, for a median to mean something.
_ROUNDS: Final = 5
_LEAST: Final = 2
_RESIZED_S: Final = 0.1


def diagnose(
    loader: Any,
    step: Callable[[Any], Any],
    *,
    device: str | torch.device | int | None = None,
    price: float | None = None,
    seconds: float = 20.0,
) -> Diagnosis:
    """Run training steps in three ways and say what the job loses its time to.

    The step is run on one batch that is already there, on batches kept in memory, and on those of
    the loader, in turns; it trains as ever, so give a model that may change.

    Args:
        loader: any iterable of batches that can be iterated again.
        step: called with each batch; one training step.
        device: where the step computes; by default the loader's, or CUDA if the step uses it.
        price: of a GPU hour, for the costs.
        seconds: how long to measure, about; slow steps take longer, since each phase needs some.

    Raises:
        OptionError: the loader yields nothing, or an argument that cannot be used.
    """
    _check(price, seconds)
    check_job(Job(loader, step))
    target = _Target(loader, device)
    run = Run(step, time.perf_counter, target.synchronize, target.place, _look)
    feeder = Feeder(loader, time.perf_counter, computed_s)
    rounds = Rounds(run, feeder)
    try:
        rounds.warm_up()
        begin = run.clock()
        done = 0
        while done < _ROUNDS and (done < _LEAST or run.clock() - begin < seconds):
            rounds.once(seconds / _ROUNDS, backwards=bool(done % 2))
            done += 1
        evidence = _evidence(rounds, feeder, target, done)
    finally:
        feeder.close()
    return Diagnosis(evidence, judge(evidence), None if price is None else cost_of(evidence, price))


class _Target:
    """The device of the step; which one is known once a step has run."""

    def __init__(self, loader: Any, device: str | torch.device | int | None) -> None:
        self.loaders = getattr(loader, "device", None)
        self._asked = device if device is not None else self.loaders

    @property
    def device(self) -> torch.device | None:
        """The CUDA device, None if the step runs on the host."""
        if self._asked is not None:
            device = torch.device(self._asked)
        elif torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            device = torch.device("cuda")
        else:
            return None
        return device if device.type == "cuda" else None

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device is not None:
            torch.cuda.synchronize(self.device)

    def place(self, batch: Any) -> Any:
        """Bring a batch to the device."""
        return batches.moved(batch, self.device)


def _look(pids: tuple[int, ...]) -> dict[str, float]:
    return {**host_counters(pids), **own_counters()}


def _check(price: float | None, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise OptionError(f"seconds={seconds!r} must be a number above nothing")
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise OptionError(f"price={price!r} is not the price of a GPU hour")
    distributed = torch.distributed
    ready = distributed.is_available() and distributed.is_initialized()
    if ready and distributed.get_world_size() > 1:
        raise OptionError(
            "ranks that run different numbers of steps would wait for each other for ever",
            way_out="Diagnose one rank alone: start the job with a world of one",
        )


def _evidence(rounds: Rounds, feeder: Feeder, target: _Target, done: int) -> Evidence:
    """Look at what is left to look at, and put everything together."""
    times = times_of(rounds.stretches)
    host = _host(rounds, feeder)
    unseen: list[str] = []
    gpu: Gpu | str | None = None
    ops: Ops | str | None = None
    if target.device is None:
        ops = ops_of(rounds, times)
        unseen.append("kernels and copies: the step uses no CUDA device")
    else:
        gpu = gpu_of(rounds, times, target.device)
        if isinstance(gpu, Gpu) and gpu.uncounted:
            unseen.append(f"memory traffic and tensor cores: {gpu.uncounted}")
    unseen += [f"the step's inside: {found}" for found in (gpu, ops) if isinstance(found, str)]
    batch = _batch(rounds, feeder)
    if batch.fixed is None:
        unseen.append(f"how the step follows the batch's size: {batch.how}")
    feed = feed_of(rounds, feeder, to_device=target.loaders is not None)
    if feed.count and not feed.workers:
        unseen.append("each worker's part: neither the loader nor /proc tells")
    if feed.count and not feed.waits_in and rounds.looks.why:
        unseen.append(f"what workers wait in: {rounds.looks.why}")
    if host.memory_pressure is None:
        unseen.append("pressure (PSI): /proc/pressure is not there")
    return Evidence(
        times=times,
        waits=waits_of(rounds.waits),
        feed=feed,
        host=host,
        batch=batch,
        ops=ops if isinstance(ops, Ops) else None,
        gpu=gpu if isinstance(gpu, Gpu) else None,
        rounds=done,
        steps=rounds.steps,
        restarts_s=rounds.restarts_s,
        unseen=tuple(unseen),
    )


def _batch(rounds: Rounds, feeder: Feeder) -> Batch:
    """Run the step on a batch of another size, where that can do no harm."""
    count = batches.samples(rounds.here)
    if getattr(feeder.loader, "output", "fresh") == "static":
        return Batch(count, how="the loader's batches have one shape (output='static')")
    if _compiled():
        return Batch(count, how="the step is compiled, another shape would be compiled anew")
    other = batches.resized(rounds.here)
    if other is None:
        return Batch(count, how="the batch cannot be cut into samples")
    batch, scale = other
    try:
        ratio = rounds.follow(batch, _RESIZED_S)
    except Exception as error:  # noqa: BLE001 - a step may demand one size, in words of its own
        return Batch(count, how=f"the step fails with another size ({type(error).__name__})")
    # time = fixed + moving * size, with time 1 at size 1
    fixed = (ratio - scale) / (1 - scale)
    how = "half the samples" if scale < 1 else "twice the samples"
    return Batch(count, min(1.0, max(0.0, fixed)), how)


def _compiled() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils is not None and utils.counters["frames"])


def _cores() -> float:
    allowed = float(len(own_affinity()) or 1)
    return min(allowed, cgroup_quota() or allowed)


def _host(rounds: Rounds, feeder: Feeder) -> Host:
    rooms = memory_rooms()
    # The memory that there is least of: the machine's, or the container's.
    left = min((room.left / room.whole for room in rooms), default=None)
    whole = min((room.whole for room in rooms), default=0)
    ready = batches.nbytes(rounds.kept[0]) * feeder.stock
    return host_of(
        rounds.stretches,
        cores=_cores(),
        available=left,
        held=ready / whole if whole else None,
    )
