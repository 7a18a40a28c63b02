"""What a trace of torch.profiler says of a few steps; pure functions over its events."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from fastfeed.doctor.kernels import count_kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Event = dict[str, Any]

_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS: Final = ("cuda_runtime", "cuda_driver")
# A wait ends a moment before or after the last kernel does, as two clocks see it.
_SLACK_US: Final = 5.0


class _Span(NamedTuple):
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """What ran on the device in some steps; times in microseconds."""

    kernels: int
    median_us: float
    gap_us: float
    busy_us: float
    """In which at least one kernel ran."""
    sync_gaps: float
    """Part of the time between work in which the host had been waiting for the device."""
    syncs: int
    sync_names: tuple[str, ...]
    filled: float
    """Of the device's processors, those that kernels had blocks for, over the kernels' time."""


@dataclass(frozen=True, slots=True)
class CopyTrace:
    """Copies to the device in some steps."""

    copies: int
    nbytes: float
    busy_us: float
    pageable: float


def kernel_trace(events: Sequence[Event]) -> KernelTrace:
    """Count kernels, the gaps between them, and the waits of the host before these."""
    whole = count_kernels(events)
    work = _spans(event for event in events if event.get("cat") in _WORK)
    calls = [event for event in events if event.get("cat") in _CALLS]
    gaps = _gaps(work)
    total = sum(gap.end - gap.begin for gap in gaps)
    over = max((span.end for span in work), default=0.0)
    # Who waits for the last work of all is whoever took the trace.
    named = [
        (span, str(event.get("name")))
        for event in calls
        if _waits_for_device(str(event.get("name")))
        for span in _spans([event])
        if span.end < over
    ]
    waits = [span for span, _ in named]
    synced = sum(gap.end - gap.begin for gap in gaps if _follows(gap, waits))
    names = Counter(name for _, name in named)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return KernelTrace(
        kernels=whole.count,
        median_us=whole.median_us,
        gap_us=whole.gap_us,
        busy_us=_covered(_spans(kernels)),
        sync_gaps=synced / total if total else 0.0,
        syncs=len(waits),
        sync_names=tuple(name for name, _ in names.most_common(3)),
        filled=_filled(kernels),
    )


def copy_trace(events: Iterable[Event]) -> CopyTrace:
    """Count the copies to the device."""
    copies = [
        event
        for event in events
        if event.get("cat") == "gpu_memcpy" and "HtoD" in str(event.get("name"))
    ]
    sizes = [_number(event, "bytes") for event in copies]
    pageable = sum(
        size
        for event, size in zip(copies, sizes, strict=True)
        if "Pageable" in str(event.get("name"))
    )
    return CopyTrace(
        copies=len(copies),
        nbytes=sum(sizes),
        busy_us=_covered(_spans(copies)),
        pageable=pageable / sum(sizes) if sum(sizes) else 0.0,
    )


def operators(events: Iterable[Event]) -> tuple[int, float]:
    """Return the number of operators that hold no other one, and their median in microseconds."""
    lanes: dict[Any, list[_Span]] = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            lanes.setdefault(event.get("tid"), []).extend(_spans([event]))
    lengths: list[float] = []
    for lane in lanes.values():
        lane.sort(key=lambda span: (span.begin, -span.end))
        # The last one holds no other; before it, who ends before the next begins.
        lengths += [one.end - one.begin for one, later in pairwise(lane) if later.begin >= one.end]
        lengths += [one.end - one.begin for one in lane[-1:]]
    return len(lengths), statistics.median(lengths) if lengths else 0.0


def _spans(events: Iterable[Event]) -> list[_Span]:
    spans = []
    for event in events:
        begin, length = event.get("ts"), event.get("dur")
        if _is_number(begin) and _is_number(length) and length >= 0:
            spans.append(_Span(float(begin), float(begin + length)))
    return sorted(spans)


def _gaps(spans: Sequence[_Span]) -> list[_Span]:
    gaps: list[_Span] = []
    end = spans[0].end if spans else 0.0
    for span in spans:
        if span.begin > end:
            gaps.append(_Span(end, span.begin))
        end = max(end, span.end)
    return gaps


def _covered(spans: Sequence[_Span]) -> float:
    """Return the time that at least one span covers."""
    if not spans:
        return 0.0
    whole = max(span.end for span in spans) - spans[0].begin
    return whole - sum(gap.end - gap.begin for gap in _gaps(spans))


def _follows(gap: _Span, waits: Sequence[_Span]) -> bool:
    """Say whether the host was waiting when the work before a gap came to its end."""
    return any(
        wait.begin <= gap.begin + _SLACK_US and gap.begin - _SLACK_US <= wait.end <= gap.end
        for wait in waits
    )


def _waits_for_device(name: str) -> bool:
    return "Synchronize" in name or name in {"cudaMemcpy", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"}


def _filled(kernels: Iterable[Event]) -> float:
    """Return the mean share of processors with blocks, weighed by time; 1.0 if nothing says."""
    time = filled = 0.0
    for event in kernels:
        arguments, length = event.get("args"), event.get("dur")
        if isinstance(arguments, dict) and _is_number(length):
            blocks = arguments.get("blocks per SM")
            if _is_number(blocks) and blocks > 0:
                time += length
                filled += length * min(1.0, blocks)
    return filled / time if time else 1.0


def _number(event: Event, name: str) -> float:
    arguments = event.get("args")
    value = arguments.get(name) if isinstance(arguments, dict) else None
    return float(value) if _is_number(value) else 0.0


def _is_number(value: Any) -> TypeGuard[float]:
    """Say whether it is a finite one; JSON as Python reads it has others."""
    return isinstance(value, int | float) and math.isfinite(value)
