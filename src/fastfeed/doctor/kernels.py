"""Kernels of a training step, counted in a trace that torch.profiler wrote; no torch is needed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastfeed.doctor.document import read_document
from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# A trace of a few steps has some megabytes; one of a whole epoch would fill memory.
LONGEST: Final = 256 << 20
_STEP = "ProfilerStep#"


@dataclass(frozen=True, slots=True)
class Kernels:
    """What ran on the GPUs in a trace."""

    count: int
    steps: int
    """Steps that the profiler marked; 0 if it marked none."""
    median_us: float
    busy_share: float
    """Part of the time from the first kernel to the last in which one ran."""
    gap_us: float
    """Median of the gaps in which none ran; 0.0 without any."""


def read_kernels(path: Path) -> Kernels:
    """Count the kernels of a Chrome trace, plain or .gz; OptionError if it is none."""
    document, why = read_document(path, longest=LONGEST)
    if why:
        raise _refused(path, why)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise _refused(path, "it holds no events")
    return count_kernels(event for event in events if isinstance(event, dict))


def _refused(path: Path, why: str) -> OptionError:
    return OptionError(
        f"the trace {path.name!r} cannot be used: {why}",
        way_out="Export a few steps with torch.profiler's export_chrome_trace",
    )


def count_kernels(events: Iterable[dict[str, Any]]) -> Kernels:
    """Count the kernels among the events of a Chrome trace; times there are microseconds."""
    spans: list[tuple[float, float]] = []
    steps: set[str] = set()
    for event in events:
        name, begin, length = event.get("name"), event.get("ts"), event.get("dur")
        if isinstance(name, str) and name.startswith(_STEP):
            steps.add(name)
        if event.get("cat") != "kernel" or not isinstance(begin, int | float):
            continue
        if isinstance(length, int | float) and 0 <= length < 1e12 and abs(begin) < 1e18:
            spans.append((float(begin), float(begin + length)))
    if not spans:
        return Kernels(0, len(steps), 0.0, 0.0, 0.0)
    spans.sort()
    gaps, busy, end = [], 0.0, spans[0][0]
    for begin, stop in spans:
        if begin > end:
            gaps.append(begin - end)
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    whole = end - spans[0][0]
    return Kernels(
        len(spans),
        len(steps),
        statistics.median(stop - begin for begin, stop in spans),
        busy / whole if whole else 1.0,
        statistics.median(gaps) if gaps else 0.0,
    )
