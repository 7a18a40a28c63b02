"""Names for the loader's steps in the trainer's process, for profilers that show code by name.

The steps are `fastfeed.sample` (the sampler is asked), `fastfeed.wait` (for a worker's result),
`fastfeed.open` (the batch is made of what came), `fastfeed.device` (in the thread that moves
batches), and without workers `fastfeed.fetch`. A loader names its steps when an epoch begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.exports.export import Export, collector_of

if TYPE_CHECKING:
    from fastfeed.exports.export import Measured


def nvtx(loader: Measured) -> Export:
    """Show the steps as NVTX ranges, from the next epoch on: for Nsight Systems.

    OptionError if torch was built without CUDA.
    """
    from torch.cuda import nvtx as ranges

    collector = collector_of(loader)
    try:
        with ranges.range("fastfeed"):
            pass
    except RuntimeError as error:
        raise OptionError(
            f"torch has no NVTX here: {error}",
            way_out="Use a torch built for CUDA, or ff.exports.profiler with torch.profiler",
        ) from error
    return Export(loader, collector.mark(ranges.range))


def profiler(loader: Measured) -> Export:
    """Show the steps in `torch.profiler`, beside kernels and operators, from the next epoch on."""
    from torch.profiler import record_function

    return Export(loader, collector_of(loader).mark(record_function))
