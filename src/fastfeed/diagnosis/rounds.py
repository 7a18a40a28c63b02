"""The three phases of the proof, in turns: the step alone, fed from memory, fed by the loader.

They are interleaved, since a machine is not the same from one minute to the next, and what counts
is the median over the rounds. Before each stretch that counts come steps that don't: after the
loader was left alone its batches lie ready, and they say nothing of how fast it makes more.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from fastfeed.diagnosis import batches
from fastfeed.diagnosis.blocked import Looks
from fastfeed.diagnosis.counters import Counters, add_passed
from fastfeed.diagnosis.probe import Probe
from fastfeed.stats import Waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.diagnosis.feeder import Feeder, Taken

Phase = Literal["ceiling", "cached", "real"]
PHASES: Final[tuple[Phase, ...]] = ("ceiling", "cached", "real")

# Batches kept in memory for the cached phase, and the bytes they may take.
_KEPT: Final = 8
_KEPT_BYTES: Final = 1 << 30
_WARM_UP: Final = 3
# Steps of a stretch: at least, at most, and the parts of a round's time for the phases.
_LEAST: Final = 3
_MOST: Final = 400
_PARTS: Final = {"ceiling": 0.2, "cached": 0.2, "real": 0.6}
# How often two batches are compared.
_PAIRS: Final = 9
# Counters are looked at this often, since those of workers end with an epoch.
_LOOK_S: Final = 0.1
# A wait longer than this part of a step says that nothing lies ready any more.
_EMPTY: Final = 0.25


@dataclass(slots=True)
class Run:
    """How a job is run: its step, the device it is on, and the seams to time and machine."""

    step: Callable[[Any], Any]
    clock: Callable[[], float]
    synchronize: Callable[[], None]
    """Wait until the device has done all it was given."""
    place: Callable[[Any], Any]
    """Bring a batch to where the step needs it."""
    look: Callable[[tuple[int, ...]], Counters]
    """Read the counters of the host and of the worker processes."""


@dataclass(slots=True)
class Stretches:
    """What was measured of one phase, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    """A step's time, one value a round."""
    waited: list[float] = field(default_factory=list)
    """A step's wait, likewise."""
    counters: Counters = field(default_factory=dict)
    probe: Probe = field(default_factory=Probe)
    steps: int = 0


class Rounds:
    """Runs a job's phases again and again, and keeps what was measured."""

    def __init__(self, run: Run, feeder: Feeder) -> None:
        self._run = run
        self._feeder = feeder
        self._next_kept = 0
        self._counts = False
        self._step_s = 0.0  # of a step alone
        self.stretches: dict[Phase, Stretches] = {phase: Stretches() for phase in PHASES}
        self.waits = Waits()
        self.turns: dict[int, list[Taken]] = defaultdict(list)
        """What each worker's turns brought, without the batches."""
        self.restarts_s = 0.0
        self.kept: list[Any] = []
        self.here: Any = None
        """The batch of the ceiling phase, where the step needs it."""
        self.looks = looks = Looks()
        # Not of `self`: in a circle the kept batches would live on until they are collected.
        self.stretches["real"].probe.beside = lambda: looks.look(feeder.tasks())

    def warm_up(self) -> None:
        """Run the first steps, which compile and allocate, and keep batches for what follows."""
        while len(self.kept) < _KEPT:
            taken = self._feeder.next()
            self.restarts_s += taken.pause_s
            self.kept.append(batches.kept(taken.batch))
            if len(self.kept) <= _WARM_UP:
                self._run.step(taken.batch)
            if batches.nbytes(self.kept[0]) * (len(self.kept) + 1) > _KEPT_BYTES:
                break
        self.here = self._run.place(batches.kept(self.kept[0]))
        self._alone(self.here, 1)
        self._step_s = self._alone(self.here, _WARM_UP - 1)

    def once(self, seconds: float, *, backwards: bool) -> None:
        """Run all phases for some seconds, in order or backwards."""
        for phase in PHASES[::-1] if backwards else PHASES:
            self._stretch(phase, seconds * _PARTS[phase])

    @property
    def steps(self) -> int:
        """Steps that were measured, of all phases."""
        return sum(one.steps for one in self.stretches.values())

    def _stretch(self, phase: Phase, seconds: float) -> None:
        """Run steps of a phase, first some that do not count."""
        run, clock, stretch = self._run, self._run.clock, self.stretches[phase]
        give, most = self._giver(phase), self._steps_in(seconds)
        self._settle(phase, give, seconds)
        run.synchronize()
        self._counts = True
        before, looked = self._look(), clock()
        with stretch.probe:
            begin, waited, paused, steps = clock(), 0.0, 0.0, 0
            while steps < _LEAST or (clock() - begin - paused < seconds and steps < most):
                fresh = False
                for _ in range(max(1, self._feeder.count)):  # whole turns: each worker as often
                    wait_s, pause_s, batch = give()
                    stepped = clock()
                    run.step(batch)
                    if pause_s:  # a step without a wait is no step of this phase
                        paused, fresh = paused + pause_s + clock() - stepped, True
                    else:
                        waited, steps = waited + wait_s, steps + 1
                if fresh or clock() - looked > _LOOK_S:
                    begun = clock()
                    # Workers of a new epoch are others: what those before did since is not known.
                    before = self._passed(stretch.counters, None if fresh else before)
                    looked = clock()
                    paused += looked - begun
            run.synchronize()
            took = clock() - begin - paused
        self._counts = False
        self._passed(stretch.counters, before)
        if phase == "ceiling":  # the first steps of all may have been slower
            self._step_s = min(self._step_s, took / steps)
        stretch.seconds.append(took / steps)
        stretch.waited.append(waited / steps)
        stretch.steps += steps

    def _passed(self, sums: Counters, before: Counters | None) -> Counters:
        """Add what passed since a look, if there is one; return the look that was taken now."""
        now = self._look()
        if before is not None:
            add_passed(sums, before, now)
        return now

    def _look(self) -> Counters:
        return {**self._run.look(self._feeder.pids), **self._feeder.counters()}

    def _settle(
        self, phase: Phase, give: Callable[[], tuple[float, float, Any]], seconds: float
    ) -> None:
        """Run steps until those that follow are like one another.

        For the real phase: until no batch lies ready. For the others: until the workers have made
        those that will, and rest.
        """
        clock = self._run.clock
        begin = clock()
        for number in range(max(1, self._feeder.stock)):
            start = clock()
            waited, _, batch = give()
            self._run.step(batch)
            took = clock() - start
            if phase == "real":
                if number and waited > _EMPTY * took:
                    return
            elif clock() - begin > seconds / 2:
                return

    def _same(self) -> tuple[float, float, Any]:
        return 0.0, 0.0, self.here

    def _again(self) -> tuple[float, float, Any]:
        self._next_kept = (self._next_kept + 1) % len(self.kept)
        return 0.0, 0.0, self.kept[self._next_kept]

    def _fed(self) -> tuple[float, float, Any]:
        taken = self._feeder.next()
        self.restarts_s += taken.pause_s
        if self._counts:
            self.turns[taken.turn].append(taken._replace(batch=None))
            if not taken.pause_s:
                self.waits.add(taken.wait_s)
        return taken.wait_s, taken.pause_s, taken.batch

    def some(self, phase: Phase, steps: int) -> None:
        """Run steps of a phase without measuring, for whoever looks on."""
        give = self._giver(phase)
        for _ in range(steps):
            self._run.step(give()[2])
        self._run.synchronize()

    def follow(self, other: Any, seconds: float) -> float:
        """Return the time of a step on another batch over that on the one of the ceiling phase."""
        whole = part = float("inf")
        steps = self._steps_in(seconds)
        for _ in range(_PAIRS):  # what else the machine does only ever adds to them
            whole = min(whole, self._alone(self.here, steps))
            part = min(part, self._alone(other, steps))
        return part / whole

    def _steps_in(self, seconds: float) -> int:
        """Return how many steps a device does in some seconds; it can be given far more in them."""
        return round(min(_MOST, max(_LEAST, seconds / max(self._step_s, 1e-6))))

    def _alone(self, batch: Any, steps: int) -> float:
        """Return the time of a step on a batch that is there, the mean of some."""
        run, clock = self._run, self._run.clock
        run.step(batch)
        run.synchronize()
        begin = clock()
        for _ in range(steps):
            run.step(batch)
        run.synchronize()
        return (clock() - begin) / steps

    def _giver(self, phase: Phase) -> Callable[[], tuple[float, float, Any]]:
        return {"ceiling": self._same, "cached": self._again, "real": self._fed}[phase]
