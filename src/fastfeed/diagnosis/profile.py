"""A few steps under torch.profiler; it is loaded on use, for it takes a second."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.diagnosis.trace import Event

# Longer traces take seconds to write and read; a few steps say what there is to say.
_LARGEST = 128 << 20


def profiled(steps: Callable[[], None], *, on_device: bool) -> list[Event] | str:
    """Run steps under the profiler; return the events of its trace, or why there are none.

    On a device only what it ran and what was asked of it is recorded: what operators the host ran
    is not, since that makes the host slower.
    """
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if on_device else ProfilerActivity.CPU
    try:
        with profile(activities=[activity]) as profiler:
            steps()
    except RuntimeError as error:  # another profiler is at work, or the driver forbids it
        return f"torch.profiler: {error}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > _LARGEST:
            return f"the trace of a few steps has more than {_LARGEST >> 20} MiB"
        document = json.loads(path.read_bytes())
    return [event for event in document.get("traceEvents", []) if isinstance(event, dict)]
