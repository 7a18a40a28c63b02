"""How many workers a loader should have, found by trying and by what the workers say of their time.

The rate as a function of the number of workers rises, stays, and may fall again where they stand in
each other's way, so the fewest that come near the best lie between a number that is too small and
one that is enough. The tuner narrows that interval, then rests until the rate, the waiting or the
workers' idleness changes. It has no clock: time is what the windows say has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fastfeed.errors import OptionError
from fastfeed.tuner.decision import Decision

# A number of workers is enough if its rate comes so near the best.
_NEAR = 0.97
# Less waiting than this part of the time is jitter.
_WAITS = 0.02
# Windows after a change that still hold batches made before it, or workers that were starting.
_SKIPPED = 1
# Windows that a number of workers is measured for.
_MEASURED = 2
# Once settled: windows in a row that must differ from what was found, and by how much.
_PATIENCE = 3
_OTHER_RATE = 0.15
_MORE_WAITING = 0.05
# Once settled, at most two changes a minute.
_APART_S = 30.0


@dataclass(frozen=True, slots=True)
class Window:
    """What some batches in a row took: `workers` were in use while the loop took `batches`.

    Of `elapsed_s` the loop waited `waited_s`; the workers, all together, were busy for `busy_s`.
    A window should be no shorter than the batches under way, or their stock hides what workers do.
    """

    elapsed_s: float
    waited_s: float
    busy_s: float
    batches: int
    workers: int


@dataclass(frozen=True, slots=True)
class _Measured:
    """Batches a second with a number of workers, the part spent waiting, and how many were busy."""

    rate: float
    waited: float
    busy: float


class WorkerTuner:
    """Follows windows of batches and sets the number of workers, from `least` to `most`.

    `most` is what cores, memory and descriptors allow; set it when that changes. `decisions` are
    all changes so far.
    """

    def __init__(self, start: int, *, most: int, least: int = 1) -> None:
        if not 1 <= least <= most:
            raise OptionError(f"workers from {least} to {most} are not a range to choose from")
        self.most = most
        self.least = least
        self.workers = min(max(start, least), most)
        self.decisions: list[Decision] = []
        self._batches = 0
        self._elapsed_s = self._changed_s = 0.0
        self._windows: list[Window] = []
        self._skipped = 0
        self._known: dict[int, _Measured] = {}
        self._settled = False
        self._rested: _Measured | None = None
        self._odd = 0
        self._first = True

    def observe(self, window: Window) -> Decision | None:
        """Take a window into account; return a decision if it changed the number of workers."""
        self._batches += window.batches
        self._elapsed_s += window.elapsed_s
        if self.workers > self.most:
            return self._change(self.most, f"no more than {self.most} workers may be used now")
        if window.workers != self.workers or not window.batches or window.elapsed_s <= 0:
            return None
        if self._skipped < _SKIPPED:
            self._skipped += 1
            return None
        if self._settled:
            return self._rest(_summed([window]))
        self._windows.append(window)
        if len(self._windows) < _MEASURED:
            return None
        self._known[self.workers] = _summed(self._windows)
        self._windows.clear()
        return self._search()

    def _search(self) -> Decision | None:
        """Go on to the next number worth trying, or to the one found."""
        target, why = self._next()
        if not self._first and self._elapsed_s - self._changed_s < _APART_S:
            return None  # what is measured meanwhile replaces what was measured before
        if target == self.workers or target in self._known:
            self._settled, self._first = True, False
            self._rested, self._odd = self._known[target], 0
            why = f"the fewest that come within {1 - _NEAR:.0%} of the best: {self._tried()}"
        return self._change(target, why) if target != self.workers else None

    def _next(self) -> tuple[int, str]:
        """Return the number of workers to try, and why; one that is known is the answer."""
        known = self._known
        best = max(known, key=lambda number: known[number].rate)
        enough = min(n for n in known if known[n].rate >= _NEAR * known[best].rate)
        here = known[best]
        more = min((n for n in known if n > best), default=None)
        if here.waited >= _WAITS and more is None and best < self.most and self._grew(best):
            return self._more(best)
        slower = more is not None and known[more].rate < _NEAR * here.rate
        if here.waited >= _WAITS and more is not None and slower and more - best > 1:
            # With more it is slower, yet the best may lie between.
            return (best + more) // 2, f"{best} are better than {more}: {self._tried()}"
        below = max((n for n in known if n < enough), default=self.least - 1)
        if enough - below <= 1:
            return enough, ""
        if known[enough].waited >= _WAITS:
            between = (below + enough) // 2
        else:
            # Nobody waits: what the busy ones need is a good guess, and small steps hurt nobody.
            between = min(max(ceil(known[enough].busy), below + 1), enough - 1)
        return between, f"{enough} are enough, fewer may be: {self._tried()}"

    def _grew(self, best: int) -> bool:
        """Tell whether the last growth paid, so that more may pay too."""
        less = max((n for n in self._known if n < best), default=None)
        return less is None or self._known[less].rate < _NEAR * self._known[best].rate

    def _more(self, best: int) -> tuple[int, str]:
        """Return a larger number: what the loop could use, at most twice as many."""
        here = self._known[best]
        # While waiting is taken out, the loop would take batches this much faster.
        wanted = ceil(here.busy / max(1 - here.waited, 1e-6))
        target = min(self.most, 2 * best, max(best + 1, wanted))
        return target, f"the loop waits {here.waited:.0%} of its time with {best}: {self._tried()}"

    def _rest(self, now: _Measured) -> Decision | None:
        """Watch whether what was found still holds; if not, search again."""
        rested = self._rested or now
        odd = (
            abs(now.rate / rested.rate - 1) > _OTHER_RATE
            or now.waited > rested.waited + _MORE_WAITING
            or now.busy < rested.busy * (1 - _OTHER_RATE)
        )
        self._odd = self._odd + 1 if odd else 0
        if self._odd < _PATIENCE:
            return None
        self._settled = False
        self._known = {self.workers: now}
        return self._search()

    def _tried(self) -> str:
        """Return what each number of workers came to, in words."""
        return ", ".join(
            f"{number}: {seen.rate:,.2f} batches/s, waiting {seen.waited:.0%}"
            for number, seen in sorted(self._known.items())
        )

    def _change(self, workers: int, why: str) -> Decision:
        decision = Decision(self._batches, self.workers, workers, why)
        self.decisions.append(decision)
        self.workers = workers
        self._changed_s = self._elapsed_s
        self._windows.clear()
        self._skipped = 0
        return decision


def _summed(windows: list[Window]) -> _Measured:
    elapsed_s = sum(window.elapsed_s for window in windows)
    return _Measured(
        rate=sum(window.batches for window in windows) / elapsed_s,
        waited=sum(window.waited_s for window in windows) / elapsed_s,
        busy=sum(window.busy_s for window in windows) / elapsed_s,
    )
