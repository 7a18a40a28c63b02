"""One file of a loader's trace and of what torch.profiler saw: workers and kernels on one clock."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed.errors import OptionError, StorageError

if TYPE_CHECKING:
    import os

UNIX = "unix_ns_minus_clock"
"""Says in a trace's `otherData` how far its clock is behind Unix's, which profilers show."""
_GZIP = b"\x1f\x8b"


def join(
    trace: str | os.PathLike[str], profile: str | os.PathLike[str], path: str | os.PathLike[str]
) -> None:
    """Write to `path` the events of a `trace` and of a `profile`, for ui.perfetto.dev.

    The trace is what `fastfeed.exports.trace` wrote, the profile what `export_chrome_trace` of
    torch.profiler did (or its handler for TensorBoard), in the same run on the same machine.
    OptionError if they are not, StorageError if a file cannot be read or written.
    """
    ours, theirs = _read(Path(trace)), _read(Path(profile))
    ahead_ns = ours.get("otherData", {}).get(UNIX)
    if ahead_ns is None:
        raise OptionError(
            f"{Path(trace).name!r} does not say which clock it is on",
            way_out="Give the file of ff.exports.trace first, then that of torch.profiler",
        )
    shift_us = (ahead_ns - theirs.get("baseTimeNanoseconds", 0)) / 1e3
    # Profilers number devices as processes, from 0 up; in a container the trainer may be 1.
    numbers = [one["pid"] for one in theirs["traceEvents"] if isinstance(one.get("pid"), int)]
    for event in ours["traceEvents"]:
        event["pid"] += 1 + max(numbers, default=0)
        if "ts" in event:
            event["ts"] += shift_us
        elif event["name"] == "process_name":
            event["args"]["name"] = f"fastfeed: {event['args']['name']}"
    joined = {**theirs, "traceEvents": [*theirs["traceEvents"], *ours["traceEvents"]]}
    try:
        Path(path).write_text(json.dumps(joined))
    except OSError as error:
        raise StorageError(f"cannot write {Path(path).name!r}: {error.strerror}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path.name!r}: {error.strerror}") from error
    try:
        document = json.loads(gzip.decompress(content) if content[:2] == _GZIP else content)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise OptionError(f"{path.name!r} is no trace in Chrome's JSON format")
    return document
