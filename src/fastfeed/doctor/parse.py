"""Files of /proc and of cgroups as values; pure, and anything may stand in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastfeed.topology.files import integer

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTOR = 512


@dataclass(frozen=True, slots=True)
class CoreShares:
    """How one core, or all together, spent the time between two looks; parts of 1."""

    user: float
    system: float
    waiting: float
    """Idle with I/O outstanding."""
    interrupts: float
    stolen: float

    @property
    def busy(self) -> float:
        """The part in which it worked, for whomever."""
        return self.user + self.system + self.interrupts + self.stolen


def core_shares(before: str, after: str) -> dict[str, CoreShares]:
    """Return the shares of `cpu` (all) and `cpu0`, `cpu1`, ... between two texts of /proc/stat."""
    shares: dict[str, CoreShares] = {}
    first = _core_times(before)
    for name, times in _core_times(after).items():
        spent = [max(0, b - a) for a, b in zip(first.get(name, times), times, strict=True)]
        if total := sum(spent):
            user, nice, system, _, waiting, hard, soft, stolen = (time / total for time in spent)
            shares[name] = CoreShares(user + nice, system, waiting, hard + soft, stolen)
    return shares


def _core_times(text: str) -> dict[str, tuple[int, ...]]:
    times: dict[str, tuple[int, ...]] = {}
    for line in text.splitlines():
        name, *words = line.split() or [""]
        if re.fullmatch(r"cpu[0-9]{0,5}", name):
            # Later columns are of guests, whose time the first ones hold already.
            counts = [integer(word) or 0 for word in words[:8]]
            times[name] = tuple(counts + [0] * (8 - len(counts)))
    return times


def pressure(before: str, after: str, seconds: float, kind: str = "some") -> float | None:
    """Return the part of the time in which tasks stood still, from two texts of PSI; None if none.

    From the totals: the averages of ten seconds reach back to before we looked.
    """
    first, last = _stalled(before, kind), _stalled(after, kind)
    if first is None or last is None or seconds <= 0:
        return None
    return min(1.0, max(0, last - first) / (seconds * 1e6))


def _stalled(text: str, kind: str) -> int | None:
    match = re.search(rf"^{kind} .*\btotal=([0-9]+)", text, re.MULTILINE)
    return integer(match[1]) if match else None


def counts(text: str) -> dict[str, int]:
    """Return lines of a name and a number, such as meminfo, vmstat, cpu.stat or io.

    Kilobytes become bytes.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) in {2, 3} and (number := integer(words[1])) is not None:
            scale = 1024 if words[2:] == ["kB"] else 1
            found[words[0].rstrip(":")] = number * scale
    return found


def grown(before: Mapping[str, int], after: Mapping[str, int], name: str) -> int | None:
    """Return how much a counter grew; None if it is missing; never negative."""
    if name not in before or name not in after:
        return None
    return max(0, after[name] - before[name])


def named_lists(text: str) -> dict[str, str]:
    """Return the lines `Name: value` of /proc/PID/status as texts."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


@dataclass(frozen=True, slots=True)
class Disk:
    """One block device's counters since the start."""

    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    written_bytes: int
    write_ms: int
    busy_ms: int


def disks(text: str) -> dict[str, Disk]:
    """Return the devices of /proc/diskstats that are no partitions, loops or memory."""
    found: dict[str, Disk] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or re.match(r"(loop|ram|zram|sr|fd)[0-9]", words[2]):
            continue
        values = [integer(word) or 0 for word in words[3:14]]
        found[words[2]] = Disk(
            reads=values[0],
            read_bytes=values[2] * _SECTOR,
            read_ms=values[3],
            writes=values[4],
            written_bytes=values[6] * _SECTOR,
            write_ms=values[7],
            busy_ms=values[9],
        )
    return {name: disk for name, disk in found.items() if not _is_partition(name, found)}


def _is_partition(name: str, names: Mapping[str, Disk]) -> bool:
    match = re.fullmatch(r"(.*?[0-9])p[0-9]+|(.*?[a-z])[0-9]+", name)
    return match is not None and (match[1] or match[2]) in names


@dataclass(frozen=True, slots=True)
class TaskStat:
    """One process or thread, from its `stat`; times in ticks."""

    name: str
    state: str
    parent: int
    minor_faults: int
    major_faults: int
    user: int
    system: int
    core: int


def task_stat(text: str) -> TaskStat | None:
    """Return what a `stat` says; None if it is not one."""
    # The name stands in parentheses and may hold anything, parentheses too.
    head, closed, rest = text.rpartition(")")
    words = rest.split()
    if not closed or len(words) < 37:
        return None
    parent, minor, major, user, system, core = (
        integer(words[place]) or 0 for place in (1, 7, 9, 11, 12, 36)
    )
    name = "".join(letter if letter.isprintable() else "?" for letter in head.partition("(")[2])
    return TaskStat(name, words[0][:1], parent, minor, major, user, system, core)


def interrupts(text: str) -> list[int]:
    """Return the interrupts that each core had since the start, from /proc/interrupts.

    Timers and calls between cores (the rows with names) are left out: every core has its own.
    """
    lines = text.splitlines()
    width = len(lines[0].split()) if lines else 0
    totals = [0] * width
    for line in lines[1:]:
        source, _, rest = line.partition(":")
        words = rest.split()[:width]
        if source.strip().isdigit() and len(words) == width:
            for core, word in enumerate(words):
                totals[core] += integer(word) or 0
    return totals


def node_bytes(text: str) -> dict[int, int]:
    """Return the bytes that a process has on each NUMA node, from its numa_maps."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        size = re.search(r"\bkernelpagesize_kB=([0-9]{1,9})\b", line)
        page = int(size[1]) * 1024 if size else 4096
        for node, pages in re.findall(r"\bN([0-9]{1,4})=([0-9]{1,15})\b", line):
            found[int(node)] = found.get(int(node), 0) + int(pages) * page
    return found


def limit_of(text: str, name: str) -> int | None:
    """Return the soft limit of a line of /proc/PID/limits; None if unlimited or missing."""
    for line in text.splitlines():
        if line.startswith(name):
            return integer((line[len(name) :].split() or [""])[0])
    return None


def cgroup_levels(text: str, controller: str) -> list[str]:
    """Return the cgroup folders of a process from its /proc/PID/cgroup, below the root.

    Its own first, then up to the mount; version 2, and version 1 beside it.
    """
    folders: list[str] = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mounts = [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"]
        if not controllers:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller not in controllers.split(",") or not re.fullmatch(r"[\w,=]+", controllers):
            continue
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue  # of another container, which is not mounted here
        # In a container the path may be the host's; the mount itself is then the container's own.
        for mount in dict.fromkeys(mounts):
            folders += ["/".join([mount, *parts[:n]]) for n in range(len(parts), -1, -1)]
    return list(dict.fromkeys(folders))
