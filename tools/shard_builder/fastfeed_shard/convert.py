"""`fastfeed-shard convert`: shards and data sets of other formats into shards of ours."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import FastfeedError, OptionError
from fastfeed.storage.open import facts
from fastfeed.storage.urls import shown
from fastfeed_shard.arguments import pairs_of
from fastfeed_shard.destination import FinishedDestination, open_destination
from fastfeed_shard.importers.columns import Columns
from fastfeed_shard.progress import show_progress, size_text
from fastfeed_shard.recopy import classes_of, look_at, refuse_inside, run_copy, show_copy
from fastfeed_shard.recut import plan_copy
from fastfeed_shard.sources import find_kind, importer_of, shards_of
from fastfeed_shard.stored import Keys
from fastfeed_shard.stream import Stream
from fastfeed_shard.summary import summary
from fastfeed_shard.target import target_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from fastfeed_shard.importers.rows import Importer
    from fastfeed_shard.target import Target

    Say = Callable[[str], None]


def convert(options: argparse.Namespace, *, say: Say) -> int:
    """Run the command; returns its exit code."""
    target = target_of(options)
    refuse_inside(options.src, options.dest)
    kind = options.kind or find_kind(options.src)
    if kind != "shards":
        return _convert_foreign(options, target, kind, say=say)
    if options.key or options.fields:
        raise OptionError(
            "--key and --fields are for columns, and shards have none",
            way_out="Leave them out",
        )
    keys = Keys(rename=options.rename)
    shards = look_at([(path, keys) for path in shards_of(options.src)], target)
    size = None if options.shard_size is None else target.shard_size
    copy = plan_copy(shards, name=target.name, shard_size=size)
    if options.dry_run:
        show_copy(copy, target, say)
        return 0
    classes, _ = classes_of([options.src])
    return run_copy(copy, target, classes=classes, say=say)


def _convert_foreign(options: argparse.Namespace, target: Target, kind: str, *, say: Say) -> int:
    begin = time.perf_counter()
    importer = importer_of(options.src, kind)
    named = pairs_of(options.fields) or {}
    columns = Columns(key=options.key, fields=named, rename=options.rename)
    if options.dry_run:
        _show(importer, kind, columns, say)
        return 0
    how = f"{target.describe()} {kind} {options.key} {sorted(named.items())} {options.rename}"
    with (
        open_destination(
            target.dest,
            name=target.name,
            plan=_digest(importer, how),
            resume=target.resume,
            sync=target.sync,
        ) as destination,
        show_progress("converting", 0, quiet=target.quiet) as progress,
        Stream(destination, target, progress=progress) as stream,
        closing(importer.rows()) as rows,
    ):
        for number, row in enumerate(rows):
            key, parts = columns.sample(number, row)
            try:
                stream.add(key, parts)
            except FastfeedError as error:
                error.fact = f"{row.place}: {error.fact}"
                raise
        columns.check()
        packed = stream.finish()
        classes = _classes(importer, columns)
        destination.complete(packed, classes=classes, energon=target.energon)
    if isinstance(destination, FinishedDestination):
        say(f"{shown(target.dest)} is complete already")
    elif not target.quiet:
        for line in summary(packed, seconds=time.perf_counter() - begin):
            say(line)
        say("columns: " + ", ".join(f"{name}={field}" for name, field in columns.fields.items()))
    return 0


def _digest(importer: Importer, how: str) -> str:
    """Return a digest of all that the bytes of the shards depend on, times of files included."""
    state = xxhash.xxh3_128(how.encode())
    for path in importer.files:
        known = facts(path)
        state.update(f"{shown(path)} {known.size} {known.tag}\n".encode())
    return state.hexdigest()


def _show(importer: Importer, kind: str, columns: Columns, say: Say) -> None:
    """Say what would be read, and what its first sample would be."""
    nbytes = sum(facts(path).size or 0 for path in importer.files)
    say(f"{kind}\t{len(importer.files)} files\t{size_text(nbytes)}")
    with closing(importer.rows()) as rows:
        for row in islice(rows, 1):
            key, parts = columns.sample(0, row)
            for field, data in parts:
                say(f"{key}.{field}\t{len(data)} bytes")


def _classes(importer: Importer, columns: Columns) -> list[str] | None:
    """Return the names of the classes that the field `cls` numbers, if the source has them."""
    for column, names in importer.classes.items():
        if columns.fields.get(column) == "cls" and not any("\n" in name for name in names):
            return list(names)
    return None
