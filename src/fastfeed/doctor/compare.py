"""What differs between two nodes that should be the same, from their reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastfeed.doctor.document import read_document
from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_LONGEST: Final = 256 << 20
# What belongs to the look and not to the node.
_OF_THE_LOOK: Final = frozenset({"job", "looked_s", "cores.why"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two reports tell differently; None is what a report does not have."""

    name: str
    a: object
    b: object


def read_report(path: Path) -> dict[str, Any]:
    """Return a report from what `--json` printed or `--capture` wrote; OptionError if none."""
    document, why = read_document(path, longest=_LONGEST)
    if why:
        raise _refused(path, why)
    if isinstance(document, dict) and isinstance(document.get("otherData"), dict):
        document = document["otherData"].get("report")
    if not isinstance(document, dict) or not isinstance(document.get("machine"), dict):
        raise _refused(path, "it is no report")
    return document


def _refused(path: Path, why: str) -> OptionError:
    return OptionError(
        f"{path.name!r} cannot be compared: {why}",
        way_out="Give two files that `fastfeed doctor --json` or `--capture` made",
    )


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Return where two reports differ: the machines first, then what the checks found."""
    first, second = dict(_flat(a.get("machine"))), dict(_flat(b.get("machine")))
    names = [name for name in dict.fromkeys([*first, *second]) if name not in _OF_THE_LOOK]
    found = [
        Difference(name, first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name) and name.partition(".")[0] not in _OF_THE_LOOK
    ]
    ours, theirs = _statuses(a), _statuses(b)
    return found + [
        Difference(name, ours.get(name), theirs.get(name))
        for name in dict.fromkeys([*ours, *theirs])
        if (ours.get(name) or "").partition(":")[0] != (theirs.get(name) or "").partition(":")[0]
    ]


def _statuses(report: Mapping[str, Any]) -> dict[str, str]:
    """Return `status: finding` by check; findings alone differ with every look."""
    checks = report.get("checks")
    return {
        f"check {check.get('id')}, {check.get('name')}": (
            f"{check.get('status')}: {check.get('finding')}"
        )
        for check in (checks if isinstance(checks, list) else ())
        if isinstance(check, dict)
    }


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document by their path in it."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for index, part in enumerate(value):
            yield from _flat(part, f"{name}[{index}]")
    else:
        yield name, value
