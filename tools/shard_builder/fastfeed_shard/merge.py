"""`fastfeed-shard merge`: the shards of several data sets into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed_shard.recopy import classes_of, look_at, refuse_inside, run_copy, show_copy
from fastfeed_shard.recut import plan_copy
from fastfeed_shard.sources import shards_of
from fastfeed_shard.stored import Keys
from fastfeed_shard.target import target_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def merge(options: argparse.Namespace, *, say: Callable[[str], None]) -> int:
    """Run the command; returns its exit code."""
    target = target_of(options)
    prefixes = [""] * len(options.src) if options.prefix is None else options.prefix.split(",")
    if len(prefixes) != len(options.src):
        raise OptionError(
            f"--prefix has {len(prefixes)} prefixes for {len(options.src)} sources",
            way_out="Give one for each, parted by commas; it may be empty",
        )
    sources: list[tuple[str, Keys]] = []
    for src, prefix in zip(options.src, prefixes, strict=True):
        refuse_inside(src, options.dest)
        keys = Keys(prefix, rename=options.rename)
        sources += ((path, keys) for path in shards_of(src))
    shards = look_at(sources, target)
    size = None if options.shard_size is None else target.shard_size
    copy = plan_copy(shards, name=target.name, shard_size=size)
    if options.dry_run:
        show_copy(copy, target, say)
        return 0
    classes, disagree = classes_of(options.src)
    code = run_copy(copy, target, classes=classes, say=say)
    if disagree:
        say("the sources number classes differently (classes.txt): `cls` means several things now")
    return code
