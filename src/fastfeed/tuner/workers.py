"""How many workers a loader should have, found by trying and by what the workers say of their time.

The rate as a function of the number of workers rises, stays, and may fall again where they stand in
each other's way, so the fewest that come near the best lie between a number that is too small and
one that is enough. The tuner narrows that interval, then rests until the rate, the waiting or the
workers' idleness changes. Rates are noisy: a number is measured until it can be told from the
others, and where the loop hardly waits no rates are compared. It has no clock: time is what the
windows say has passed.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.tuner.decision import Decision
from fastfeed.tuner.measured import Measured, Window, doubt, noise_of, summed

# A number of workers is enough if its rate comes so near the best.
_NEAR = 0.96
# Or if the loop waits no more than this part of the time: no number can win more than that.
_WAITS = 0.03
# Windows after a change that still hold batches made before it, or workers that were starting.
_SKIPPED = 1
# Windows that a number of workers is measured for: more of them while it is in doubt.
_MEASURED, _MEASURED_MOST = 2, 6
# It is in doubt within so many standard deviations.
_SURE = 2.0
# Nor is a doubt pursued once a search has taken so long.
_SEARCH_S = 40.0
# Once settled: windows in a row that must differ from what was found, and by how much.
_PATIENCE = 3
_OTHER_RATE = 0.15
_MORE_WAITING = 0.05
# Once settled, at most two changes a minute.
_APART_S = 30.0


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
        self._elapsed_s = self._changed_s = self._began_s = 0.0
        self._windows: list[Window] = []
        self._skipped = 0
        self._known: dict[int, Measured] = {}
        self._settled = False
        self._rested: Measured | None = None
        self._odd = 0
        self._first = True

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on from here alone; this one may be in use in another thread."""
        own = {"decisions": [*self.decisions], "_windows": [*self._windows]}
        return {**self.__dict__, **own, "_known": {**self._known}}

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
            return self._rest(summed([window]))
        self._windows.append(window)
        if len(self._windows) < _MEASURED:
            return None
        self._known[self.workers] = summed(self._windows)
        return None if self._is_doubtful() else self._search()

    def _is_doubtful(self) -> bool:
        """Tell whether more windows might turn how this number compares with another."""
        if len(self._windows) >= _MEASURED_MOST or self._elapsed_s - self._began_s > _SEARCH_S:
            return False
        noise = noise_of(self._known.values())
        here = self._known[self.workers]
        for number, other in self._known.items():
            less, more = sorted((here, other), key=lambda one: one.rate)
            unclear = abs(less.rate / more.rate - _NEAR) < _SURE * doubt(here, other, noise=noise)
            if number != self.workers and less.waited > _WAITS and unclear:
                return True
        return False

    def _search(self) -> Decision | None:
        """Go on to the next number worth trying, or to the one found."""
        self._windows.clear()
        self._known = {n: seen for n, seen in self._known.items() if n <= self.most}
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
        best = self._best()
        enough = min(number for number in known if self._is_enough(number, best))
        here = known[best]
        above = sorted(number for number in known if number > best)
        if here.waited > _WAITS and not above and best < self.most and self._grew(best):
            return self._more(best)
        if here.waited > _WAITS and above and above[0] - best > 1:
            slower = known[above[0]].rate < _NEAR * here.rate
            if slower or len(above) == 1:
                # With more it is slower, or no faster, yet the best may lie between.
                middle = (best + above[0]) // 2
                return middle, f"{best} are no worse than {above[0]}: {self._tried()}"
        good = sorted(number for number in known if self._is_enough(number, best))
        if here.waited > _WAITS and len(good) == 2 and good[1] - good[0] > 1:
            return sum(good) // 2, f"{good[0]} come near {good[1]}: {self._tried()}"
        below = max((number for number in known if number < enough), default=self.least - 1)
        if enough - below <= 1:
            return enough, ""
        if known[enough].waited > _WAITS:
            between = (below + enough) // 2
        else:
            # Nobody waits: what the busy ones need is a good guess, and small steps hurt nobody.
            between = min(max(ceil(known[enough].busy), below + 1), enough - 1)
        return between, f"{enough} are enough, fewer may be: {self._tried()}"

    def _best(self) -> int:
        """Return the number with the best rate, less what may be luck."""
        noise = noise_of(self._known.values())
        return max(
            self._known,
            key=lambda number: (
                self._known[number].rate * (1 - noise / sqrt(self._known[number].windows))
            ),
        )

    def _is_enough(self, number: int, best: int) -> bool:
        """Tell whether a number comes near the best, or leaves the loop hardly any waiting."""
        here = self._known[number]
        if number == best or here.waited <= _WAITS:
            return True
        if here.waited - self._known[best].waited > 1 - _NEAR:
            return False
        return here.rate >= _NEAR * self._top(number)

    def _top(self, number: int) -> float:
        """Return the best rate of the others: the mean of those that noise may hide behind it.

        The best of several is lucky as a rule; nothing but luck may lie between it and them.
        """
        noise = noise_of(self._known.values())
        best = self._known[self._best()]
        near = [
            other
            for n, other in self._known.items()
            if n != number
            and (other is best or other.rate >= (1 - doubt(other, best, noise=noise)) * best.rate)
        ]
        windows = sum(other.windows for other in near)
        return sum(other.rate * other.windows for other in near) / windows if windows else 0.0

    def _grew(self, best: int) -> bool:
        """Tell whether the last growth paid, so that more may pay too."""
        less = max((number for number in self._known if number < best), default=None)
        return less is None or not self._is_enough(less, best)

    def _more(self, best: int) -> tuple[int, str]:
        """Return a larger number: what the loop could use, at most twice as many."""
        here = self._known[best]
        # While waiting is taken out, the loop would take batches this much faster.
        wanted = ceil(here.busy / max(1 - here.waited, 1e-6))
        target = min(self.most, 2 * best, max(best + 1, wanted))
        return target, f"the loop waits {here.waited:.0%} of its time with {best}: {self._tried()}"

    def _rest(self, now: Measured) -> Decision | None:
        """Watch whether what was found still holds; if not, search again."""
        rested = self._rested or now
        noise = 2 * noise_of(self._known.values())
        odd = (
            abs(now.rate / rested.rate - 1) > _OTHER_RATE + noise
            or now.waited > rested.waited + _MORE_WAITING + noise
            or now.busy < rested.busy * (1 - _OTHER_RATE - noise)
        )
        self._odd = self._odd + 1 if odd else 0
        if self._odd < _PATIENCE:
            return None
        self._settled = False
        self._known = {self.workers: now}
        self._began_s = self._elapsed_s
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
