"""A trace and a profile of one run become one file, with their events at the same moments."""

from __future__ import annotations

import gzip
import json

import pytest
from torch.profiler import ProfilerActivity, profile

from fastfeed import exports
from fastfeed.errors import OptionError, StorageError

# Microseconds by which two clocks and what happens between two looks at them may differ.
NEAR = 20_000


def spans(document, name):
    """The spans of that name as (process, start, end), in microseconds."""
    return [
        (event["pid"], event["ts"], event["ts"] + event["dur"])
        for event in document["traceEvents"]
        if event.get("ph") == "X" and event["name"] == name
    ]


def test_steps_of_a_profile_lie_in_the_spans_of_the_trace(small_loader, tmp_path):
    """What torch.profiler saw as fastfeed.fetch is inside of the loop's waits, moment by moment."""
    loader = small_loader()
    trace, seen, both = (tmp_path / name for name in ("trace.json", "seen.json", "both.json"))
    with (
        exports.trace(loader, trace),
        exports.profiler(loader),
        profile(activities=[ProfilerActivity.CPU]) as profiled,
    ):
        assert len(list(loader)) == 8
    profiled.export_chrome_trace(str(seen))
    exports.join(trace, seen, both)
    document = json.loads(both.read_text())
    waits, fetches = spans(document, "wait for a batch"), spans(document, "fastfeed.fetch")
    assert len(waits) == len(fetches) == 8
    for (_, asked, got), (_, start, end) in zip(waits, fetches, strict=True):
        assert asked - NEAR <= start
        assert end <= got + NEAR
    assert not {one[0] for one in waits} & {one[0] for one in fetches}
    names = [
        one["args"]["name"] for one in document["traceEvents"] if one["name"] == "process_name"
    ]
    assert {"fastfeed: trainer", "fastfeed: workers"} <= set(names)


@pytest.fixture
def trace(fake_loader, tmp_path):
    """A trace of two batches."""
    path = tmp_path / "trace.json"
    with exports.trace(fake_loader, path):
        fake_loader.deliver()
        fake_loader.deliver()
    return path


def test_clocks_are_made_one_to_the_nanosecond(trace, tmp_path):
    """A profile that counts from a base, and one that does not, get the trace at the same time."""
    ahead = json.loads(trace.read_text())["otherData"]["unix_ns_minus_clock"]
    found = []
    for base in (0, 1_790_000_000_000_000_000):
        profiled = tmp_path / "seen.json.gz"
        document = {"traceEvents": [{"ph": "i", "name": "x", "pid": "Spans", "ts": 1}]}
        if base:
            document["baseTimeNanoseconds"] = base
        profiled.write_bytes(gzip.compress(json.dumps(document).encode()))
        exports.join(trace, profiled, tmp_path / "both.json")
        joined = json.loads((tmp_path / "both.json").read_text())
        assert joined["traceEvents"][0] == document["traceEvents"][0]
        found.append([base / 1e3 + one for _, one, _ in spans(joined, "wait for a batch")])
    assert found[0] == pytest.approx(found[1])
    assert found[0] == pytest.approx([ahead / 1e3, ahead / 1e3 + 1e6])


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"traceEvents": 1}', "\x1f\x8b", "\x1f\x8b\x08\x00" + "x" * 30]
)
def test_other_files_are_refused(trace, tmp_path, content):
    """What is no trace is named, whichever of the two it is."""
    other = tmp_path / "other.json"
    other.write_bytes(content.encode("latin-1"))
    for files in ((trace, other), (other, trace)):
        with pytest.raises(OptionError, match=r"other\.json.*no trace"):
            exports.join(*files, tmp_path / "both.json")
    assert not (tmp_path / "both.json").exists()


def test_the_order_of_the_two_is_said(trace, tmp_path):
    """A profile in the place of the trace has no clock of ours."""
    profiled = tmp_path / "seen.json"
    profiled.write_text('{"traceEvents": []}')
    with pytest.raises(OptionError, match=r"which clock.*ff\.exports\.trace first"):
        exports.join(profiled, trace, tmp_path / "both.json")


def test_files_that_are_not_there(trace, tmp_path):
    """What cannot be read or written is a StorageError with its name."""
    with pytest.raises(StorageError, match=r"cannot read 'gone\.json'"):
        exports.join(trace, tmp_path / "gone.json", tmp_path / "both.json")
    with pytest.raises(StorageError, match=r"cannot write 'both\.json'"):
        exports.join(trace, trace, tmp_path / "gone" / "both.json")
