"""Whatever files, GPUs and documents hold, the doctor answers; parsers read the kernel's texts."""

from __future__ import annotations

import gzip
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfeed.doctor import parse
from fastfeed.doctor.compare import differences
from fastfeed.doctor.gpus import GpuFacts, GpuSample
from fastfeed.doctor.kernels import LONGEST, count_kernels, read_kernels
from fastfeed.doctor.mounts import Mount, mount_of, mounts
from fastfeed.doctor.report import examine
from fastfeed.doctor.texts import LONGEST as LONGEST_TEXT
from fastfeed.doctor.texts import read_texts
from fastfeed.errors import OptionError

# Pieces of the real files, so that garbage reaches beyond the first test of each parser.
WORDS = st.sampled_from(
    [
        *(
            "cpu",
            "cpu0",
            "some",
            "full",
            "total=",
            "MemTotal:",
            "MemAvailable:",
            "kB",
            "nr_periods",
        ),
        *("-1", "0", "9", "16", "18446744073709551615", "9" * 30, "max", "powersave", "٣"),
        *("device", "mounted", "on", "with", "fstype", "nfs4", "READ:", "GETATTR:", "(", ")", ":"),
        *("0::/", "cpu,cpuacct", "../..", "N0=1", "N1=x", "kernelpagesize_kB=4", "TOTAL_ERR_COR"),
        *("0-7", "8-15", "x16", "32.0", "GT/s", "PCIe", "Cpus_allowed_list:", ""),
    ]
)
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.lists(st.lists(WORDS, max_size=16).map(" ".join), max_size=8).map(
        lambda lines: "\n".join(lines).encode()
    ),
)
NUMBERS = st.none() | st.integers(-5, 1 << 64)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_garbled_files(recorded, data):
    """Files that hold anything, before or after, never raise, and no check is without words."""
    names = data.draw(st.lists(st.sampled_from(sorted(recorded.files)), max_size=40, unique=True))
    before, after = dict(recorded.files), dict(recorded.later)
    recorded.files |= {name: data.draw(GARBAGE) for name in names}
    recorded.later |= {name: data.draw(GARBAGE) for name in names if data.draw(st.booleans())}
    report = examine(recorded.look(pid=4000))
    recorded.files, recorded.later = before, after
    assert [check.id for check in report.checks] == list(range(1, 15))
    assert all(check.finding for check in report.checks)
    json.loads(json.dumps(report.document(), allow_nan=False))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_garbled_gpus(recorded, data):
    """GPUs that tell anything or nothing never raise."""
    recorded.facts = (
        GpuFacts(
            0,
            data.draw(st.text(max_size=5)),
            data.draw(st.sampled_from([None, "0000:17:00.0", "0000:ff:00.0"])),
            generation_most=data.draw(NUMBERS),
            generation_able=data.draw(NUMBERS),
            width_most=data.draw(NUMBERS),
            clock_most=data.draw(NUMBERS),
            clock_asked=data.draw(NUMBERS),
            mig=data.draw(st.none() | st.booleans()),
        ),
    )
    fields = (
        "busy",
        "memory_used",
        "clock",
        "temperature",
        "reasons",
        "generation",
        "width",
        "replays",
    )
    recorded.rounds = [
        (GpuSample(0, **{field: data.draw(NUMBERS) for field in fields}),)
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    report = examine(recorded.look())
    assert all(check.finding for check in report.checks)


@given(GARBAGE.map(lambda raw: raw.decode("ascii", errors="replace")))
def test_parsers_take_any_text(text):
    """No parser raises, whatever a file holds."""
    parse.core_shares("cpu0 1 1 1 1", text)
    parse.pressure(text, text, 1.0)
    parse.counts(text)
    parse.disks(text)
    parse.task_stat(text)
    parse.interrupts(text)
    parse.node_bytes(text)
    parse.limit_of(text, "Max")
    assert all(".." not in folder.split("/") for folder in parse.cgroup_levels(text, "cpu"))
    assert all(mount.folder for mount in mounts(text) if mount.folder)


def test_process_names_may_hold_anything(texts):
    """A name with parentheses and control characters is read, and safe to print."""
    stat = parse.task_stat(texts.stat(7, name="a) (b\x1b[2J", user=5, core=3))
    assert (stat.name, stat.user, stat.core, stat.parent) == ("a) (b?[2J", 5, 3, 1)


def test_partitions_are_not_counted_twice():
    """A disk's partitions are left out; a disk whose name ends with a number is kept."""
    lines = [
        f" 8 0 {name} 5 0 8 1 0 0 0 0 0 1 1"
        for name in ("sda", "sda1", "nvme0n1", "nvme0n1p2", "dm-0", "loop3", "mmcblk0", "mmcblk0p1")
    ]
    assert set(parse.disks("\n".join(lines))) == {"sda", "nvme0n1", "dm-0", "mmcblk0"}


def test_cgroups_of_both_versions():
    """Levels go from the process's own up to the mount; another container's are none."""
    text = "4:memory:/job/a\n1:cpu,cpuacct:/job\n0::/x"
    assert parse.cgroup_levels(text, "cpu") == [
        "sys/fs/cgroup/cpu,cpuacct/job",
        "sys/fs/cgroup/cpu,cpuacct",
        "sys/fs/cgroup/cpu/job",
        "sys/fs/cgroup/cpu",
        "sys/fs/cgroup/x",
        "sys/fs/cgroup",
        "sys/fs/cgroup/unified/x",
        "sys/fs/cgroup/unified",
    ]
    assert parse.cgroup_levels("0::/../other", "cpu") == []


def test_mounts_with_spaces():
    """A mount's folder may hold spaces; a path lies on the longest that fits."""
    found = mounts(
        "device x mounted on / with fstype ext4\n"
        "device y mounted on /my\\040data with fstype nfs\n"
        "device z mounted on /my with fstype tmpfs"
    )
    assert mount_of("/my data/a", found) == Mount("/my data", "nfs", {})
    assert mount_of("/mydata", found).folder == "/"
    assert mount_of("relative", found) is None


def test_files_that_are_not_files(tmp_path, leak_gauge):
    """Folders, pipes, links in circles and huge files are read as what they are, or not at all."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "huge").write_bytes(b"x" * (LONGEST_TEXT + 5))
    names = ["folder", "pipe", "circle", "huge", "none", "bad\0name"]
    texts = read_texts(tmp_path, names)
    assert texts.found.keys() <= {"pipe", "huge"}
    assert len(texts.of("huge")) == LONGEST_TEXT
    assert "no such file" in texts.why("none")
    assert "not looked for" in texts.why("other")


def event(begin, length, **more):
    return {"cat": "kernel", "ph": "X", "ts": begin, "dur": length, "name": "k"} | more


def test_kernels_are_counted(tmp_path):
    """Kernels, steps, gaps and overlap are counted from a trace, packed or not."""
    events = [event(0, 4), event(2, 4), event(10, 2), {"name": "ProfilerStep#3", "ts": 0, "dur": 9}]
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    plain.write_text(json.dumps({"traceEvents": events}))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        kernels = read_kernels(path)
        assert (kernels.count, kernels.steps, kernels.median_us) == (3, 1, 4.0)
        assert (kernels.busy_share, kernels.gap_us) == (pytest.approx(8 / 12), 4.0)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["cat", "ts", "dur", "name"]),
            st.sampled_from(["kernel", "ProfilerStep#1", None, [], {}])
            | st.floats()
            | st.integers(),
        )
    )
)
def test_any_events(events):
    """Events of any shape are counted or passed over."""
    kernels = count_kernels([event(0, 1), *events])
    assert kernels.count >= 1
    assert 0 <= kernels.busy_share <= 1.0001


BROKEN = bytearray(gzip.compress(b"{}" * 999, mtime=0))
BROKEN[12:16] = b"\xff" * 4


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[[1]]" * 2, b"\x1f\x8bxx", BROKEN, b"{}", b'"x"', b"[" * 100_000]
)
def test_traces_that_are_none(tmp_path, content):
    """A file that is no trace is the call's fault, and named."""
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"the trace 'trace\.json' cannot be used"):
        read_kernels(path)
    with pytest.raises(OptionError, match="export_chrome_trace"):
        read_kernels(tmp_path / "none")


def test_a_trace_too_long(tmp_path, monkeypatch):
    """A trace of a whole epoch is refused before it fills memory."""
    assert LONGEST >= 1 << 28
    monkeypatch.setattr("fastfeed.doctor.kernels.LONGEST", 10)
    (tmp_path / "trace").write_text("[" + " " * 20 + "]")
    with pytest.raises(OptionError, match="more than"):
        read_kernels(tmp_path / "trace")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(JSON, JSON, JSON)
def test_any_reports_can_be_compared(machine, other, checks):
    """Reports of any shape are compared, and one is no different from itself."""
    a, b = {"machine": machine, "checks": checks}, {"machine": other, "checks": machine}
    assert differences(a, a) == []
    assert {(d.name, str(d.a), str(d.b)) for d in differences(a, b)} == {
        (d.name, str(d.b), str(d.a)) for d in differences(b, a)
    }
