"""What a loader measures, for other tools; each export is one line to switch on.

    ff.exports.trace(loader, "trace.json")            # for ui.perfetto.dev
    ff.exports.prometheus(loader, port=9400)
    ff.exports.tensorboard(loader, SummaryWriter())
    ff.exports.log(loader)
    ff.exports.nvtx(loader)                           # for Nsight Systems
    ff.exports.profiler(loader)                       # for torch.profiler

Each returns an `Export`, which ends with `close`, as a `with` does, or with the loader. An export
that is off costs nothing. `ff.exports.join("trace.json", "profile.json", "both.json")` puts a trace
and what torch.profiler saw of the GPU on one clock.
"""

from __future__ import annotations

from fastfeed.exports.export import Export
from fastfeed.exports.join import join
from fastfeed.exports.lines import log
from fastfeed.exports.ranges import nvtx, profiler
from fastfeed.exports.scalars import tensorboard
from fastfeed.exports.scrapes import prometheus
from fastfeed.exports.timeline import trace

__all__ = ["Export", "join", "log", "nvtx", "profiler", "prometheus", "tensorboard", "trace"]
