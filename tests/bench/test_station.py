"""A system in a process of its own: answers, errors, death and silence."""

from __future__ import annotations

import os

import pytest

from fastfeed_bench.model import System
from fastfeed_bench.station import Station, StationError


def system(kind: str, **settings) -> System:
    return System(kind, f"bench_systems:{kind}", {"value": 3.0, **settings})


def opened(kind: str, **more) -> Station:
    made = system(kind)
    return Station(made, made.settings, **more)


def test_a_station_answers_from_a_process_of_its_own(system_path, leak_gauge):
    """Runs and evidence cross as JSON, whatever the library prints."""
    with opened("Steady") as station:
        assert station.note == "version 1"
        assert station.run() == {"value": 3.0, "extra_mb": 2.0}
        assert station.evidence()["pid"] != os.getpid()


def test_an_error_names_type_and_first_line(system_path):
    """An exception in a run is an error of the station, which stays usable."""
    with opened("Failing") as station:
        with pytest.raises(StationError, match=r"^ValueError: no such picture$"):
            station.run()
        assert station.evidence()["digest"] == "abc"


def test_a_missing_library_fails_at_opening(system_path, leak_gauge):
    """A system that cannot be opened leaves nothing behind."""
    with pytest.raises(StationError, match="No module named 'peerlib'"):
        opened("missing")


def test_death_is_noticed_with_the_last_words(system_path, leak_gauge):
    """A killed process is reported with its signal and what it said last."""
    with opened("Dying") as station, pytest.raises(StationError, match=r"SIGKILL: last words"):
        station.run()


def test_silence_has_an_end(system_path, leak_gauge):
    """A system that never answers is ended at the limit."""
    with opened("Hanging", limit_s=5.0) as station:
        station._limit_s = 0.2
        with pytest.raises(StationError, match="no answer within"):
            station.run()
