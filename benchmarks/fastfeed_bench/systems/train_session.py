"""train-feed: one way of loading, opened beside the trainer, tuned, warmed up and run in turns."""

from __future__ import annotations

import gc
import statistics
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from fastfeed_bench.machine import describe_machine
from fastfeed_bench.model import Case, System
from fastfeed_bench.station import StationError
from fastfeed_bench.train import FULL, QUICK, drive, is_stable, length, near, whole
from fastfeed_bench.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastfeed_bench.model import Evidence, Settings
    from fastfeed_bench.train import Batch, Pace, Trainer, Turn, Way

    Opener = Callable[[Settings, Pace], Way]

# The rate is looked at every so many steps while a system warms up, and a batch as often.
_WINDOW = 20
# The steps of each of a candidate's three runs; and an epoch that none of them comes to the end of.
_PROBE_STEPS, _ENDLESS = 15, 10_000
# A few more batches than were asked for are taken, so that an epoch ends by itself.
_REST = 4


def open_session(trainer: Trainer, settings: Settings, open_way: Opener) -> TrainSession:
    """Return the session of a system, with the best of its candidates."""
    pace = QUICK if settings["quick"] else FULL
    chosen = choose(trainer, settings, open_way, pace)
    return TrainSession(trainer, open_way(chosen, pace), pace)


class TrainSession:
    """A way beside the trainer: each run is a turn, whose figure is the training rate in img/s."""

    def __init__(self, trainer: Trainer, way: Way, pace: Pace) -> None:
        self._trainer, self._way, self._pace = trainer, way, pace
        self._lead, self._steps = whole(pace.lead, way.group), whole(pace.steps, way.group)
        self._warmed: dict[str, float] | None = None
        self.note = way.note

    def evidence(self) -> Evidence:
        """Warm up until the rate is stable; describe the batches and the device meanwhile."""
        trainer = self._trainer
        ceiling = trainer.ceiling()
        seen = Seen()
        rates: list[float] = []
        for turn in self._windows(seen):
            rates.append(turn.rate)
            self._warmed = self._figures(turn, ceiling)
            if is_stable(rates):
                break
        self._steps = length(
            self._pace, rates[-1], batch=trainer.network.batch, group=self._way.group
        )
        # A slow system is not kept waiting for what a fast one needs to get going.
        self._lead = whole(min(self._pace.lead, self._steps // 4), self._way.group)
        cuda = trainer.device.type == "cuda"
        return {
            **seen.describe(),
            "synthetic": ceiling,
            "gpu": torch.cuda.get_device_name(trainer.device) if cuda else "none",
        }

    def run(self) -> dict[str, float]:
        """Do one turn; the first, which is not counted, was the warm-up."""
        if self._warmed is not None:
            warmed, self._warmed = self._warmed, None
            return warmed
        ceiling = self._trainer.ceiling()
        epoch = self._way.epoch(self._lead + self._steps)
        turn = drive(
            self._trainer,
            epoch,
            lead=self._lead,
            steps=self._steps,
            limit_s=2 * self._pace.limit_s,
        )
        for _ in islice(epoch, _REST):
            pass
        return self._figures(turn, ceiling)

    def close(self) -> None:
        """End the way's workers."""
        self._way.close()
        gc.collect()

    def _windows(self, seen: Seen) -> Iterator[Turn]:
        window = near(_WINDOW, self._way.group)
        # At least as many as it takes to tell that they are alike.
        left = max(3, self._pace.warm // window)
        while left > 0:
            steps = self._lead + self._steps
            epoch = seen.watch(self._way.epoch(steps))
            for _ in range(max(1, min(left, steps // window))):
                yield drive(self._trainer, epoch, lead=0, steps=window, limit_s=self._pace.probe_s)
                left -= 1

    def _figures(self, turn: Turn, ceiling: float) -> dict[str, float]:
        pinned = self._way.pinned_bytes()
        return {
            "value": turn.rate,
            "synthetic": ceiling,
            "au": turn.rate / ceiling,
            "wait_p50_ms": turn.wait_ms(50),
            "wait_p99_ms": turn.wait_ms(99),
            "cores": turn.cores,
            "steps": len(turn.waits),
            **({} if pinned is None else {"pinned_bytes": pinned}),
        }


class Seen:
    """Looks at some of the batches that go by; what it measures is read after the loop."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._levels: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches."""
        for number, (pictures, labels) in enumerate(batches):
            if number % _WINDOW == 0:
                last = pictures.is_contiguous(memory_format=torch.channels_last)
                self._forms.add(
                    f"{list(pictures.shape)} {pictures.dtype} on {pictures.device.type}"
                    f"{', channels last' if last else ''}; labels {list(labels.shape)} "
                    f"{labels.dtype} on {labels.device.type}"
                )
                self._levels.append((pictures.float().mean(), pictures.float().std()))
            yield pictures, labels

    def describe(self) -> dict[str, Any]:
        """Return form, mean and spread of what was seen."""
        return {
            "form": " and ".join(sorted(self._forms)),
            "mean": statistics.mean(float(mean) for mean, _ in self._levels),
            "spread": statistics.mean(float(spread) for _, spread in self._levels),
        }


def choose(trainer: Trainer, settings: Settings, open_way: Opener, pace: Pace) -> Settings:
    """Return the settings with the candidate by which the network trains fastest, cached."""
    system = System(
        settings["system"],
        "train-feed",
        {key: value for key, value in settings.items() if key != "candidates"},
        tuple(settings["candidates"]),
    )
    cuda = trainer.device.type == "cuda"
    gpu = torch.cuda.get_device_name(trainer.device) if cuda else "none"
    tuning = Tuning(
        cache=Path(settings["cache"]),
        machine={**describe_machine(), "gpu": gpu},
        start=lambda _, told: Probe(trainer, told, open_way, pace),
        higher_is_better=True,
    )
    case = Case(f"{trainer.network.name} {settings['source']}", (system,), lambda _: {})
    return tuning.choose(case, system)


class Probe:
    """A candidate, open beside the trainer for about as long as the pace says."""

    note = ""

    def __init__(self, trainer: Trainer, settings: Settings, open_way: Opener, pace: Pace) -> None:
        self._trainer, self._pace = trainer, pace
        try:
            self._way = open_way(settings, pace)
            self._batches: Iterator[Batch] | None = self._way.epoch(_ENDLESS)
        except Exception as error:  # whatever a library raises leaves it out
            text = str(error).strip().splitlines()
            raise StationError(f"{type(error).__name__}: {text[0] if text else ''}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._batches = None
        self._way.close()
        gc.collect()

    def run(self) -> dict[str, float]:
        """Train for a moment."""
        assert self._batches is not None  # noqa: S101 - only after the end
        steps = near(_PROBE_STEPS, self._way.group)
        try:
            turn = drive(
                self._trainer, self._batches, lead=0, steps=steps, limit_s=self._pace.probe_s
            )
        except Exception as error:
            raise StationError(f"{type(error).__name__}: {error}") from error
        return {"value": turn.rate}

    def evidence(self) -> Evidence:
        """Return nothing: a probe is not compared."""
        return {}
