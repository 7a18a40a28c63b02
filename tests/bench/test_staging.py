"""The link that staging is measured over, and each of its measures on a few small shards."""

from __future__ import annotations

import http.client

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.staging.eviction import hits_at_best
from fastfeed_bench.benchmarks import staging
from fastfeed_bench.judges import judge_same
from fastfeed_bench.link import Link, Request, in_series
from fastfeed_bench.model import OURS, Context
from fastfeed_bench.systems.staging import fastfeed_session
from fastfeed_bench.systems.staging_bounds import Bound, Download, Simulated, Steps
from fastfeed_bench.systems.staging_measures import MEASURES


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Six small shards, and what a system is told of them; the link has no limits."""
    context = Context(work=tmp_path_factory.mktemp("work"), photos=None, quick=True)
    settings = staging._settings(context, shards=6, per_shard=4)
    return {**settings, "rate": 0.0, "latency": 0.0, "batch": 3, "workers": 0}


@pytest.fixture
def opened(monkeypatch):
    """Open sessions of which all are closed at the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent")  # a session sets it for its process
    sessions = []

    def open_session(kind, settings):
        sessions.append(kind(settings))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


def ask(link, path, asked=None):
    """Return status, body and range of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", link.port, timeout=30)
    connection.request("GET", path, headers={"Range": asked} if asked else {})
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers["Content-Range"]
    connection.close()
    return found


def test_the_link_serves_ranges_and_notes_each_request(tmp_path):
    """Whole files and ranges, at a rate or not; what is not there, or outside, is refused."""
    (tmp_path / "far").mkdir()
    content = bytes(range(256)) * 1000
    (tmp_path / "far" / "a.tar").write_bytes(content)
    (tmp_path / "secret").write_bytes(b"not served")
    with Link(str(tmp_path / "far"), rate=1e9, latency=0.001) as link:
        assert ask(link, "/a.tar") == (200, content, None)
        assert ask(link, "/a.tar", "bytes=10-99")[:2] == (206, content[10:100])
        last = ask(link, "/a.tar", "bytes=255000-999999")
        assert last == (206, content[255_000:], "bytes 255000-255999/256000")
        assert ask(link, "/a.tar", "bytes=256000-256001")[0] == 416
        assert ask(link, "/b.tar")[0] == ask(link, "/../secret")[0] == 404
        log = link.take_log()
        assert [one.nbytes for one in log] == [256_000, 90, 1000, 0, 0]
        assert in_series(log) == 5
        assert link.take_log() == []


def test_a_link_that_does_not_start_says_so(tmp_path):
    """A server that ends before it has a port is an error, and leaves no process."""
    with pytest.raises(RuntimeError, match="ended"):
        Link(str(tmp_path), rate=float("nan"), latency="x")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=12))
def test_requests_in_series_are_the_longest_chain(times):
    """As many as can follow one another; compared with trying out all chains."""
    requests = [Request("", begin, begin + length, 1) for begin, length in times]

    def longest(after):
        following = (1 + longest(one.end) for one in requests if one.begin >= after)
        return max(following, default=0)

    assert in_series(requests) == longest(-1)


def test_a_first_batch_takes_three_requests_in_series(shards, opened):
    """Ours and the plain requests beside it: manifest, indexes, samples."""
    shards = {**shards, "latency": 0.3}  # so long that requests sent at once overlap
    ours = opened(fastfeed_session, {**shards, "measure": "first batch"})
    plain = opened(Steps, shards)
    bounds = plain.evidence()
    assert bounds == {"samples": 3, "bytes": 300_000, "in_series": 3}
    found = ours.evidence()
    assert (found["samples"], found["bytes"]) == (3, 300_000)
    assert found["in_series"] <= 3


def test_a_start_with_more_rounds_is_not_equal():
    """The judge names what is wrong: the size of a batch, and rounds of ours beyond three."""
    right = {"samples": 64, "bytes": 6_400_000, "in_series": 3}
    found = staging._judge_start(
        {OURS: {**right, "in_series": 4}, "rounds": right, "peer": {**right, "samples": 63}}
    )
    assert [found[name].equal for name in (OURS, "rounds", "peer")] == [False, True, False]
    assert "4 requests in series" in found[OURS].note


@pytest.mark.parametrize("measure", ["first epoch", "later epoch", "memory"])
def test_epochs_deliver_every_sample(shards, opened, measure):
    """From afar, from the shelf and from the folder the same samples come."""
    seen = {OURS: opened(fastfeed_session, {**shards, "measure": measure})}
    if measure == "first epoch":
        seen["link"] = opened(Download, shards)
    elif measure == "later epoch":
        seen["local"] = opened(fastfeed_session, {**shards, "measure": measure, "local": True})
    else:
        seen["aim"] = opened(Bound, {"why": "", "value": 96, "samples": shards["samples"]})
    found = judge_same({name: session.evidence() for name, session in seen.items()})
    assert all(one.equal for one in found.values())
    for session in seen.values():
        figures = session.run()
        assert figures["value"] > 0 or measure == "memory"
        assert not figures.get("requests")


def test_hits_are_near_the_optimum(shards, opened):
    """A shelf of half the data set, against both rules over the same needs."""
    settings = {**shards, "epochs": 3, "room": shards["nbytes"] // 2, "batch": 1}
    ours = opened(fastfeed_session, {**settings, "measure": "half shelf"})
    rules = {name: opened(Simulated, {**settings, "rule": name}) for name in ("optimum", "lru")}
    assert ours.evidence() == rules["lru"].evidence() == {"needs": 12}
    best, recency = (rules[name].run()["value"] for name in ("optimum", "lru"))
    assert recency <= best == 100 * hits_at_best(rules["optimum"]._needs, 3) / 12
    assert recency - 100 <= ours.run()["value"] <= 100


def test_cases_are_told_what_their_systems_read(tmp_path, monkeypatch):
    """Every case has ours, a bound, and units of its own where it needs them."""
    told = {"samples": 8, "nbytes": 1 << 30}
    monkeypatch.setattr(staging, "_settings", lambda *_, **more: {**told, **more})
    cases = staging.BENCHMARK.cases(Context(tmp_path, None, quick=False))
    assert len(cases) == 6
    for case in cases:
        assert case.systems[0].name == OURS
        assert {s.name for s in case.systems[1:]} <= set(staging.BENCHMARK.peers)
        assert any(s.role == "reference" for s in case.systems)
        assert case.systems[0].settings["measure"] in MEASURES
