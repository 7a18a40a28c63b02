"""One file for somebody else to look into: report, figures, and a trace that viewers open."""

from __future__ import annotations

import gzip
import json
import os
import re
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fastfeed.doctor.parse import core_shares, counts, disks, pressure
from fastfeed.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastfeed.doctor.report import Report
    from fastfeed.doctor.seen import Round, Seen
    from fastfeed.doctor.texts import Texts

_CORES, _GPUS, _REST = 1, 2, 3
_TITLES = {_CORES: "cores", _GPUS: "GPUs", _REST: "disks and memory"}


def write_capture(path: Path, seen: Seen, report: Report) -> None:
    """Write the bundle, packed if the name ends with .gz; it has its name when it is whole.

    The same look gives the same bytes. StorageError if it cannot be written.
    """
    text = json.dumps(bundle(seen, report), sort_keys=True, default=_plain).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(
            f"the capture {path.name!r} cannot be written: {error.strerror or error}",
            way_out="Name a file in a folder that can be written",
        ) from error


def bundle(seen: Seen, report: Report) -> dict[str, Any]:
    """Return the bundle: a Chrome trace whose other data hold the report and all that was seen."""
    return {
        "displayTimeUnit": "ms",
        "traceEvents": list(events(seen)),
        "otherData": {
            "report": report.document(),
            "gpus": [asdict(gpu) for gpu in seen.gpus],
            "samples": [
                {"at": one.at, "gpus": [asdict(gpu) for gpu in one.gpus]} for one in seen.rounds
            ],
            "first": _without_names(seen.first),
            "last": _without_names(seen.last),
        },
    }


def events(seen: Seen) -> Iterator[dict[str, Any]]:
    """Yield the counters of a look as events of a Chrome trace, in microseconds."""
    for pid, title in _TITLES.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    for before, after in pairwise(seen.rounds):
        yield from _between(before, after)
    for one in seen.rounds:
        for gpu in one.gpus:
            for name, value in (
                ("use %", gpu.busy),
                ("SM clock MHz", gpu.clock),
                ("power W", gpu.power),
                ("PCIe to it MB/s", None if gpu.received is None else gpu.received / 1e6),
                ("PCIe from it MB/s", None if gpu.sent is None else gpu.sent / 1e6),
            ):
                if value is not None:
                    yield _counter(_GPUS, f"GPU {gpu.index} {name}", one.at, {"value": value})
        available = counts(one.texts.of("proc/meminfo")).get("MemAvailable")
        if available is not None:
            yield _counter(_REST, "memory available MiB", one.at, {"value": available >> 20})


def _between(before: Round, after: Round) -> Iterator[dict[str, Any]]:
    """Yield what happened between two rounds, at the first one's time."""
    seconds = after.at - before.at
    shares = core_shares(before.texts.of("proc/stat"), after.texts.of("proc/stat"))
    for name, share in shares.items():
        parts = {
            "user": share.user,
            "system": share.system,
            "interrupts": share.interrupts,
            "waiting for I/O": share.waiting,
        }
        percent = {part: round(100 * value, 1) for part, value in parts.items()}
        yield _counter(_CORES, f"{name} %", before.at, percent)
    first = disks(before.texts.of("proc/diskstats"))
    for name, disk in disks(after.texts.of("proc/diskstats")).items():
        if name in first and seconds > 0:
            rates = {
                "read": max(0, disk.read_bytes - first[name].read_bytes) / seconds / 1e6,
                "written": max(0, disk.written_bytes - first[name].written_bytes) / seconds / 1e6,
            }
            yield _counter(_REST, f"{name} MB/s", before.at, rates)
    for kind in ("cpu", "io", "memory"):
        name = f"proc/pressure/{kind}"
        stalled = pressure(before.texts.of(name), after.texts.of(name), seconds)
        if stalled is not None:
            value = {"value": round(100 * stalled, 1)}
            yield _counter(_REST, f"{kind} pressure %", before.at, value)


def _counter(pid: int, name: str, at: float, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": pid, "ts": round(at * 1e6), "args": values}


def _without_names(texts: Texts) -> dict[str, str]:
    """Return the texts without names of files and servers, which are nobody else's business."""
    return {
        name: re.sub(r"^device \S+", "device -", text, flags=re.MULTILINE)
        for name, text in texts.found.items()
        if "/fd/" not in name and not name.endswith("/numa_maps")
    }


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)
