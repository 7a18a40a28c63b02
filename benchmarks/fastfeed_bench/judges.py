"""Judges of equal work for systems that must deliver the very same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed_bench.model import OURS, Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Evidence


def judge_same(evidence: Mapping[str, Evidence]) -> dict[str, Finding]:
    """Find equal what delivered the same as fastfeed did, in every figure of the evidence.

    The evidence may say less for a reference (it may not know of samples), but nothing else.
    """
    first = evidence.get(OURS) or next(iter(evidence.values()))
    return {name: _compare(found, first) for name, found in evidence.items()}


def _compare(found: Evidence, first: Evidence) -> Finding:
    wrong = [
        f"{name} {value}, not {first[name]}"
        for name, value in found.items()
        if first.get(name) != value
    ]
    # Nothing is never equal, not even to nothing.
    if not found or 0 in found.values():
        wrong = ["nothing was delivered"]
    return Finding(not wrong, f"NOT EQUAL: {'; '.join(wrong)}" if wrong else "")
