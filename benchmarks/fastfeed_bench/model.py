"""The values that describe a benchmark: its cases, the systems in each, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

Settings = Mapping[str, Any]
"""What a system is told, as JSON can carry it."""
Evidence = Mapping[str, Any]
"""What a system delivered, in figures that another system's can be compared with."""

OURS = "fastfeed"


@dataclass(frozen=True, slots=True)
class System:
    """One way to do the work of a case."""

    name: str
    target: str
    """`module:function` that takes the settings and returns a `Session`."""
    settings: Settings
    candidates: tuple[Settings, ...] = ({},)
    """Settings to choose from by measuring; the first are the defaults."""
    role: Literal["ours", "peer", "reference"] = "peer"
    """A reference is measured and compared with, but is no peer in the case's ratio."""
    about: str = ""
    """What a reader of the row has to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether one system did the work of the case, and the figures behind that."""

    equal: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: the same work for all its systems."""

    name: str
    systems: tuple[System, ...]
    judge: Callable[[Mapping[str, Evidence]], Mapping[str, Finding]]
    """Compares the evidence of the systems that ran, by name of the system."""
    tuned_as: str = ""
    """Cases with the same words here share the settings that are found with the first of them."""
    unit: str = ""
    """Of this case's figures, where it is not the benchmark's."""
    higher_is_better: bool | None = None
    """The same; None for the benchmark's."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a benchmark may use while it prepares its cases."""

    work: Path
    """Folder for data that is made once."""
    photos: Path | None
    """Folder of source photos; None for the repository's own."""
    quick: bool


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named measurement."""

    name: str
    unit: str
    higher_is_better: bool
    summary: str
    cases: Callable[[Context], list[Case]]
    peers: tuple[str, ...]
    """Names of the peers and references in its cases."""
    finish: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """Adds to the result what no system knows of itself."""


class Session(Protocol):
    """A system that is ready to run, in its own process."""

    @property
    def note(self) -> str:
        """Version and settings, for the row."""
        ...

    def run(self) -> Mapping[str, float]:
        """Do the work once; `value` is the figure, anything else is shown beside it."""
        ...

    def evidence(self) -> Evidence:
        """Do the work once and describe what was delivered."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...
