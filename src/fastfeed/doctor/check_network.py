"""Check 13: network file systems, what is asked of them, and what lies on them by mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastfeed.doctor.check import Check, Findings
from fastfeed.doctor.mounts import METADATA, READS, Mount, mount_of, mounts, since

if TYPE_CHECKING:
    from fastfeed.doctor.mounts import Operation
    from fastfeed.doctor.seen import Seen

_RESENT: Final = 0.01
# Requests for names and attributes a second that are a storm when there are more of them than of
# reads: a data set in shards needs a few a minute.
_STORM: Final = 200
_SLOW_MS: Final = 20.0


def job_mounts(seen: Seen) -> tuple[list[Mount], list[Mount]]:
    """Return the mounts at first and in the end: the job's, or ours where those are not shown."""
    name = f"{seen.who}/mountstats"
    if name not in seen.first.found or name not in seen.last.found:
        name = "proc/self/mountstats"
    return mounts(seen.first.of(name)), mounts(seen.last.of(name))


def check_network(seen: Seen) -> Check:
    """Look for storms of requests, lost requests, and caches on a network (13)."""
    findings = Findings(13, "network file system")
    before, after = job_mounts(seen)
    if not after:
        why = seen.last.why("proc/self/mountstats")
        findings.add("unknown", f"what is mounted is not known ({why})")
        return findings.check("")
    network = [mount for mount in after if mount.network]
    findings.figure("network mounts", len(network))
    first = {mount.folder: mount for mount in before}
    for mount in network:
        if mount.operations:
            _add_nfs(findings, mount, since(first.get(mount.folder), mount), seen.seconds)
        elif seen.job is None or mount in _used(seen, network):
            findings.add(
                "unknown",
                f"{mount.folder} is {mount.kind}, which counts nothing that can be read here",
                "see that file system's own tools, or stage on a local disk and compare",
            )
    _add_cache(findings, seen, after)
    for mount in _used(seen, network):
        findings.figure(f"job has files open on {mount.folder}", mount.kind)
    return findings.check("no network file system is mounted" if not network else "")


def _used(seen: Seen, network: list[Mount]) -> list[Mount]:
    """Return the network mounts on which the job has files open."""
    targets = {text for name, text in seen.last.found.items() if "/fd/" in name}
    used = {mount.folder for path in targets if (mount := mount_of(path, network))}
    return [mount for mount in network if mount.folder in used]


def _add_nfs(findings: Findings, mount: Mount, did: dict[str, Operation], seconds: float) -> None:
    seconds = max(seconds, 0.01)
    reads = [did[name] for name in READS if name in did]
    asked = sum(one.requests for one in reads)
    received = sum(one.received_bytes for one in reads)
    names = sum(did[name].requests for name in METADATA if name in did)
    requests = sum(one.requests for one in did.values())
    again = sum(max(0, one.sent - one.requests) + one.timeouts for one in did.values())
    wait = sum(one.wait_ms for one in reads) / asked if asked else 0.0
    for text, value in (
        ("reads a second", asked / seconds),
        ("mean read, KiB", received / asked / 1024 if asked else None),
        ("mean round trip of a read, ms", wait if asked else None),
        ("requests for names and attributes a second", names / seconds),
        ("sent again", again),
    ):
        findings.figure(f"{mount.folder} {text}", value)
    text = f"{mount.folder}: {asked / seconds:.0f} reads/s"
    if requests and again > _RESENT * requests:
        findings.add(
            "bad",
            f"{mount.folder}: {again} of {requests} requests were lost and sent again",
            "the network or the server drops requests: look there before any code",
        )
    if names / seconds > _STORM and names > asked:
        findings.add(
            "bad",
            f"{text}, but {names / seconds:.0f} requests/s for names and attributes",
            "a file for each sample: pack shards (fastfeed-shard build), stage them locally",
        )
    elif asked / seconds >= 10 and wait > _SLOW_MS:
        findings.add("warn", f"{text} of {wait:.0f} ms each", "stage the shards on a local disk")
    else:
        findings.add("ok", text)


def _add_cache(findings: Findings, seen: Seen, after: list[Mount]) -> None:
    """Say what the cache lies on: one that silently moved to a network has stopped a service."""
    mount = mount_of(seen.cache, after) if seen.cache else None
    if mount is None:
        return
    findings.figure("cache lies on", mount.kind)
    if mount.network:
        findings.add(
            "bad",
            f"the cache folder lies on {mount.folder}, which is {mount.kind}",
            "move it to a local disk: set XDG_CACHE_HOME, or name another folder",
        )
