"""`fastfeed-shard reshard`: the same samples in shards of another size, number or order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed_shard.recopy import classes_of, look_at, refuse_inside, run_copy, show_copy
from fastfeed_shard.recut import plan_copy
from fastfeed_shard.sources import shards_of
from fastfeed_shard.stored import Keys
from fastfeed_shard.target import target_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def reshard(options: argparse.Namespace, *, say: Callable[[str], None]) -> int:
    """Run the command; returns its exit code."""
    target = target_of(options)
    refuse_inside(options.src, options.dest)
    keys = Keys(rename=options.rename)
    sources = [(path, keys) for path in shards_of(options.src)]
    shards = look_at(sources, target, seed=options.shuffle or 0)
    copy = plan_copy(
        shards,
        name=target.name,
        shard_size=None if options.shards is not None else target.shard_size,
        count=options.shards,
        shuffle=options.shuffle is not None,
    )
    if options.dry_run:
        show_copy(copy, target, say)
        return 0
    classes, _ = classes_of([options.src])
    return run_copy(copy, target, classes=classes, say=say)
