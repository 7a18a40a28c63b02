"""Which share of each batch the GPU decodes, so that training is fastest with the least share.

Decoding on the GPU slows the training step, decoding on the CPU does not, so the share is the least
that lets the workers keep ahead of the loop; if the stage cannot do so much, the share at which the
workers keep ahead of the stage. The stage is steady and workers come in bursts, so they must keep
ahead at their slowest of late. Jobs in flight carry the share of their time: a decision is taken
from a window of batches that all carry the present one, and answered for by the rate after it. A
controller without clocks and threads: it is given timings and returns decisions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from statistics import median

from fastfeed.errors import OptionError
from fastfeed.tuner.decision import Decision
from fastfeed.tuner.split_model import (
    MARGIN,
    Costs,
    Observation,
    differs,
    least_share,
    loop_rate,
    measure,
    most_share,
    predict,
    stage_busy,
    stage_rate,
    workers_rate,
)

# The first batches find cold caches and starting workers.
_WARM_UP = 4
# Batches to a window. Workers that began together deliver together, so a window should see each of
# them once; beyond the upper bound too few windows would fit into the time there is to settle.
_WINDOW = (12, 32)
# Less waiting than this part of the loop's time is jitter.
_WAITS = 0.02
# With more waiting the loop starves, if it is for the workers: the stage is busy for less.
_STARVES = 0.1
_ROOM = 0.9
# Windows that the workers' slowest pace is remembered for, at first and at most, and by how much it
# may be slower than they are on average: one hiccup must not give everything to the GPU.
_PACES = (30, 240)
_SLOWEST = 2.0
# Of what the slowest batch of a window is behind, batches that are ready make up for the rest.
_BEHIND = 0.5
# Windows of one share that are looked at together, so that noise averages out.
_POOLED = 6
# So many windows in a row without a batch as slow as those before are other work.
_FASTER = 2
# While it settles the tuner moves for this difference of shares, or this gain of the rate.
_SETTLING = (0.02, 0.015)
# Once it has settled only for these, and when so many windows in a row say so.
_SETTLED = (0.05, 0.03)
_PATIENCE = 3
# Changes taken from one window each at the start, and after one that other work called for.
_QUICK = 3
# A change after which the rate is lower by more, in so many windows, is taken back. Where timings
# are noisy it must be lower by more than the noise, but no more than this is put down to it.
_WORSE = 0.03
_WORSE_AT_MOST = 0.15
_WORSE_WINDOWS = 4
# So small a share gains less than it costs to have two decoders at work.
_LEAST = 0.02
# How far to go where one side's cost has never been seen. A few pictures tell what a worker needs
# for one; the stage has costs of its own, so it must be given more to tell them from decoding.
_PROBE_CPU = 0.05
_PROBE_GPU = 0.25


@dataclass(frozen=True, slots=True)
class _Before:
    """The share that a change left, and its costs: what the new one must not be worse than."""

    share: float
    costs: Costs


class SplitTuner:
    """Follows the timings of delivered batches and sets the share that the GPU decodes.

    `workers` is how many of the measured seconds pass at a time: worker processes, times their
    threads if each thread's seconds count; set it when it changes. `start` is the first share; with
    `fixed` it stays for ever. `decisions` are all changes so far.
    """

    def __init__(self, workers: int, start: float, *, fixed: bool = False) -> None:
        if workers < 1:
            raise OptionError(f"a split needs at least one worker, not {workers}")
        if not 0 <= start <= 1:
            raise OptionError(
                f"decode={start!r} is not a share of the batch", way_out="Write 0.0 to 1.0"
            )
        self.workers = workers
        self.share = float(start)
        self.fixed = fixed
        self.decisions: list[Decision] = []
        self._batches = 0
        self._seen: list[Observation] = []
        self._since = 0
        self._costs: Costs | None = None
        self._apart: Costs | None = None
        self._before: _Before | None = None
        self._worse = 0
        self._starves = False
        self._remembers = _PACES[0]
        self._paces = deque[float](maxlen=self._remembers)
        self._slowest = deque[float](maxlen=_POOLED)
        self._faster = 0
        self._stays = False
        self._stayed: Costs | None = None
        self._left_rate = 0.0
        self._doubts = True
        self._agreed = 0
        self._quick = _QUICK
        self._settled = False

    def observe(self, observation: Observation) -> Decision | None:
        """Take a delivered batch into account; return a decision if it changed the share."""
        self._batches += 1
        own = abs(observation.share - self.share) < 1e-9
        if self.fixed or not own or self._batches <= _WARM_UP or not observation.samples:
            return None
        self._seen.append(observation)
        self._since += 1
        size = self._size
        if self._since < size:
            return None
        self._since = 0
        self._seen = self._seen[-size * _POOLED :]
        costs = measure(self._seen, known=self._costs, apart=self._apart)
        latest = measure(self._seen[-size:], known=self._costs, apart=self._apart)
        is_faster = self._costs is not None and _is_faster(latest, self._costs)
        self._faster = self._faster + 1 if is_faster else 0
        if self._faster == _FASTER:
            # Smaller pictures or faster cores: what was before says nothing any more.
            self._seen = self._seen[-size * _FASTER :]
            self._paces.clear()
            self._slowest.clear()
            self._faster = 0
            costs = measure(self._seen, known=self._costs, apart=self._apart)
        self._costs = costs
        self._pace(latest)
        return self._answer(costs) if self._before else self._consider(costs)

    @property
    def _size(self) -> int:
        least, most = _WINDOW
        return min(max(least, self.workers), most)

    def _pace(self, latest: Costs) -> None:
        """Remember what decoding took, or what it came to where the loop starved all the same.

        Batches are delivered in order, so the loop may get less than the workers make on average.
        """
        starved = self._starves
        self._starves = latest.waited > _STARVES and stage_busy(latest) < _ROOM
        if latest.decode_s and latest.share < 1:
            makes = workers_rate(latest, latest.share, workers=self.workers)
            # A single window may have begun with nothing in flight.
            lost = max(1.0, makes / latest.rate) if starved and self._starves else 1.0
            self._paces.append(latest.decode_s * lost)
            self._slowest.append(latest.slowest)

    def _answer(self, costs: Costs) -> Decision | None:
        """Hold the last change to the rate before it, and take it back if that was better."""
        before = self._before
        if before is None or differs(costs.decode_s, before.costs.decode_s):
            self._before = None  # other pictures or other cores: nothing to compare with
            return self._consider(costs)
        # The rate before may be that of batches made ahead, which no share can keep up.
        left = min(before.costs.rate, predict(before.costs, before.share, workers=self.workers))
        noise = 2 * max(costs.noise, before.costs.noise)
        least = 1 - max(_WORSE, min(noise, _WORSE_AT_MOST))
        if costs.rate >= least * left:
            self._before = None
            return self._consider(costs)
        self._worse += 1
        words = (
            f"the rate fell from {left:,.0f} to {costs.rate:,.0f} samples/s "
            f"with the share {before.share:.3f} -> {self.share:.3f}"
        )
        if self._worse < _WORSE_WINDOWS:
            return None
        aim = self._aim(costs)
        low, high = sorted((before.share, self.share))
        if low + _SETTLING[0] < aim < high - _SETTLING[0]:
            # The figures explain it: it was too large, or what it found out speaks for less.
            return self._change(aim, f"{words}; {self._figures(costs, aim)}", before=before)
        self._stays, self._stayed, self._left_rate = True, None, costs.rate
        return self._change(before.share, f"{words}: taken back", before=None)

    def _consider(self, costs: Costs) -> Decision | None:
        """Move to the share that the costs call for, if it is far enough and asked for enough."""
        if self._stays and not self._is_other_work(costs):
            return None
        aim = self._aim(costs)
        rises = self._starves and aim > self.share
        far = abs(aim - self.share) > (_SETTLED if self._settled else _SETTLING)[0]
        if self._settled and costs.waited >= _WAITS:
            far = rises and aim - self.share > _SETTLING[0]
        if not far and not self._gains(costs, aim):
            self._settled, self._quick, self._agreed = True, 0, 0
            return None
        # More of the GPU only if the loop waits: without, it has nothing to win.
        if aim == self.share or (aim > self.share and costs.waited < _WAITS):
            self._agreed = 0
            return None
        if self._quick:
            self._quick -= 1
        elif not rises:
            direction = 1 if aim > self.share else -1
            self._agreed = self._agreed + direction if self._agreed * direction > 0 else direction
            if abs(self._agreed) < _PATIENCE:
                return None
            self._quick = _QUICK - 1 if far else 0
        elif self._settled:
            # It had come down too far: what made it starve is remembered for longer.
            self._remembers = min(2 * self._remembers, _PACES[1])
            self._paces = deque(self._paces, maxlen=self._remembers)
        self._settled = self._settled or not self._quick
        why = self._figures(costs, aim)
        return self._change(aim, why, before=_Before(self.share, costs))

    def _gains(self, costs: Costs, aim: float) -> bool:
        """Tell whether training would be so much faster that a small change is worth making."""
        faster = predict(costs, aim, workers=self.workers)
        gain = faster / predict(costs, costs.share, workers=self.workers) - 1
        if not self._settled:
            return gain > _SETTLING[1]
        return gain > _SETTLED[1] and len(self._seen) >= self._size * _POOLED

    def _is_other_work(self, costs: Costs) -> bool:
        """Tell whether the work has changed since a change was taken back; if so, start again.

        Once, also if going back did not bring the rate back, so that the share was not to blame: a
        host that runs ahead of its device takes batches faster than it trains, for a moment.
        """
        stayed = self._stayed
        if stayed is None:
            self._stayed = costs
            if not self._doubts or costs.rate > (1 + _WORSE) * self._left_rate:
                return False
            self._doubts, self._stays = False, False
            return True
        pairs = (
            (costs.decode_s, stayed.decode_s),
            (costs.stage_total_s, stayed.stage_total_s),
            (costs.step_s, stayed.step_s),
        )
        self._agreed = self._agreed + 1 if any(differs(*pair) for pair in pairs) else 0
        if self._agreed < _PATIENCE:
            return False
        self._stays, self._settled, self._agreed, self._quick = False, False, 0, _QUICK
        self._doubts = True
        return True

    def _aim(self, costs: Costs) -> float:
        """Return the share that these costs call for."""
        if costs.decode_s is None:
            # All is deferred. Less helps unless the workers are behind with headers alone.
            waits = costs.waited >= _WAITS
            behind = workers_rate(costs, 1.0, workers=self.workers) < stage_rate(costs, 1.0)
            return self.share if waits and behind else max(0.0, self.share - _PROBE_CPU)
        # Shares that a batch can have: a few pictures more decide how fast a small batch is made.
        number = costs.pictures or 1
        aim = ceil(self._least(costs) * number - 1e-6) / number
        if costs.stage_s is None:
            return round(min(aim, self.share + _PROBE_GPU), 3)
        if costs.waited >= _WAITS:
            most = most_share(costs, workers=self.workers, margin=self._uneven(costs))
            aim = min(aim, round(most * number) / number)
        return round(aim, 3) if aim >= _LEAST else 0.0

    def _uneven(self, costs: Costs) -> float:
        """Return how much slower the workers are at their slowest than they are on average.

        Windows that were slow are remembered; until there are many, batches that were tell of it.
        """
        if not costs.decode_s or not self._paces:
            return 1.0
        of_batches = 1 + _BEHIND * (median(self._slowest) - 1)
        return min(max(of_batches, max(self._paces) / costs.decode_s), _SLOWEST)

    def _least(self, costs: Costs) -> float:
        """Return the least share at which the workers keep ahead of the loop."""
        margin = max(MARGIN, self._uneven(costs))
        return least_share(costs, workers=self.workers, margin=margin)

    def _figures(self, costs: Costs, aim: float) -> str:
        """Return the figures behind a share, in words."""
        words = (
            f"the loop waits {costs.waited:.0%} of its time and takes up to "
            f"{_many(loop_rate(costs))} samples/s; at {self.share:.3f} {self.workers} workers make "
            f"{_many(workers_rate(costs, self.share, workers=self.workers))}, "
            f"the stage {_many(stage_rate(costs, self.share))}"
        )
        if costs.decode_s is None:
            return f"{words}: to see what a worker needs for a picture"
        if costs.stage_s is None:
            return f"{words}: to see what the stage needs for a picture"
        rates = (
            f"at {aim:.3f} {_many(workers_rate(costs, aim, workers=self.workers))} "
            f"and {_many(stage_rate(costs, aim))}"
        )
        if aim < self._least(costs) - 1e-3:
            return f"{words}; {rates}, the most that both can do"
        return f"{words}; {rates}, the least share that keeps the workers ahead"

    def _change(self, share: float, why: str, *, before: _Before | None) -> Decision:
        decision = Decision(self._batches, self.share, share, why)
        self.decisions.append(decision)
        # The farther apart two shares are, the better they tell decoding from copies.
        left, apart = self._costs, self._apart
        if left and not (apart and abs(apart.share - share) > abs(left.share - share)):
            self._apart = left
        self.share = share
        self._seen.clear()
        self._since = 0
        self._before = before
        self._starves = False
        self._worse = self._agreed = 0
        return decision


def _is_faster(latest: Costs, known: Costs) -> bool:
    """Say whether even a window's slowest batch was decoded much faster than those before."""
    slowest = (latest.decode_s or 0.0) * latest.slowest
    return slowest < (known.decode_s or 0.0) and differs(slowest, known.decode_s)


def _many(rate: float) -> str:
    return f"{rate:,.0f}" if rate < 1e9 else "any number"
