"""Checks 7 and 8: how long the disks take, and what the job asks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.doctor.parse import core_shares, counts, disks, grown, pressure, task_stat

if TYPE_CHECKING:
    from fastfeed.doctor.parse import Disk
    from fastfeed.doctor.seen import Seen
    from fastfeed.doctor.texts import Texts

SMALL: Final = 64 << 10
"""A mean read below this pays more for asking than for bytes."""
_SLOW_MS: Final = 10.0
_STALLED: Final = 0.1
_AT_LIMIT: Final = 0.9
# Fewer a second than this are not what a job waits for.
_MANY: Final = 1000
_MANY_FAULTS: Final = 100
_LARGER = "read larger pieces: shards of 100 MB and more, read in sequence; stage them on NVMe"


def check_disks(seen: Seen) -> Check:
    """Look at the waits for I/O and the latency of each device (7)."""
    findings = Findings(7, "disk latency")
    before = disks(seen.first.of("proc/diskstats"))
    after = disks(seen.last.of("proc/diskstats"))
    if not after:
        findings.add("unknown", f"no disk is shown ({seen.last.why('proc/diskstats')})")
    for name, disk in after.items():
        if name in before:
            _add_disk(findings, name, before[name], disk, seen.seconds)
    everything = core_shares(seen.first.of("proc/stat"), seen.last.of("proc/stat")).get("cpu")
    if everything:
        findings.figure("cores idle for I/O", everything.waiting)
        if everything.waiting > _STALLED:
            findings.add(
                "warn",
                f"the cores were idle for I/O in {everything.waiting:.0%} of the time",
                _LARGER,
            )
    name = "proc/pressure/io"
    stalled = pressure(seen.first.of(name), seen.last.of(name), seen.seconds)
    findings.figure("time in which tasks waited for I/O", stalled)
    if stalled is None:
        findings.figure("pressure", f"not known: {seen.first.why(name)}")
    elif stalled > _STALLED:
        findings.add("warn", f"tasks waited for I/O in {stalled:.0%} of the time", _LARGER)
    return findings.check("no disk was read while we looked: the page cache or a network serves")


def _add_disk(findings: Findings, name: str, before: Disk, after: Disk, seconds: float) -> None:
    reads = max(0, after.reads - before.reads)
    if seconds <= 0 or (not reads and after.writes <= before.writes):
        return
    wait = max(0, after.read_ms - before.read_ms) / reads if reads else 0.0
    size = max(0, after.read_bytes - before.read_bytes) / reads if reads else 0.0
    used = min(1.0, max(0, after.busy_ms - before.busy_ms) / (1000 * seconds))
    written = max(0, after.written_bytes - before.written_bytes)
    for text, value in (
        ("reads a second", reads / seconds),
        ("mean read, KiB", size / 1024),
        ("mean wait, ms", wait),
        ("read, MB/s", size * reads / seconds / 1e6),
        ("written, MB/s", written / seconds / 1e6),
        ("in use", used),
    ):
        findings.figure(f"{name} {text}", value)
    text = f"{name}: {reads / seconds:.0f} reads/s of {size / 1024:.0f} KiB, {wait:.1f} ms each"
    # A few slow reads beside a stream of writes hold nobody up.
    if reads / seconds >= 10 and wait > _SLOW_MS:
        findings.add("bad" if size < SMALL else "warn", text, _LARGER)
    elif used > _AT_LIMIT:
        findings.add("warn", f"{text}, in use {used:.0%} of the time", "stage on a faster disk")
    else:
        findings.add("ok", text)


def check_access(seen: Seen) -> Check:
    """Look at how the job reads: bytes a call, opened files, page faults (8)."""
    findings = Findings(8, "access pattern of the job")
    job = seen.job
    if job is None:
        findings.add("unknown", seen.no_job, "look while the job runs, or name it with --pid")
        return findings.check("")
    told = [pid for pid in job.family if counts(seen.last.of(f"proc/{pid}/io"))]
    # A process that has ended hides nothing; one that is there and not shown does.
    ended = {pid for pid in job.family if f"proc/{pid}/stat" not in seen.last.found}
    hidden = [pid for pid in job.family if pid not in told and pid not in ended]
    findings.figure("processes looked at", len(told))
    if told:
        _add_reads(findings, seen, told)
    if hidden or not told:
        count, why = len(hidden), seen.last.why(f"proc/{(hidden or [job.pid])[0]}/io")
        findings.add(
            "unknown",
            f"what {count} of the job's {len(job.family)} processes read is not shown ({why})",
            "run as the job's user or as root",
        )
    _add_files(findings, seen)
    _add_faults(findings, seen)
    return findings.check("")


def _add_reads(findings: Findings, seen: Seen, pids: list[int]) -> None:
    calls = asked = fetched = 0
    for pid in pids:
        before, after = (counts(one.of(f"proc/{pid}/io")) for one in (seen.first, seen.last))
        calls += grown(before, after, "syscr") or 0
        asked += grown(before, after, "rchar") or 0
        fetched += grown(before, after, "read_bytes") or 0
    seconds = max(seen.seconds, 0.01)
    findings.figure("read calls a second", calls / seconds)
    findings.figure("bytes a read call", asked / calls if calls else None)
    findings.figure("read from disks, MB/s", fetched / seconds / 1e6)
    if not calls:
        findings.add("unknown", "the job read nothing while we looked", "look while it trains")
        return
    size = asked / calls
    # Calls on pipes and sockets count too: they are what workers and trainer talk through.
    text = f"the job makes {calls / seconds:.0f} read calls/s of {size / 1024:.1f} KiB"
    small = size < SMALL and calls / seconds > _MANY
    findings.add("warn" if small else "ok", text, _LARGER if small else "")


def _add_files(findings: Findings, seen: Seen) -> None:
    """Count files that were opened and closed again between two looks."""
    if not any("/fd/" in name for name in seen.last.found):
        return  # whose files are not shown has no figures
    before, after = _files(seen.first), _files(seen.last)
    findings.figure("data files open", len(set(after.values())))
    fresh = set(after.values()) - set(before.values())
    findings.figure("data files open that were not at first", len(fresh))
    if len(fresh) > 16 and len(fresh) > len(after) / 2:
        findings.add(
            "warn",
            f"{len(fresh)} of the {len(after)} files open were not open {seen.seconds:.0f} s ago",
            "one file a sample costs an open each: pack shards with fastfeed-shard",
        )


def _files(texts: Texts) -> dict[str, str]:
    return {
        name: target
        for name, target in texts.found.items()
        if "/fd/" in name and target.startswith("/") and not target.startswith(("/dev/", "/proc/"))
    }


def _add_faults(findings: Findings, seen: Seen) -> None:
    minor = major = 0
    for pid in seen.job.family if seen.job else ():
        before = task_stat(seen.first.of(f"proc/{pid}/stat"))
        after = task_stat(seen.last.of(f"proc/{pid}/stat"))
        if before and after:
            minor += max(0, after.minor_faults - before.minor_faults)
            major += max(0, after.major_faults - before.major_faults)
    seconds = max(seen.seconds, 0.01)
    findings.figure("page faults a second", minor / seconds)
    findings.figure("page faults from disk a second", major / seconds)
    if major / seconds > _MANY_FAULTS:
        findings.add(
            "warn",
            f"the job waits for {major / seconds:.0f} pages/s of mapped files from disk",
            "read instead of mapping, or stage the files in memory or on NVMe",
        )
