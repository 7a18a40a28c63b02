"""Checks of file systems, disks and reads: the healthy machine, spoiled in one way."""

from __future__ import annotations

import pytest

from fastfeed.doctor.report import examine

GIB = 1 << 30
JOB = 4000


NFS = """device server:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tper-op statistics
\t        READ: {reads} {sent} 0 {reads} {bytes} 0 {wait} {wait} 0
\t     GETATTR: {names} {names} 0 1 1 0 1 1 0
\t        OPEN: {names} {names} 0 1 1 0 1 1 0"""


def nfs(reads=0, names=0, again=0, wait=0):
    counts = {"reads": reads, "sent": reads + again, "bytes": reads << 20, "wait": wait}
    return NFS.format(names=names, **counts)


@pytest.mark.parametrize(
    ("later", "status", "text"),
    [
        (nfs(300), "ok", "/data: 100 reads/s"),
        (nfs(300, names=3000), "bad", "2000 requests/s for names and attributes"),
        (nfs(1000, again=50), "bad", "50 of 1000 requests were lost"),
        (nfs(300, wait=30_000), "warn", "100 reads/s of 100 ms"),
    ],
)
def test_nfs(recorded, only, later, status, text):
    """Storms of names, lost requests and slow reads of NFS are told by what grew meanwhile."""
    recorded.files["proc/self/mountstats"] += f"\n{nfs()}"
    recorded.later["proc/self/mountstats"] = f"{recorded.files['proc/self/mountstats']}\n{later}"
    checks = recorded.checks()
    assert checks[13].status == status
    assert text in checks[13].finding
    only(checks, *([13] if status != "ok" else []))


def test_file_systems_that_count_nothing(recorded):
    """A network file system without counters is not known; one without the job's files is."""
    recorded.files["proc/self/mountstats"] += (
        "\ndevice a@tcp:/x mounted on /scratch with fstype lustre"
    )
    assert recorded.checks()[13].status == "ok"
    fd = recorded.root / f"proc/{JOB}/fd/7"
    fd.parent.mkdir(parents=True, exist_ok=True)
    fd.symlink_to("/scratch/train-000000.tar")
    check = recorded.checks()[13]
    assert check.status == "unknown"
    assert "/scratch is lustre" in check.finding


def test_cache_on_a_network(recorded, only):
    """A cache that lies on a network mount is bad: it has stopped a service."""
    recorded.files["proc/self/mountstats"] += f"\n{nfs()}".replace("/data with", "/home with")
    checks = recorded.checks()
    only(checks, 13)
    assert "the cache folder lies on /home, which is nfs4" in checks[13].finding


@pytest.mark.parametrize(
    ("later", "status", "text"),
    [
        ({"reads": 4000, "read_ms": 90_500, "kilobytes": 136}, "bad", "of 11 KiB, 30.0 ms each"),
        ({"reads": 4000, "read_ms": 1000, "busy": 2990}, "warn", "in use 100%"),
        ({"reads": 1000, "read_ms": 500}, "ok", "no disk was read"),
    ],
)
def test_disks(recorded, texts, later, status, text):
    """Slow reads and a disk at its limit are told; reading nothing is no fault."""
    recorded.files["proc/diskstats"] = texts.disk(1000, 500)
    recorded.later["proc/diskstats"] = texts.disk(**later)
    check = recorded.checks()[7]
    assert check.status == status
    assert text in check.finding


def test_stalls_of_io(recorded, texts):
    """Pressure and idle cores that wait for I/O are told without naming a disk."""
    recorded.later["proc/pressure/io"] = texts.psi(2_000_000)
    check = recorded.checks()[7]
    assert check.status == "warn"
    assert "tasks waited for I/O in 67%" in check.finding


def test_small_reads_and_faults(recorded, texts):
    """Many small read calls and faults from disk are told, with the job's children counted."""
    child = 4001
    recorded.files[f"proc/{child}/stat"] = texts.stat(child, parent=JOB)
    recorded.files[f"proc/{child}/io"] = "rchar: 0\nsyscr: 0\nread_bytes: 0"
    recorded.later[f"proc/{child}/stat"] = texts.stat(child, parent=JOB, major=900)
    recorded.later[f"proc/{child}/io"] = f"rchar: {90_000 << 11}\nsyscr: 90000\nread_bytes: 0"
    check = recorded.checks()[8]
    assert check.status == "warn"
    assert "31000 read calls/s of 35.0 KiB" in check.finding
    assert "300 pages/s of mapped files" in check.finding


def test_a_child_does_not_stand_for_the_job(recorded, texts):
    """What the job itself reads is not known because a child's reads are shown."""
    child = 4001
    for files in (recorded.files, recorded.later):
        files[f"proc/{child}/stat"] = texts.stat(child, parent=JOB)
    recorded.later |= {f"proc/{child}/io": f"rchar: {900 << 20}\nsyscr: 900\nread_bytes: 0"}
    recorded.files |= {f"proc/{child}/io": "rchar: 0\nsyscr: 0\nread_bytes: 0"}
    recorded.without(f"proc/{JOB}/io")
    check = recorded.checks()[8]
    assert check.status == "unknown"
    assert "what 1 of the job's 2 processes read is not shown" in check.finding


def test_files_opened_and_closed(recorded):
    """Open files that are all others than before point to one file a sample."""
    folder = recorded.root / f"proc/{JOB}/fd"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / str(number)).symlink_to(f"/data/{number}.jpg")
    machine = recorded.machine()
    change = machine.clock.change

    def reopen():
        change()
        for number in range(40):
            path = folder / str(number)
            path.unlink()
            path.symlink_to(f"/data/{number + int(machine.clock.time * 100)}.jpg")

    machine.clock.change = reopen
    check = {check.id: check for check in examine(machine.look()).checks}[8]
    assert check.status == "warn"
    assert "40 of the 40 files open" in check.finding
