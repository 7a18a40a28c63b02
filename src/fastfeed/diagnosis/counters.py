"""Counters of the host, of this process and of its workers: read before and after, then summed.

All of them only ever grow, so what passed between two looks is a difference. A counter that cannot
be read is left out of the look, and with it of the sum.
"""

from __future__ import annotations

import os
import re
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastfeed.doctor.parse import cgroup_levels, counts, task_stat
from fastfeed.doctor.texts import numbers, read_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastfeed.doctor.texts import Texts

Counters = dict[str, float]
"""By name; times in seconds."""

_TICKS: Final = float(os.sysconf("SC_CLK_TCK"))
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PRESSURES: Final = ("cpu", "io", "memory")
_ONE_WORD: Final = re.compile(r"^some .*\btotal=([0-9]{1,19})", re.MULTILINE)

_RECEIVED: Final = re.compile(r"^ *\S+: *([0-9]{1,19}) ", re.MULTILINE)


def own_counters() -> Counters:
    """Return what this thread and its process have used so far."""
    thread = resource.getrusage(resource.RUSAGE_THREAD)
    return {
        "seconds": time.monotonic(),
        "loop user": thread.ru_utime,
        "loop system": thread.ru_stime,
        "loop queued": _thread_queued_s(),
        "process": time.process_time(),
    }


def computed_s() -> float:
    """Return for how long this thread has computed so far, or queued for a core to do so."""
    return time.thread_time() + _thread_queued_s()


def queued_s(schedstat: bytes) -> float:
    """Return for how long a thread has queued for a core so far; 0.0 if the kernel doesn't say."""
    words = schedstat.split()
    return int(words[1]) * 1e-9 if len(words) == 3 and words[1].isdigit() else 0.0


def _thread_queued_s() -> float:
    try:
        return queued_s(Path("/proc/thread-self/schedstat").read_bytes())
    except OSError:
        return 0.0


def host_counters(pids: Sequence[int], root: Path = Path("/")) -> Counters:
    """Return the counters of the machine, and of the processes that work for the loop."""
    who = ["self", *map(str, pids)]
    tasks = {one: numbers(root / f"proc/{one}/task") for one in who}
    texts = read_texts(
        root,
        [
            "proc/stat",
            "proc/vmstat",
            "proc/self/net/dev",
            *(f"proc/pressure/{kind}" for kind in _PRESSURES),
            *(f"proc/{one}/{file}" for one in who for file in ("stat", "io")),
            *(f"proc/{one}/task/{task}/schedstat" for one in who for task in tasks[one]),
        ],
    )
    found: Counters = {}
    words = texts.of("proc/stat").partition("\n")[0].split()[1:9]
    if len(words) == 8 and all(word.isdigit() for word in words):
        found["cores"] = sum(map(int, words)) / _TICKS
        found["iowait"] = int(words[4]) / _TICKS
    for kind in _PRESSURES:
        if match := _ONE_WORD.search(texts.of(f"proc/pressure/{kind}")):
            found[f"stalled {kind}"] = int(match[1]) * 1e-6
    events = counts(texts.of("proc/vmstat"))
    if received := _RECEIVED.findall(texts.of("proc/self/net/dev")):
        found["received bytes"] = sum(map(int, received))
    if "pswpin" in events:
        found["swapped"] = events["pswpin"] + events.get("pswpout", 0)
    # Pages of files that were in memory before; the name changed with Linux 5.9.
    again = events.get("workingset_refault_file", events.get("workingset_refault"))
    if again is not None and "pgpgin" in events:
        found["read again"] = again * _PAGE
        found["read from disks"] = events["pgpgin"] * 1024
    for one in who:
        _add_process(found, texts, one)
    found["process queued"] = _scheduled(texts, "self")[1]
    for number, pid in enumerate(pids):
        found.update(_worker(texts, pid, number))
    cgroup = read_texts(root, ["proc/self/cgroup"]).of("proc/self/cgroup")
    found.update(_quotas(root, cgroup))
    found.update(_memory_stalls(root, cgroup))
    return found


def _add_process(found: Counters, texts: Texts, who: str) -> None:
    stat = task_stat(texts.of(f"proc/{who}/stat"))
    read = counts(texts.of(f"proc/{who}/io"))
    more = {} if stat is None else {"major faults": stat.major_faults}
    if "rchar" in read and "syscr" in read:
        more |= {"read bytes": read["rchar"], "read calls": read["syscr"]}
    for name, value in more.items():
        found[name] = found.get(name, 0.0) + value


def _worker(texts: Texts, pid: int, number: int) -> Iterator[tuple[str, float]]:
    """Yield what one worker used; the scheduler's own figures where there are any."""
    stat = task_stat(texts.of(f"proc/{pid}/stat"))
    if stat is None:
        return
    ran, queued = _scheduled(texts, str(pid))
    yield f"worker {number} cpu", ran or (stat.user + stat.system) / _TICKS
    yield f"worker {number} system", stat.system / _TICKS
    if ran:
        yield f"worker {number} queued", queued


def _scheduled(texts: Texts, who: str) -> tuple[float, float]:
    """Return for how long the threads of a process ran and queued for a core."""
    ran = queued = 0
    for name, text in texts.found.items():
        words = text.split()
        if name.startswith(f"proc/{who}/task/") and len(words) == 3:
            ran, queued = ran + int(words[0]), queued + int(words[1])
    return ran * 1e-9, queued * 1e-9


def _memory_stalls(root: Path, cgroup: str) -> Iterator[tuple[str, float]]:
    """Yield for how long tasks of each cgroup level stood still for want of memory."""
    files = [f"{folder}/memory.pressure" for folder in cgroup_levels(cgroup, "memory")]
    texts = read_texts(root, files)
    for file in files:
        if match := _ONE_WORD.search(texts.of(file)):
            yield f"stalled memory {file}", int(match[1]) * 1e-6


def _quotas(root: Path, cgroup: str) -> Counters:
    """Return the periods of each cgroup level that has a quota, and those it was stopped in."""
    found: Counters = {}
    for folder in cgroup_levels(cgroup, "cpu"):
        stat = counts(read_texts(root, [f"{folder}/cpu.stat"]).of(f"{folder}/cpu.stat"))
        if "nr_periods" in stat and "nr_throttled" in stat:
            found[f"periods {folder}"] = stat["nr_periods"]
            found[f"throttled {folder}"] = stat["nr_throttled"]
    return found


def add_passed(sums: Counters, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Add to sums by how much each counter grew that both looks have."""
    for name, value in after.items():
        if name in before:
            # One that fell is of a process that was replaced.
            sums[name] = sums.get(name, 0.0) + max(0.0, value - before[name])
