"""Runs the systems of a case in turns, A B A B, and turns their figures into rows and ratios."""

from __future__ import annotations

import statistics
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from fastfeed_bench.model import OURS, Finding
from fastfeed_bench.station import StationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from fastfeed_bench.model import Benchmark, Case, Evidence, Settings, System


class Turns(Protocol):
    """What the harness asks of a station; tests put fakes in its place."""

    @property
    def note(self) -> str:
        """Version and settings of the system."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, /, *_: object) -> None: ...

    def run(self) -> dict[str, float]:
        """Do one run and return its figures."""
        ...

    def evidence(self) -> Evidence:
        """Return what the system delivers."""
        ...


class Tuner(Protocol):
    """Chooses among a system's candidates."""

    def choose(self, case: Case, system: System) -> Settings:
        """Return the settings to open the system with."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """How cases are run."""

    start: Callable[[System, Settings], Turns]
    tuner: Tuner
    rounds: int
    higher_is_better: bool
    say: Callable[[str], None]
    """Told what happens, a line at a time."""


@dataclass(slots=True)
class _Row:
    """One system's figures while they are gathered."""

    system: System
    notes: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    extras: dict[str, list[float]] = field(default_factory=dict)
    failed: str | None = None

    def add(self, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            target = self.values if name == "value" else self.extras.setdefault(name, [])
            target.append(figure)

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values and not self.failed else None

    def as_json(self) -> dict[str, Any]:
        ran = self.median is not None
        return {
            "system": self.system.name,
            "median": _short(self.median) if ran else None,
            "min": _short(min(self.values)) if ran else None,
            "max": _short(max(self.values)) if ran else None,
            "n": len(self.values) if ran else 0,
            "note": self.failed or "; ".join(note for note in self.notes if note),
            **(
                {name: _short(statistics.median(seen)) for name, seen in self.extras.items()}
                if ran
                else {}
            ),
        }


def run_benchmark(
    benchmark: Benchmark, cases: Sequence[Case], bench: Bench, *, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Run all cases and return the result in the form that `--json` prints."""
    results = [run_case(case, bench) for case in cases]
    compared = [any(system.role == "peer" for system in case.systems) for case in cases]
    ratios = [result["ratio"] for result, wanted in zip(results, compared, strict=True) if wanted]
    result = {
        "name": benchmark.name,
        "unit": benchmark.unit,
        "higher_is_better": benchmark.higher_is_better,
        "machine": dict(machine),
        # Without a figure in one case that has peers there is no worst case.
        "ratio": None if None in ratios or not ratios else min(ratios),
        "equal": bool(results) and all(result["equal"] for result in results),
        "cases": results,
    }
    return benchmark.finish(result)


def run_case(case: Case, bench: Bench) -> dict[str, Any]:
    """Measure all systems of a case: open, evidence, one warm-up, then `rounds` runs in turns."""
    rows = {system.name: _Row(system) for system in case.systems}
    evidence: dict[str, Evidence] = {}
    with ExitStack() as stack:
        stations: dict[str, Turns] = {}
        for name, row in rows.items():
            bench.say(f"{case.name}: {name}: preparing")
            with _noting(row):
                settings = bench.tuner.choose(case, row.system)
                station = stack.enter_context(bench.start(row.system, settings))
                row.notes += [station.note, row.system.about]
                evidence[name] = station.evidence()
                station.run()
                stations[name] = station
        for turn in range(bench.rounds):
            for name, station in stations.items():
                if rows[name].failed:
                    continue
                bench.say(f"{case.name}: run {turn + 1} of {bench.rounds}: {name}")
                with _noting(rows[name]):
                    rows[name].add(station.run())
    ran = {name: found for name, found in evidence.items() if not rows[name].failed}
    findings = case.judge(ran) if ran else {}
    own = {"unit": case.unit, "higher_is_better": case.higher_is_better}
    higher = bench.higher_is_better if case.higher_is_better is None else case.higher_is_better
    for name in ran:
        rows[name].notes.append(findings.get(name, Finding(equal=False, note="not checked")).note)
    return {
        "case": case.name,
        **{name: value for name, value in own.items() if value not in {"", None}},
        "ratio": _ratio_to_best_peer(rows.values(), higher=higher),
        "equal": OURS in ran and all(n in findings and findings[n].equal for n in ran),
        "rows": [row.as_json() for row in rows.values()],
        **_reference_ratios(rows.values(), higher=higher),
    }


@contextmanager
def _noting(row: _Row) -> Iterator[None]:
    """Take a system's failure as the note of its row; the others go on."""
    try:
        yield
    except StationError as error:
        row.failed = f"could not run: {error}"


def _ratio_to_best_peer(rows: Collection[_Row], *, higher: bool) -> float | None:
    ours = next((row.median for row in rows if row.system.role == "ours"), None)
    peers = [row.median for row in rows if row.system.role == "peer" and row.median is not None]
    if ours is None or not peers:
        return None
    return _ratio(ours, max(peers) if higher else min(peers), higher=higher)


def _reference_ratios(rows: Collection[_Row], *, higher: bool) -> dict[str, float | None]:
    ours = next((row.median for row in rows if row.system.role == "ours"), None)
    return {
        f"of_{row.system.name.replace('-', '_')}": (
            None if ours is None or row.median is None else _ratio(ours, row.median, higher=higher)
        )
        for row in rows
        if row.system.role == "reference"
    }


def _ratio(ours: float, theirs: float, *, higher: bool) -> float | None:
    """Return how many times better we are; above 1 is better for us, whatever the unit."""
    above, below = (ours, theirs) if higher else (theirs, ours)
    if above == below:
        return 1.0
    return round(above / below, 3) if below else None


def _short(figure: float | None) -> float | None:
    return None if figure is None else float(f"{figure:.5g}")
