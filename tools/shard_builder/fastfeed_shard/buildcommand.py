"""`fastfeed-shard build`: read the source, plan the shards, and show or write them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.storage.open import local_path
from fastfeed.storage.urls import is_remote, shown
from fastfeed_shard.arguments import pairs_of
from fastfeed_shard.build import already_built, build_shards, open_folder, publish, stored_name
from fastfeed_shard.destination import Planned, is_complete, open_destination
from fastfeed_shard.folder import DatasetFolder
from fastfeed_shard.plan import Plan, digest_plan, plan_shards
from fastfeed_shard.progress import show_progress, size_text
from fastfeed_shard.samples import MadePart
from fastfeed_shard.sidecars import ENERGON_FOLDER
from fastfeed_shard.summary import summary
from fastfeed_shard.target import target_of
from fastfeed_shard.write import write_shards

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from fastfeed_shard.packing import Packed
    from fastfeed_shard.samples import Source
    from fastfeed_shard.target import Target

    Say = Callable[[str], None]


def build(options: argparse.Namespace, *, say: Say) -> int:
    """Run the command; returns its exit code."""
    begin = time.perf_counter()
    target = target_of(options)
    source = _source(options)
    if not source.samples:
        skipped = ", ".join(f"{count} {why}" for why, count in source.skipped.items())
        raise OptionError(
            f"there are no samples in {options.src!r}",
            way_out=f"Try another --layout; files skipped: {skipped or 'none'}",
        )
    source = _with_pictures(source, options, target)
    plan = plan_shards(source, name=target.name, shard_size=target.shard_size, seed=options.shuffle)
    if options.dry_run:
        for shard in plan.shards:
            name = stored_name(shard.name, target.compress)
            say(f"{name}\t{shard.stop - shard.start} samples\t{shard.nbytes} bytes")
        for line in () if target.quiet else _about_source(source, plan):
            say(line)
        return 0
    if target.resume and _is_complete(plan, target):
        say(f"{shown(target.dest)} is complete already")
        return 0
    build_to = _build_far if is_remote(target.dest) else _build_near
    packed = build_to(plan, source, target)
    if not target.quiet:
        for line in summary(packed, seconds=time.perf_counter() - begin):
            say(line)
        for line in _about_source(source, plan):
            say(line)
    return 0


def _is_complete(plan: Plan, target: Target) -> bool:
    if is_remote(target.dest):
        return is_complete(target.dest, _planned(plan, target))
    dest = Path(local_path(target.dest))
    if not already_built(plan, dest, compress=target.compress):
        return False
    if target.energon and not (dest / ENERGON_FOLDER).exists():
        raise OptionError(
            f"{str(dest)!r} is complete, without Energon's folder",
            way_out="Build into a new folder with --energon",
        )
    return True


def _build_near(plan: Plan, source: Source, target: Target) -> list[Packed]:
    """Write the shards to a folder of this machine."""
    dest = Path(local_path(target.dest))
    with open_folder(
        dest, plan, name=target.name, resume=target.resume, compress=target.compress
    ) as folder:
        with show_progress("packing", plan.nbytes, quiet=target.quiet) as progress:
            packed = build_shards(
                plan,
                folder,
                jobs=target.jobs,
                sync=target.sync,
                progress=progress,
                compress=target.compress,
            )
        publish(dest, packed, classes=source.classes, energon=target.energon, sync=target.sync)
        folder.complete()
    return packed


def _build_far(plan: Plan, source: Source, target: Target) -> list[Packed]:
    """Write the shards to a bucket, each by way of a folder of this machine."""
    planned = _planned(plan, target)
    with open_destination(
        target.dest,
        name=target.name,
        plan=f"{digest_plan(plan)} {target.describe()}",
        resume=target.resume,
        sync=False,
    ) as destination:
        folder = DatasetFolder(destination.folder, name=target.name, plan=None)

        def work(number: int) -> Packed:
            alone = Plan(plan.samples, [plan.shards[number]])
            (packed,) = build_shards(
                alone,
                folder,
                jobs=1,
                sync=False,
                progress=lambda _: None,
                compress=target.compress,
            )
            return packed

        with show_progress("packing", plan.nbytes, quiet=target.quiet) as progress:
            packed = write_shards(work, planned, destination, jobs=target.jobs, progress=progress)
        destination.complete(packed, classes=source.classes, energon=target.energon)
    return packed


def _planned(plan: Plan, target: Target) -> list[Planned]:
    return [
        Planned(stored_name(shard.name, target.compress), shard.stop - shard.start, shard.nbytes)
        for shard in plan.shards
    ]


def _source(options: argparse.Namespace) -> Source:
    """Read the source as its layout says, or as the name of SRC suggests."""
    src = options.src
    suffix = src.rpartition(".")[2].lower()
    layout = options.layout or {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(suffix)
    if layout in {"csv", "jsonl"}:
        from fastfeed_shard.table import Columns, read_table

        columns = Columns(
            key=options.key,
            files=pairs_of(options.files),
            fields=pairs_of(options.fields),
            allow_outside=options.allow_outside,
            rename=options.rename,
        )
        return read_table(src, layout=layout, columns=columns)
    from fastfeed_shard.scan import scan_folder

    if any((options.key, options.files, options.fields, options.allow_outside)):
        raise OptionError(
            "--key, --files, --fields and --allow-outside are for tables",
            way_out="Give a CSV or JSONL file as SRC",
        )
    inside = not is_remote(options.dest) and Path(local_path(options.dest)).resolve()
    if inside and inside.is_relative_to(Path(src).resolve()):
        raise OptionError(
            f"the destination {options.dest!r} is inside the source {src!r}",
            way_out="Name a folder elsewhere",
        )
    return scan_folder(src, classes=layout != "files", rename=options.rename)


def _with_pictures(source: Source, options: argparse.Namespace, target: Target) -> Source:
    """Return the source as `--pictures` wants it."""
    if options.pictures is None:
        if options.side is not None or options.square:
            raise OptionError(
                "--side and --square say how pictures are made raw",
                way_out="Add --pictures raw",
            )
        return source
    from fastfeed_shard.pictures import RawPictures, make_raw

    recipe = RawPictures(options.side or 256, square=options.square)
    with show_progress("measuring", 0, quiet=target.quiet) as progress:
        return make_raw(source, recipe, jobs=target.jobs, progress=progress)


def _about_source(source: Source, plan: Plan) -> Iterator[str]:
    """Yield lines about fields, pictures that are made, and files that are left out."""
    made = [part for sample in plan.samples for part in sample.parts if isinstance(part, MadePart)]
    if made:
        before, after = sum(part.source.size for part in made), sum(part.size for part in made)
        yield (
            f"pictures: {len(made):,} raw, {size_text(after)} ({size_text(after / len(made))} "
            f"each), files {size_text(before)} ({size_text(before / len(made))} each)"
        )
    if source.skipped:
        skipped = (f"{count:,} {why}" for why, count in sorted(source.skipped.items()))
        yield "skipped files: " + ", ".join(skipped)
