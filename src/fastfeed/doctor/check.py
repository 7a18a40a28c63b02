"""The finding of one check, and how several findings of one check become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Status = Literal["ok", "warn", "bad", "unknown"]
Figure = int | float | str | None

# What could not be seen hides trouble, so it outweighs what was seen to be well.
_WORST_FIRST: Final[tuple[Status, ...]] = ("bad", "warn", "unknown", "ok")


@dataclass(frozen=True, slots=True)
class Check:
    """What one check of docs/doctor.md found."""

    id: int
    name: str
    status: Status
    """"unknown" is never a pass; the finding then says why it is not known."""
    finding: str
    evidence: Mapping[str, Figure]
    """The figures behind the finding, by name; stable names, so that two nodes can be compared."""
    advice: str
    """What to do; empty if there is nothing to do."""


class Findings:
    """Collects what one check finds on several subjects; the worst decides the status."""

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._findings: list[tuple[Status, str, str]] = []
        self._evidence: dict[str, Figure] = {}

    def add(self, status: Status, finding: str, advice: str = "") -> None:
        """Add a finding and what to do about it."""
        self._findings.append((status, finding, advice))

    def figure(self, name: str, value: Figure) -> None:
        """Add a figure; one that is not known is left out, and fractions are rounded."""
        if value is not None:
            self._evidence[name] = float(f"{value:.4g}") if isinstance(value, float) else value

    def check(self, otherwise: str) -> Check:
        """Return the check; `otherwise` is the finding where nothing worth telling was found."""
        found = self._findings or [("ok", otherwise, "")]
        status = min((status for status, _, _ in found), key=_WORST_FIRST.index)
        # Findings as bad as the status come first, then the lesser ones; what is well goes last
        # and only where nothing else is told.
        told = sorted(found, key=lambda one: _WORST_FIRST.index(one[0]))
        if status != "ok":
            told = [one for one in told if one[0] != "ok"]
        return Check(
            self._number,
            self._name,
            status,
            "; ".join(dict.fromkeys(finding for _, finding, _ in told)),
            self._evidence,
            "; ".join(dict.fromkeys(advice for _, _, advice in told if advice)),
        )
