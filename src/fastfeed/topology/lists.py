"""Lists of cores as the kernel writes them, "0-3,8", and back; no I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# No kernel numbers cores as high; a garbled range must not become gigabytes of integers.
HIGHEST = 1 << 16


def parse_cores(text: str) -> frozenset[int] | None:
    """Return the cores of a list such as "0-3,8"; an empty list is empty, a garbled one None."""
    cores: set[int] = set()
    if not text.strip():
        return frozenset()
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < HIGHEST:
            return None
        cores.update(range(first, last + 1))
    return frozenset(cores)


def core_text(cores: Iterable[int]) -> str:
    """Return cores as the kernel writes them, or "none"."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) or "none"
