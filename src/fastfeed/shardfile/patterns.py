"""Expand what people write for a list of shards: `train-{000000..000146}.tar`, `a.tar::b.tar`.

Braces hold a range of numbers, padded as its ends are, or alternatives; several in one pattern
multiply. Nothing is taken from the environment and nothing is run.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 10_000_000
"""Names that one pattern may stand for; more is a slip of the pen."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern stands for, in order; OptionError if it is malformed."""
    if pattern.startswith("pipe:"):
        raise OptionError(f"{pattern!r}: shards are read, never run", way_out="Name their files")
    if "${" in pattern:
        raise OptionError(
            f"{pattern!r}: environment variables are not replaced",
            way_out="Put the value into the pattern",
        )
    return [name for part in pattern.split("::") for name in _expand_part(part, pattern)]


def _expand_part(part: str, pattern: str) -> list[str]:
    # Splitting by a group gives text and braces in turn.
    pieces = _BRACES.split(part)
    if not part or any(set(text) & set("{}") for text in pieces[::2]):
        raise OptionError(
            f"{pattern!r} is no pattern of shards",
            way_out="Write it as train-{000000..000146}.tar, {train,extra}.tar or a.tar::b.tar",
        )
    choices = [_choices(p, pattern) if i % 2 else (p,) for i, p in enumerate(pieces)]
    if prod(map(len, choices)) > LIMIT:
        raise _too_many(pattern)
    return ["".join(parts) for parts in product(*choices)]


def _choices(braces: str, pattern: str) -> Sequence[str]:
    ends = _RANGE.fullmatch(braces)
    if ends is None:
        return braces.split(",") if "," in braces else (f"{{{braces}}}",)
    first, last = int(ends[1]), int(ends[2])
    if last < first:
        raise OptionError(f"{pattern!r}: the range {braces} is empty", way_out="Swap its ends")
    if last - first >= LIMIT:
        raise _too_many(pattern)
    padded = any(len(end) > 1 and end.startswith("0") for end in ends.groups())
    width = max(map(len, ends.groups())) if padded else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _too_many(pattern: str) -> OptionError:
    return OptionError(f"{pattern!r} stands for more than {LIMIT:,} shards")
