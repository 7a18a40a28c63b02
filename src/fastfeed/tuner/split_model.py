"""What a share of pictures decoded on the GPU costs: measured per batch, predicted for any share.

Workers need `other + (1 - g) decode + g defer` seconds for a sample when the share is g, the device
stage needs `copy + g stage`, the training loop needs `step`. The slowest of the three sets the
rate. All is per sample, so that short batches count as they should.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# How much faster than the loop consumes the workers should be at least: what jitter needs.
MARGIN = 1.1
# A step this many times the median is a checkpoint or a validation, not a step. Loops that let the
# host run ahead and then wait for the device differ by less.
_PAUSE = 16
# Shares closer than this say nothing about how the stage's time grows between them.
_APART = 0.2
# At least this part of the stage's time is taken to be decoding: two points on a curve that bends
# (decode slows while the GPU trains) must not make decoding look free.
_LEAST_SLOPE = 0.25
# A cost that differs by this factor is other work.
_OTHER_WORK = 1.25
# Headers cost a small part of a decode; used until the first are timed.
_DEFER_OVER_DECODE = 0.1


@dataclass(frozen=True, slots=True)
class Observation:
    """The timings of one delivered batch, in seconds.

    `share` is what the batch was made with. Workers spent `decode_s` on the `decoded` pictures that
    they decoded, `defer_s` on headers and windows of the `deferred` ones, and `other_s` on the rest
    (reading, collating). The device stage was busy for `stage_s`. The consumer waited `wait_s` for
    the batch, after `step_s` since it was given the one before.
    """

    share: float
    samples: int
    decode_s: float
    decoded: int
    defer_s: float
    deferred: int
    other_s: float
    stage_s: float
    wait_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds per sample, each as if all its pictures went one way; None where not yet seen.

    `pictures` are those of a batch, `share` the part of them that was deferred, `stage_total_s`
    what the stage took at that share. `waited` is the part of the loop's time spent waiting, `rate`
    in samples a second, `noise` how far the timings of so few batches may be off, as a part, and
    `slowest` how many times as long as all on average the slowest batch took to decode.
    """

    pictures: int
    share: float
    decode_s: float | None
    defer_s: float | None
    stage_s: float | None
    copy_s: float
    stage_total_s: float
    other_s: float
    step_s: float
    waited: float
    rate: float
    noise: float
    slowest: float


def measure(
    window: Sequence[Observation], *, known: Costs | None = None, apart: Costs | None = None
) -> Costs:
    """Return the costs that a window of batches shows, all made with one share.

    What this share cannot show is taken from `known`, an earlier measurement. `apart`, one at
    another share, separates the stage's decoding from its copies.
    """
    decoded = sum(seen.decoded for seen in window)
    deferred = sum(seen.deferred for seen in window)
    pictures = (decoded + deferred) / sum(seen.samples for seen in window)
    share = deferred / (decoded + deferred) if pictures else 0.0
    decodes = [seen.decode_s / seen.decoded for seen in window if seen.decoded]
    defers = [seen.defer_s / seen.deferred for seen in window if seen.deferred]
    stages = [seen.stage_s / seen.samples for seen in window]
    decode = _cost(decodes, pictures, known=known.decode_s if known else None)
    defer = _cost(defers, pictures, known=known.defer_s if known else None)
    if apart is not None and differs(decode, apart.decode_s):
        apart = None
    stage_total = _middle(stages)
    stage, copy = _line(share, stage_total, known=known, apart=apart)
    longest = _PAUSE * median(seen.step_s for seen in window)
    steps = [seen for seen in window if seen.step_s <= longest]
    waited = sum(seen.wait_s for seen in steps)
    stepped = sum(seen.step_s for seen in steps)
    delivered = sum(seen.samples for seen in steps)
    return Costs(
        pictures=round((decoded + deferred) / len(window)),
        share=share,
        decode_s=decode,
        defer_s=defer,
        stage_s=stage,
        copy_s=copy,
        stage_total_s=stage_total,
        other_s=_middle([seen.other_s / seen.samples for seen in window]),
        step_s=stepped / delivered,
        waited=waited / (waited + stepped) if waited else 0.0,
        rate=_per_second(waited + stepped, of=delivered),
        noise=max(_spread(decodes), _spread(defers), _spread(stages)),
        slowest=max(decodes) / (fmean(decodes) or 1.0) if decodes else 1.0,
    )


def workers_rate(costs: Costs, share: float, *, workers: int) -> float:
    """Return the samples a second that the workers make at a share."""
    decode = costs.decode_s or 0.0
    defer = _defer(costs)
    return _per_second(costs.other_s + (1 - share) * decode + share * defer, of=workers)


def stage_rate(costs: Costs, share: float) -> float:
    """Return the samples a second that the device stage makes at a share."""
    return _per_second(costs.copy_s + share * (costs.stage_s or 0.0))


def stage_busy(costs: Costs) -> float:
    """Return the part of the time in which the stage has work."""
    return costs.stage_total_s * costs.rate


def loop_rate(costs: Costs) -> float:
    """Return the samples a second that the training loop takes when it never waits."""
    return _per_second(costs.step_s)


def least_share(costs: Costs, *, workers: int, margin: float) -> float:
    """Return the least share at which the workers are faster than the loop by the margin."""
    decode, gain = costs.decode_s or 0.0, _gain(costs)
    surplus = costs.other_s + decode - workers * costs.step_s / margin
    if surplus <= 0 or gain <= 0:  # no share is needed, or none helps
        return 0.0
    return min(1.0, surplus / gain)


def most_share(costs: Costs, *, workers: int, margin: float) -> float:
    """Return the share at which the workers are faster than the stage by the margin."""
    decode, gain = costs.decode_s or 0.0, _gain(costs)
    slope = margin * gain + workers * (costs.stage_s or 0.0)
    if gain <= 0 or slope <= 0:
        return 0.0
    surplus = margin * (costs.other_s + decode) - workers * costs.copy_s
    return min(1.0, max(0.0, surplus / slope))


def predict(costs: Costs, share: float, *, workers: int) -> float:
    """Return the samples a second that the loop would get at a share."""
    return min(
        workers_rate(costs, share, workers=workers), stage_rate(costs, share), loop_rate(costs)
    )


def differs(one: float | None, other: float | None) -> bool:
    """Tell whether two measurements of a cost are so far apart that the work is another."""
    if not one or not other:
        return False
    return not 1 / _OTHER_WORK < one / other < _OTHER_WORK


def _defer(costs: Costs) -> float:
    if costs.defer_s is not None:
        return costs.defer_s
    return (costs.decode_s or 0.0) * _DEFER_OVER_DECODE


def _gain(costs: Costs) -> float:
    """Return what the workers save on a sample whose pictures are deferred."""
    return (costs.decode_s or 0.0) - _defer(costs)


def _line(
    share: float, total_s: float, *, known: Costs | None, apart: Costs | None
) -> tuple[float | None, float]:
    """Return the stage's seconds for decoding and for copies, from here and another share."""
    if share == 0:
        return known.stage_s if known is not None else None, total_s
    slope = total_s / share
    if apart is not None and abs(share - apart.share) >= _APART:
        between = (total_s - apart.stage_total_s) / (share - apart.share)
        slope = min(slope, max(between, _LEAST_SLOPE * slope))
    return slope, total_s - slope * share


def _cost(each: list[float], pictures: float, *, known: float | None) -> float | None:
    """Return what the pictures of a sample cost: from each batch, or as known from before."""
    if not pictures:
        return 0.0
    return _middle(each) * pictures if each else known


def _middle(values: list[float]) -> float:
    """Return the mean without the highest and the lowest eighth."""
    cut = len(values) // 8
    return fmean(sorted(values)[cut : len(values) - cut])


def _spread(values: list[float]) -> float:
    """Return the standard error of the mean of values, as a part of it."""
    mean = fmean(values) if values else 0.0
    if not mean:
        return 0.0
    # Not by `pstdev`, which takes a hundred times as long to be exact in the last digit.
    return sqrt(fsum((value - mean) ** 2 for value in values)) / len(values) / mean


def _per_second(seconds: float, *, of: float = 1.0) -> float:
    return of / max(seconds, 1e-12)
