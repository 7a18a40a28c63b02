"""All checks of one look, the machine they belong to, and the verdict: what to do first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from fastfeed.doctor.check_cores import check_cores, check_governor
from fastfeed.doctor.check_gpu import check_processes, check_throttling, check_use
from fastfeed.doctor.check_kernels import check_kernels
from fastfeed.doctor.check_link import check_link, check_negotiated
from fastfeed.doctor.check_memory import check_memory
from fastfeed.doctor.check_network import check_network
from fastfeed.doctor.check_place import check_placement, check_topology
from fastfeed.doctor.check_storage import check_access, check_disks
from fastfeed.doctor.facts import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastfeed.doctor.check import Check
    from fastfeed.doctor.seen import Seen

CHECKS: Final = (
    check_use,
    check_processes,
    check_link,
    check_negotiated,
    check_topology,
    check_cores,
    check_disks,
    check_access,
    check_governor,
    check_placement,
    check_throttling,
    check_kernels,
    check_network,
    check_memory,
)
# What is mended first. A look at the wrong process explains nothing; then the platform, the link
# before any advice about cores; then what the job itself does.
_ORDER: Final = (2, 4, 3, 11, 14, 10, 9, 13, 7, 8, 12, 6, 1, 5)


@dataclass(frozen=True, slots=True)
class Report:
    """What one look found."""

    checks: tuple[Check, ...]
    verdict: str
    machine: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Return the report for JSON, as `--json` prints it."""
        return {
            "checks": [asdict(check) for check in self.checks],
            "verdict": self.verdict,
            "machine": dict(self.machine),
        }


def examine(seen: Seen) -> Report:
    """Run all checks over one look."""
    checks = tuple(check(seen) for check in CHECKS)
    return Report(checks, judge(checks), describe(seen))


def judge(checks: Sequence[Check]) -> str:
    """Return in words what to do first, and what could not be seen."""
    by_id = {check.id: check for check in checks}
    ordered = [by_id[number] for number in _ORDER if number in by_id]
    unknown = [check.name for check in checks if check.status == "unknown"]
    first = next((c for status in ("bad", "warn") for c in ordered if c.status == status), None)
    parts: list[str] = []
    if first is not None:
        # The worst finding of a check and its advice come first; one thing is done at a time.
        advice, finding = (text.partition("; ")[0] for text in (first.advice, first.finding))
        parts.append(f"First: {advice or 'look at it'}. Because {finding}.")
        others = [c.name for c in ordered if c.status in {"bad", "warn"} and c is not first]
        if others:
            parts.append(f"Then look at: {', '.join(others)}.")
    elif len(unknown) == len(checks):
        return "Nothing could be seen, so nothing is known."
    else:
        parts.append("Nothing that was seen holds the GPU up.")
    if len(by_id) == len(CHECKS) and (cause := _cause(by_id)):
        parts.append(cause)
    if unknown:
        parts.append(f"Not seen ({len(unknown)} of {len(checks)}): {', '.join(unknown)}.")
    return " ".join(parts)


def _cause(checks: Mapping[int, Check]) -> str:
    """Return what a GPU that waits points to: the launching thread, the cores, or the storage."""
    use, cores = checks[1].evidence, checks[6].evidence
    patterns = {value for name, value in use.items() if name.endswith(" pattern")}
    if not patterns & {"bursts", "starved", "low"}:
        return ""
    slow_storage = any(checks[number].status in {"bad", "warn"} for number in (7, 13))
    if cores.get("job's busiest thread pattern") == "launching":
        cause = "one thread launches: it is bound by submission"
    elif cores.get("pattern") == "all cores":
        cause = "all cores work: it is bound by preprocessing"
    elif cores.get("pattern") == "one core":
        cause = "one core works: launches, or Python's one thread, hold it up"
    elif slow_storage:
        cause = "storage is slow and no core is full: it is bound by storage"
    else:
        cause = (
            "no core is full: look at synchronisation, at the batch size, and in loader.report() "
            "for the wait for input"
        )
    return f"A GPU waits while {cause}."
