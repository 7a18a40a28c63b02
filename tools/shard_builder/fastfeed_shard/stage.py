"""`fastfeed-shard stage`: bring shards to a cache folder ahead of the job that will read them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, OptionError
from fastfeed.options import Cache
from fastfeed.reading.sources import list_shards
from fastfeed.staging.shelf import Refusal
from fastfeed.staging.source import describe
from fastfeed.staging.warm import warm
from fastfeed.storage.urls import is_remote, shown
from fastfeed_shard.progress import show_progress, size_text
from fastfeed_shard.sources import shards_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from fastfeed.staging.source import Source
    from fastfeed.staging.warm import Warmed

    Say = Callable[[str], None]


def stage(options: argparse.Namespace, *, say: Say, fail: Say) -> int:
    """Run the command; returns its exit code, which is 1 if a shard did not come."""
    begin = time.perf_counter()
    cache = Cache(options.folder, options.size)
    sources = sources_of([path for url in options.urls for path in shards_of(url)])
    total = sum(source.size for source in sources)
    if options.dry_run:
        for source in sources:
            say(f"{shown(source.url)}\t{source.size} bytes")
        say(f"{len(sources):,} shards, {size_text(total)}, of {size_text(cache.nbytes)} allowed")
        return 0
    with show_progress("staging", total, quiet=options.quiet) as progress:
        done = warm(sources, cache, progress=lambda warmed: progress(warmed.source.size))
    missing = [warmed for warmed in done if not _is_fine(warmed)]
    for warmed in missing:
        fail(_why_not(warmed))
    if not options.quiet:
        brought = sum(warmed.nbytes for warmed in done)
        seconds = time.perf_counter() - begin
        say(
            f"{len(done) - len(missing):,} of {len(done):,} shards are in {str(options.folder)!r}; "
            f"{size_text(brought)} brought, {seconds:.2f} s, {size_text(brought / seconds)}/s"
        )
    return 1 if missing else 0


def sources_of(paths: Sequence[str]) -> list[Source]:
    """Return what a data set calls these shards in its cache: by their manifest, or their tag."""
    near = [path for path in paths if not is_remote(path)]
    if near:
        raise OptionError(
            f"{near[0]!r} is on this machine, and read where it lies",
            way_out="Name URLs",
        )
    listing = list_shards(list(paths))
    listed = {source.url: source for source in listing.sources()}
    sources: list[Source] = []
    for path in listing.paths:
        source = listed.get(path) or describe(path)
        if source is None:
            raise OptionError(
                f"{shown(path)!r}: the server says no version of it, so no cache may keep it",
                way_out="Write a manifest with `fastfeed-shard index`: its digests tell versions",
            )
        sources.append(source)
    return sources


def _is_fine(warmed: Warmed) -> bool:
    """Say whether a shard is in the cache, or on its way there by somebody else."""
    return warmed.why_not is None or warmed.why_not is Refusal.THERE


def _why_not(warmed: Warmed) -> str:
    reason = warmed.why_not
    if reason is Refusal.TOO_LARGE:
        size = size_text(warmed.source.size)
        return f"{shown(warmed.source.url)}: --size is too small, as this shard alone has {size}"
    if isinstance(reason, FastfeedError):
        return f"{shown(warmed.source.url)}: {reason}"
    return f"{shown(warmed.source.url)}: {getattr(reason, 'value', reason)!s}"
