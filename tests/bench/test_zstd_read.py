"""zstd-read: what the consumer of batches takes is told apart, and compared as such."""

from __future__ import annotations

import pytest

from fastfeed_bench.benchmarks.zstd_read import BENCHMARK
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.zstd_read import _ReadApart


def test_reading_is_told_apart(monkeypatch):
    """Each batch takes two seconds to come and three to be read."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def batches():
        for batch in range(5):
            now[0] += 2
            yield batch

    def consume(batch):
        assert batch in range(5)
        now[0] += 3
        return 10

    plain = LoaderSession("a note", 50, batches, consume, lambda: {"samples": 50})
    session = _ReadApart(plain)
    for _ in range(2):
        assert session.run() == {"value": pytest.approx(2), "unread": pytest.approx(5)}
    assert (session.note, session.evidence()) == ("a note", {"samples": 50})
    session.close()


def test_the_decompressor_is_compared_with_what_is_unread():
    """Only where both ran; the other cases stay as they are."""
    ours = {"system": "fastfeed", "median": 70, "unread": 90}
    plain = {"system": "zstd", "median": 100}
    cases = [{"rows": [ours, plain]}, {"rows": [ours]}, {"rows": [ours, {**plain, "median": None}]}]
    found = BENCHMARK.finish({"name": "zstd-read", "cases": cases})
    assert found["cases"] == [{"rows": [ours, plain], "of_zstd_unread": 0.9}, *cases[1:]]
