"""Write planned shards with a few processes, and hand each to its destination when it is whole."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from fastfeed_shard.pool import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastfeed_shard.destination import Destination, Planned
    from fastfeed_shard.packing import Packed


def write_shards(
    work: Callable[[int], Packed],
    planned: Sequence[Planned],
    destination: Destination,
    *,
    jobs: int,
    progress: Callable[[int], None],
) -> list[Packed]:
    """Call `work` with the number of each shard that is not there yet; returns all in their order.

    `work` writes to the folder of the destination. A shard is delivered by this process while
    others are written; at most two for each of the `jobs` are on the disk of this machine at a
    time, if they don't stay there. `progress` is called with the bytes of each that is done.
    """

    def work_or_keep(number: int) -> Packed:
        kept = destination.kept(planned[number].name)
        if kept is not None and kept.entry.samples == planned[number].samples:
            return kept
        return work(number)

    done: dict[int, Packed] = {}
    names = [shard.name for shard in planned]
    with closing(run_tasks(work_or_keep, names, jobs=jobs)) as results:
        for number, packed in results:
            destination.deliver(packed)
            done[number] = packed
            progress(packed.entry.bytes)
    return [done[number] for number in sorted(done)]
