"""Finds each system's best settings once per machine, and remembers them."""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfeed_bench.station import StationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fastfeed_bench.harness import Turns
    from fastfeed_bench.model import Case, Settings, System

_RUNS = 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """Chooses among candidates by measuring each; the choice is cached per machine."""

    cache: Path
    machine: Mapping[str, Any]
    """Its description; another processor or another version of a library is tuned anew."""
    start: Callable[[System, Settings], Turns]
    higher_is_better: bool
    measure: bool = True
    """Without measuring, systems that are not in the cache get their first candidate."""

    def choose(self, case: Case, system: System) -> Settings:
        """Return the system's settings with its best candidate in them."""
        if len(system.candidates) == 1:
            return {**system.settings, **system.candidates[0]}
        key = self._key(case, system)
        known = self._load()
        if key not in known:
            if not self.measure:
                return {**system.settings, **system.candidates[0]}
            known = {**self._load(), key: self._best(system)}
            self._save(known)
        return {**system.settings, **known[key]}

    def _best(self, system: System) -> Settings:
        figures: list[tuple[float, Settings]] = []
        failure: StationError | None = None
        for candidate in system.candidates:
            try:
                with self.start(system, {**system.settings, **candidate}) as station:
                    station.run()
                    values = [station.run()["value"] for _ in range(_RUNS)]
            except StationError as error:
                failure = error
            else:
                figures.append((statistics.median(values), candidate))
        if not figures:
            raise failure or StationError("it has no candidates")
        pick = max if self.higher_is_better else min
        return pick(figures, key=lambda figure: figure[0])[1]

    def _key(self, case: Case, system: System) -> str:
        # Sizes of the work do not move the choice; paths and counts are left out of the key.
        work = case.tuned_as or case.name
        parts = (self.machine, work, system.name, system.target, system.candidates)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def _load(self) -> dict[str, Settings]:
        try:
            known = json.loads(self.cache.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _save(self, known: Mapping[str, Settings]) -> None:
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        partial = self.cache.with_suffix(".partial")
        partial.write_text(json.dumps(known, indent=1, sort_keys=True))
        partial.replace(self.cache)
