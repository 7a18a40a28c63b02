"""What it means that the loop waited: a hint only where the loader's own figures prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.stats.values import Snapshot, StageFacts, WorkerFacts

# Workers are told apart if one of them takes so many times longer for a batch than another, or is
# busy for so much more of its time.
_SLOWER: Final = 1.3
_BUSIER: Final = 0.25
# Fewer batches say nothing, of a worker or of all.
_ENOUGH: Final = 16
# A loop that waits less is fed; workers that rest less have no more to give.
_LITTLE: Final = 0.05
_BUSY: Final = 0.8
# Few batches are what is waited for where half of them wait for so little of the mean.
_FEW: Final = 0.25


def verdict(snapshot: Snapshot, *, workers: int, tuned: bool = False) -> str:
    """Return in one sentence how much the loop waited, and what of; `tuned` is for ff.AUTO."""
    share = snapshot.waited_share
    why = "the loader keeps up"
    if share >= _LITTLE:
        why = _why(snapshot, workers=workers, tuned=tuned)
    return f"The loop waited for data {share:.0%} of its time: {why}."


def _why(snapshot: Snapshot, *, workers: int, tuned: bool) -> str:
    if snapshot.batches < _ENOUGH:
        return "these are too few batches to say why"
    stage = snapshot.stage
    if stage is not None and (limit := _limit(stage)):
        return limit
    if not workers:
        return "it makes each batch itself (num_workers=ff.AUTO has workers make them meanwhile)"
    return _of_workers(snapshot, tuned=tuned)


def _of_workers(snapshot: Snapshot, *, tuned: bool) -> str:
    busy = shares_of(snapshot.workers)[0]
    if busy >= _BUSY:
        if tuned:
            return (
                f"the workers are busy for {busy:.0%} of theirs, and ff.AUTO has as many as help "
                "(`fastfeed diagnose` says what takes their time)"
            )
        return (
            f"the workers are busy for {busy:.0%} of theirs, more of them may help where cores are "
            "free or they wait (num_workers=ff.AUTO finds how many)"
        )
    if not tuned and differ(snapshot.workers):
        return "the workers differ, and since batches come in order the slowest is waited for"
    rest = f"the workers rest for {1 - busy:.0%} of theirs, so that more will not help"
    if snapshot.wait_p50_s < _FEW * snapshot.waited_s / snapshot.batches:
        return f"few batches are waited for, such as the first of an epoch; {rest}"
    return f"{rest} (`fastfeed diagnose` says what does)"


def _limit(stage: StageFacts) -> str:
    """Return what holds up the way to the device, empty if batches are what it waits for."""
    busy, copying = stage.busy_s, stage.copying_s
    if busy + copying <= stage.blocked_in_s + stage.blocked_out_s:
        return ""
    share = (busy + copying) / (busy + copying + stage.blocked_in_s + stage.blocked_out_s)
    if copying >= busy:
        return (
            f"copies to the device take {share:.0%} of the time (`fastfeed doctor`, checks 3 and 4)"
        )
    return f"bringing batches to the device takes {share:.0%} of the time"


def differ(workers: Sequence[WorkerFacts]) -> bool:
    """Say whether workers are so different that it is worth a look at each."""
    known = [one for one in workers if one.batches >= _ENOUGH]
    if len(known) < 2:
        return False
    means = [one.busy.total_s / one.batches for one in known]
    shares = [shares_of([one])[0] for one in known]
    return max(means) > _SLOWER * min(means) or max(shares) - min(shares) > _BUSIER


def shares_of(workers: Sequence[WorkerFacts]) -> tuple[float, float, float]:
    """Return the parts of workers' time: busy, waiting for jobs, waiting to send."""
    busy = sum(one.busy.total_s for one in workers)
    waits = sum(one.blocked_in_s for one in workers)
    sends = sum(one.blocked_out_s for one in workers)
    total = (busy + waits + sends) or 1.0
    return busy / total, waits / total, sends / total
