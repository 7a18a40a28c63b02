"""Traces are whole JSON files whose spans lie in each other or beside, on every track."""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import exports
from fastfeed.errors import OptionError, StorageError
from fastfeed.exports.timeline import Timeline
from fastfeed.stats import Delivery, StageTimes

SECONDS = st.floats(0, 100)


def spans_by_track(events):
    """The spans of each track as (start, end, name) in nanoseconds."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, end, event["name"]))
    return tracks


def assert_nested(spans):
    """Two spans of one track lie in each other or beside."""
    open_ends = []
    for start, end, _ in sorted(spans, key=lambda span: (span[0], -span[1])):
        assert start < end
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)


def names_of(document):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }


@given(
    st.lists(
        st.tuples(
            SECONDS,
            SECONDS,
            st.integers(-1, 2),
            st.tuples(SECONDS, SECONDS, SECONDS, SECONDS),
            SECONDS,
            st.none() | st.dictionaries(st.sampled_from(["read", "decode", "device"]), SECONDS),
            st.none() | st.tuples(SECONDS, SECONDS),
        ),
        max_size=40,
    )
)
def test_spans_lie_in_each_other_or_beside(given_):
    """Whatever the clocks say, no two spans of a track overlap halfway."""
    asked, deliveries = 0.0, []
    for number, (gap, wait, worker, times, busy, steps, stage) in enumerate(given_):
        asked += gap
        moved = None if stage is None else StageTimes(*stage, 0.0, 0.0, 0.0)
        deliveries.append(
            Delivery(asked, asked + wait, number, 8, 0, False, worker, busy, times, steps, moved)
        )
        asked += wait
    events = list(Timeline().events(deliveries))
    for spans in spans_by_track(json.loads(json.dumps(events))).values():
        assert_nested(spans)


def test_trace_shows_loop_stage_and_workers(fake_loader, tmp_path):
    """Each of them has a track, on the clock of the deliveries, with the steps inside batches."""
    path = tmp_path / "trace.json"
    with exports.trace(fake_loader, path):
        for _ in range(4):
            fake_loader.deliver(stage=True, steps_s={"read": 0.1, "decode": 0.3, "device": 0.1})
    document = json.loads(path.read_text())
    names, tracks = names_of(document), spans_by_track(document["traceEvents"])
    shown = {names[track]: {name for _, _, name in spans} for track, spans in tracks.items()}
    assert shown == {
        "the loop": {"wait for a batch", "training step"},
        "device stage": {"to the device"},
        "worker 0": {"send", "wait for a job", "batch 0", "batch 2", "read", "decode", "slots"},
        "worker 1": {"send", "wait for a job", "batch 1", "batch 3", "read", "decode", "slots"},
    }
    loop = next(spans for track, spans in tracks.items() if names[track] == "the loop")
    assert sorted(loop)[:3] == [
        (0, 250_000_000, "wait for a batch"),
        (250_000_000, 1_000_000_000, "training step"),
        (1_000_000_000, 1_250_000_000, "wait for a batch"),
    ]


def test_a_trace_is_whole_after_each_write(fake_loader, tmp_path):
    """The file can be read before the first batch, between writes, and after the last."""
    path = tmp_path / "trace.json"
    counts = []
    with exports.trace(fake_loader, path) as export:
        for number in range(600):
            if number % 200 == 0:
                counts.append(len(json.loads(path.read_text())["traceEvents"]))
            fake_loader.deliver()
    assert export.closed
    waits = [
        event
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "wait for a batch"
    ]
    assert [event["args"]["batch"] for event in waits] == list(range(600))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_trace_ends_after_so_many_batches(fake_loader, tmp_path):
    """What comes after the last of them is not kept, and a closed trace takes nothing more."""
    path = tmp_path / "trace.json"
    export = exports.trace(fake_loader, path, batches=3)
    for _ in range(5):
        fake_loader.deliver()
    text = path.read_text()
    assert text.count("wait for a batch") == 3
    export.close()
    fake_loader.deliver()
    export.close()
    assert path.read_text() == text


def test_a_full_disk_leaves_what_was_written(fake_loader, tmp_path, caplog):
    """Where a write finds no room the file stays as it was, and says no more."""
    path = tmp_path / "trace.json"
    with exports.trace(fake_loader, path) as export:
        for _ in range(256):
            fake_loader.deliver()
        text = path.read_text()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) + 1000, limits[1]))
        try:
            for _ in range(256):
                fake_loader.deliver()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        fake_loader.deliver()
    assert export.closed
    assert path.read_text() == text
    assert json.loads(text)
    assert "ends here: File too large" in caplog.text


def test_a_trace_ends_with_its_loader(fake_loader, tmp_path, leak_gauge):
    """What was kept is written when the loader goes away; that takes no descriptor meanwhile."""
    path = tmp_path / "trace.json"
    loader = type(fake_loader)()
    export = exports.trace(loader, path)
    loader.deliver()
    assert "wait for a batch" not in path.read_text()
    del loader
    assert export.closed
    assert "wait for a batch" in path.read_text()


def test_a_fork_does_not_write(fake_loader, tmp_path):
    """A forked copy of the trainer ends without adding what it holds a copy of."""
    path = tmp_path / "trace.json"
    with exports.trace(fake_loader, path) as export:
        fake_loader.deliver()
        child = os.fork()
        if child == 0:
            export.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert "wait for a batch" not in path.read_text()
    assert path.read_text().count("wait for a batch") == 1


def test_a_trace_that_cannot_be_written_says_so(fake_loader, tmp_path, caplog):
    """A wrong name is an error at once; a file that goes away later is a warning, once."""
    with pytest.raises(StorageError, match="cannot be written"):
        exports.trace(fake_loader, tmp_path / "missing" / "trace.json")
    with pytest.raises(OptionError, match="batches=0"):
        exports.trace(fake_loader, tmp_path / "trace.json", batches=0)
    path = tmp_path / "trace.json"
    with exports.trace(fake_loader, path):
        path.unlink()
        for _ in range(600):
            fake_loader.deliver()
    assert len(caplog.records) == 1
    assert "ends here" in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_kind": "thread"}],
    ids=["none", "processes", "threads"],
)
def test_trace_of_a_real_loader(small_loader, tmp_path, options, leak_gauge):
    """Batches lie before the loop had them, on the clock of the loop, in each kind of worker."""
    path = tmp_path / "trace.json"
    loader = small_loader(**options)
    with exports.trace(loader, path):
        assert len(list(loader)) == 8
    document = json.loads(path.read_text())
    names, tracks = names_of(document), spans_by_track(document["traceEvents"])
    for spans in tracks.values():
        assert_nested(spans)
    loop = {names[track]: spans for track, spans in tracks.items()}["the loop"]
    got = sorted(end for _, end, name in loop if name == "wait for a batch")
    made = {
        int(name.split()[1]): end
        for track, spans in tracks.items()
        if names[track].startswith("worker")
        for _, end, name in spans
        if name.startswith("batch ")
    }
    if options["num_workers"]:
        assert sorted(made) == list(range(8))
        assert all(made[number] <= got[number] for number in range(8))
    else:
        assert sum(name == "fetch" for _, _, name in loop) == 8
