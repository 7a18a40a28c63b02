"""What those who make batches do with their time: they compute, or they wait, and for what."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from fastfeed.diagnosis.finding import Verdict, gain, percent, stall_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastfeed.diagnosis.evidence import Evidence, Feed

# A smaller part of the workers' time is what the clocks of wall and CPU differ by.
_UNSURE: Final = 0.15
_SMALL_READ: Final = 64 << 10
_THROTTLED: Final = 0.05
# Workers that only wait, of which nobody needs more; and the part of a core that one more can use.
_MANY: Final = 16
_FREE: Final = 0.5
_SEARCHES: Final = (
    "ff.AUTO may still be looking for how many workers help: after a minute of training "
    "loader.tuning says what it found."
)
# Where every other worker queues for a lock that one holds, more of them do not help.
_LOCKED: Final = 0.3
# So much of the workers' time makes decoding dear.
_DECODING: Final = 0.5
# What the system takes to bring a missing page back, at the most. As measured: half a core for the
# 90 MB/s of two workers, 23 microseconds a page.
_MISSING_S: Final = 30e-6
_PAGE: Final = 4096
# Workers' pipes alone move this much.
_SOME_BYTES: Final = 100e3
# And a loader takes less to hand over a sample in a small batch.
_SAMPLE_BYTES: Final = 2048
# From here on the disks of the machine are waited for.
_DISKS: Final = 0.1


def work_or_wait(evidence: Evidence, *, waiting: float, slowed: float) -> Iterator[Verdict]:
    """Yield what is lost to computing, and to waiting outside of the cores.

    Of the time, the loop waits for input in the part `waiting`, and its step takes longer while it
    is fed in the part `slowed`.
    """
    computing, blocked = _uses(evidence)
    part = blocked / ((computing + blocked) or 1.0)
    off_cores = waiting * _sure(part)
    storage = off_cores * _sure(_from_storage(evidence, part))
    preprocessing = waiting - off_cores + slowed
    if storage:
        yield _storage(evidence, storage, part)
    if off_cores > storage:
        yield _own_waits(evidence, off_cores - storage, part)
    if preprocessing:
        yield _preprocessing(evidence, preprocessing, slowed=slowed)


def faulting_part(evidence: Evidence) -> float:
    """Return for which part of their time those who make batches may be after missing pages.

    Where a page is not in memory the system finds room, reads it and wakes the worker, which then
    queues for a core again: that is all of its time but what it computes itself, with the part of
    the queueing that goes with this, and but what it was seen to wait in beside files. What the
    system does for them beyond the pages that were counted is other work: it copies what they read.
    """
    computing, blocked = _uses(evidence)
    whole = (computing + blocked) or 1.0
    if evidence.feed.waits_in:
        blocked *= dict(evidence.feed.waits_in).get("files", 0.0)
    told = [one for one in evidence.feed.workers if one.cpu and one.system is not None]
    system = sum(one.system or 0.0 for one in told)
    queued = sum((one.queued or 0.0) * (one.system or 0.0) / (one.cpu or 1.0) for one in told)
    pages = evidence.host.read_again_per_s / _PAGE + evidence.host.major_faults_per_s
    missing = min(1.0, pages * _MISSING_S / system) if system else 0.0
    return min(1.0, (blocked + missing * (system + queued)) / whole)


def _uses(evidence: Evidence) -> tuple[float, float]:
    """Return for how much of their time those who make batches compute, and are blocked."""
    feed, host = evidence.feed, evidence.host
    if feed.kind == "none":
        return feed.wait_cpu, max(0.0, 1 - feed.wait_cpu)
    told = [one.busy for one in feed.workers if one.busy is not None]
    busy = sum(told) if told and len(told) == len(feed.workers) else float(feed.count)
    if feed.kind == "thread":
        computing = feed.other_cpu + feed.other_queued
        return computing, max(0.0, busy - computing)
    used = [one.cpu + (one.queued or 0.0) for one in feed.workers if one.cpu is not None]
    if used:
        return sum(used), max(0.0, busy - sum(used))
    waiting = min(1.0, max(host.io_pressure or 0.0, host.iowait or 0.0))
    return 1 - waiting, waiting


def _sure(part: float) -> float:
    """Return a part, or the whole where the clocks cannot tell it from that."""
    return 0.0 if part < _UNSURE else 1.0 if part > 1 - _UNSURE else part


def _from_storage(evidence: Evidence, blocked: float) -> float:
    """Return which part of the time off the cores, `blocked` of all, goes to where data lie.

    The loader's own reads are timed, what they compute included. Else what threads were seen in
    counts: files do, pipes and sockets if data come in. Where none were seen, whether data come in
    at all.
    """
    feed, host = evidence.feed, evidence.host
    seen = dict(feed.waits_in)
    files = seen.get("files", 0.0)
    if feed.reading is not None and blocked:
        # Reads are no sleep and no child process, where locks are seen as well as these.
        own = seen.get("sleep", 0.0) + seen.get("child processes", 0.0)
        most = 1 - own if feed.kind == "process" else 1.0
        return min(most, max(feed.reading / blocked, files))
    least = max(_SOME_BYTES, _SAMPLE_BYTES * evidence.batch.samples / evidence.times.real_s)
    received = (feed.received_per_s or 0.0) >= least
    read = feed.read_per_s is None or feed.read_per_s >= least
    if seen:
        far = seen.get("pipes and sockets", 0.0) * (received or read)
        # A client may wait in a thread of its own.
        return files + far + seen.get("locks and other threads", 0.0) * received
    busy = max(host.io_pressure or 0.0, host.iowait or 0.0) >= _DISKS
    return float(received or read or busy)


def _own_waits(evidence: Evidence, share: float, blocked: float) -> Verdict:
    """The user's own code waits, neither on a core nor for data."""
    feed = evidence.feed
    who = "The loop" if feed.kind == "none" else f"The {feed.count} workers"
    why = [
        stall_words(evidence),
        (
            f"{who} spent {percent(blocked)} of the time for it waiting, neither on a core nor "
            "for what fastfeed reads."
        ),
    ]
    if feed.code:
        why.append(f"What runs there is {feed.code}.")
    if feed.reading is not None:
        why.append(f"Reads of shards took {percent(feed.reading)} of the time.")
    elif feed.read_per_s is not None:
        why.append(f"Files and pipes gave {feed.read_per_s / 1e6:.1f} MB/s meanwhile.")
    why += [*_seen_words(feed), *_step_words(evidence)]
    most, advice = _own_advice(feed, gain(share))
    return Verdict(
        name="waiting in user code",
        share_of_time_lost=share,
        why=tuple(why),
        advice=advice,
        expected_gain=most,
    )


def _own_advice(feed: Feed, most: float) -> tuple[float, tuple[str, ...]]:
    """Return what the first advice gains, at the most `most`, and what helps against own waits."""
    look = (
        f"Look at {feed.code or 'the data set'} for a sleep, a lock, a child process or a request: "
        "`py-spy dump --pid` of a worker shows the line."
    )
    how = "Have more samples under way"
    if feed.kind == "none":
        how = "Use worker processes, which wait in the loop's place"
    more = (
        f"{how}: num_workers=ff.AUTO, or up to {_MANY}, more than there are cores, since they wait "
        "rather than compute."
    )
    if dict(feed.waits_in).get("locks and other threads", 0.0) >= _LOCKED:
        lock = "If they wait for one lock, hold it for less: more workers would only queue for it."
        return most, (lock, look, more)
    if feed.tuned:
        return most, (look, _SEARCHES)
    if feed.count >= _MANY:
        return most, (look,)
    # So many can wait at a time, and no more.
    return min(most, _MANY / max(1, feed.count) - 1), (more, look)


def _storage(evidence: Evidence, share: float, blocked: float) -> Verdict:
    feed, host = evidence.feed, evidence.host
    who = "The loop" if feed.kind == "none" else f"The {feed.count} workers"
    why = [
        stall_words(evidence),
        (
            f"{who} spent {percent(blocked)} of the time for it waiting outside of the cores: for "
            "disk or network."
        ),
    ]
    files = (feed.read_per_s or 0.0) >= _SOME_BYTES and feed.bytes_per_read is not None
    if files and feed.read_per_s is not None and feed.bytes_per_read is not None:
        why.append(
            f"They read {feed.read_per_s / 1e6:.1f} MB/s, {feed.bytes_per_read / 1024:.0f} KiB a "
            "call."
        )
    if host.io_pressure is not None:
        why.append(f"Tasks of the machine waited for disks in {percent(host.io_pressure)} of it.")
    why += [*_seen_words(feed), *_step_words(evidence)]
    return Verdict(
        name="storage-bound",
        share_of_time_lost=share,
        why=tuple(why),
        advice=(
            *_storage_advice(feed, read=feed.bytes_per_read if files else None),
            "Find the device that is slow: `fastfeed doctor`, checks 7, 8 and 13.",
        ),
        expected_gain=gain(share),
    )


def _storage_advice(feed: Feed, *, read: float | None) -> tuple[str, ...]:
    """Return what helps against waiting, first what helps this loader most for the least work.

    `read` is the size of the reads from files, None where there are none to speak of.
    """
    larger = "Read larger pieces in sequence: pack the samples with `fastfeed-shard build`."
    nearer = "Bring the data near: ShardDataset(cache=ff.Cache(folder on a local disk))."
    more = (
        "Have more reads under way: num_workers=ff.AUTO, or more than there are cores, since they "
        "wait rather than compute."
    )
    if feed.kind == "none":
        more = f"Use worker processes, which wait in the loop's place: num_workers=ff.AUTO, {_MANY}"
        more += " at the most."
    if feed.tuned:
        more = _SEARCHES
    if feed.shards or (read is not None and read >= _SMALL_READ):
        return (nearer, more)
    if read is not None:
        return (larger, more, nearer)
    if feed.tuned or feed.count >= _MANY:
        return (nearer, larger)
    return (more, nearer, larger)


def _preprocessing(evidence: Evidence, share: float, *, slowed: float) -> Verdict:
    feed, host = evidence.feed, evidence.host
    used = sum(one.cpu or 0.0 for one in feed.workers) + feed.other_cpu
    queued = sum(one.queued or 0.0 for one in feed.workers) + feed.other_queued
    # Cores that somebody else fills are not free.
    loop = host.loop_cpu * min(1.0, evidence.times.ceiling_s / evidence.times.real_s)
    free = max(0.0, host.cores - used - loop) if queued < used / 2 else 0.0
    why = [stall_words(evidence)]
    if feed.kind == "none":
        why.append(
            f"There are no workers: the loop makes each batch itself, computing for "
            f"{percent(feed.wait_cpu)} of that time."
        )
    else:
        why.append(
            f"The {feed.count} workers compute on {used:.1f} cores of the {host.cores:g} that may "
            f"be used, and wait for {queued:.1f} more."
        )
    if slowed > share / 2:
        why.append(
            f"The step itself takes {percent(slowed)} of the time longer while they work: they "
            "take cores from the loop."
        )
    if host.cpu_pressure is not None:
        why.append(f"Tasks of the machine waited for a core in {percent(host.cpu_pressure)} of it.")
    why += _step_words(evidence)
    cheaper = (
        "Do less for a sample: crop before decode (ff.Image), raw pictures made once "
        '(docs/shards.md), decode on the GPU (device="cuda").'
    )
    most = gain(share)
    if host.throttled is not None and host.throttled > _THROTTLED:
        why.append(f"The container's quota stopped it in {percent(host.throttled)} of the periods.")
        advice = ["Raise the container's CPU limit.", cheaper]
    elif feed.kind == "none":
        advice = ["Use worker processes: num_workers=ff.AUTO.", cheaper]
    elif slowed > share / 2:
        advice = [
            "Use fewer workers, so that the loop keeps a core (num_workers=ff.AUTO).",
            cheaper,
        ]
    elif free >= _FREE and used > 0 and not feed.tuned:
        wanted = min(ceil(feed.count / max(1 - share, 0.1)), feed.count + round(free + 0.01))
        most = min(most, free / used)
        advice = [
            f"Use more workers: num_workers={wanted}, or ff.AUTO, which finds how many.",
            cheaper,
        ]
    elif queued > used:
        most = min(most, queued / max(used, 0.01))
        advice = ["Free the cores: others use them (`fastfeed doctor`, check 6).", cheaper]
    else:
        advice = [cheaper, "Larger batches, or more cores for this GPU."]
    if dict(feed.steps).get("decode", 0.0) > _DECODING:
        advice.append(
            "Or keep what was decoded, if a good part of the data fits: "
            'ShardDataset(decoded=ff.DecodedCache("64GiB")).'
        )
    return Verdict(
        name="preprocessing-bound",
        share_of_time_lost=share,
        why=tuple(why),
        advice=tuple(advice),
        expected_gain=most,
    )


def _step_words(evidence: Evidence) -> list[str]:
    steps = ", ".join(f"{name} {percent(part)}" for name, part in evidence.feed.steps)
    return [f"Their time by step: {steps}."] if steps else []


def _seen_words(feed: Feed) -> list[str]:
    seen = ", ".join(f"{name} {percent(part)}" for name, part in feed.waits_in[:3])
    return [f"Where they were seen to wait: {seen}."] if seen else []
