"""Run a planned copy of samples: show it, or write its shards and say what was written."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.reading.sources import is_pattern
from fastfeed.storage.open import local_path, read_if_there
from fastfeed.storage.urls import is_remote, shown
from fastfeed_shard.build import CLASSES_NAME, stored_name
from fastfeed_shard.copying import copy_samples
from fastfeed_shard.destination import Planned, is_complete, open_destination
from fastfeed_shard.importers.whole import join
from fastfeed_shard.packing import Packed, ShardFile
from fastfeed_shard.progress import show_progress
from fastfeed_shard.sources import is_folder
from fastfeed_shard.stored import count_fields, read_shards
from fastfeed_shard.summary import summary
from fastfeed_shard.write import write_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastfeed_shard.recut import Copy
    from fastfeed_shard.stored import Keys, StoredShard
    from fastfeed_shard.target import Target

    Say = Callable[[str], None]

_LIMIT = 1 << 30


def look_at(
    sources: Sequence[tuple[str, Keys]], target: Target, *, seed: int = 0
) -> list[StoredShard]:
    """Walk the shards of a source, with a bar."""
    with show_progress("looking", 0, quiet=target.quiet) as progress:
        return read_shards(sources, jobs=target.jobs, seed=seed, progress=progress)


def show_copy(copy: Copy, target: Target, say: Say) -> None:
    """Say what the shards of a copy would be."""
    for name, samples, nbytes in zip(copy.names, copy.samples(), copy.nbytes(), strict=True):
        say(f"{stored_name(name, target.compress)}\t{samples} samples\t{nbytes} bytes")


def run_copy(copy: Copy, target: Target, *, classes: Sequence[str] | None, say: Say) -> int:
    """Write the shards of a copy and the documents of the data set; returns an exit code."""
    begin = time.perf_counter()
    names = [stored_name(name, target.compress) for name in copy.names]
    planned = list(map(Planned, names, copy.samples(), copy.nbytes()))
    if target.resume and is_complete(target.dest, planned, fields=count_fields(copy.shards)):
        say(f"{shown(target.dest)} is complete already")
        return 0
    parent = os.getpid()
    with open_destination(
        target.dest,
        name=target.name,
        plan=copy.digest(target.describe()),
        resume=target.resume,
        sync=target.sync,
    ) as destination:

        def work(number: int) -> Packed:
            path = destination.folder / names[number]
            with ShardFile(path, sync=target.sync, compress=target.compress) as out:
                copy_samples(
                    out, copy.rows(number), copy.shards, in_order=copy.in_order, parent=parent
                )
                return out.finish()

        with show_progress("copying", sum(copy.nbytes()), quiet=target.quiet) as progress:
            packed = write_shards(work, planned, destination, jobs=target.jobs, progress=progress)
        destination.complete(packed, classes=classes, energon=target.energon)
    if not target.quiet:
        for line in summary(packed, seconds=time.perf_counter() - begin):
            say(line)
    return 0


def classes_of(sources: Sequence[str]) -> tuple[list[str] | None, bool]:
    """Return the names of classes that all sources agree on, and whether they disagree."""
    found = [
        read_if_there(join(source, CLASSES_NAME), limit=_LIMIT) if is_folder(source) else None
        for source in sources
    ]
    known = {content for content in found if content is not None}
    if len(known) != 1 or None in found:
        return None, len(known) > 1
    return known.pop().decode("utf-8", "surrogateescape").splitlines(), False


def refuse_inside(src: str, dest: str) -> None:
    """Refuse a destination inside of the source, where both are folders of this machine."""
    if is_remote(src) or is_remote(dest) or is_pattern(src):
        inside = is_remote(dest) and dest.rstrip("/") == src.rstrip("/")
    else:
        inside = Path(local_path(dest)).resolve().is_relative_to(Path(local_path(src)).resolve())
    if inside:
        raise OptionError(
            f"the destination {shown(dest)!r} is inside the source {shown(src)!r}",
            way_out="Name a place elsewhere",
        )
