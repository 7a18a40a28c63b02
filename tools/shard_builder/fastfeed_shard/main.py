"""The `fastfeed-shard` command: what it accepts, what it prints, its exit codes.

0: done, or proven whole. 1: the data are not right, or cannot be read or written. 2: the call is
not right. Each command's own module is loaded only when the command is given.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, OptionError
from fastfeed.options import parse_size
from fastfeed_shard.arguments import make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from fastfeed_shard.plan import Plan
    from fastfeed_shard.samples import Source


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = make_parser(_COMMANDS).parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        code = command(options)
        sys.stdout.flush()
    except OptionError as error:
        return _fail(error, 2)
    except FastfeedError as error:
        return _fail(error, 1)
    except BrokenPipeError:
        # Whoever read our output has enough; nothing more can be said to them at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return code


def _fail(error: object, code: int) -> int:
    print(f"fastfeed-shard: {error}", file=sys.stderr)  # noqa: T201 - a command prints
    return code


def _say(line: str) -> None:
    print(line)  # noqa: T201 - a command prints


def _build(options: argparse.Namespace) -> int:
    from fastfeed_shard.build import already_built, build_shards, open_folder, publish
    from fastfeed_shard.frames import parse_compression
    from fastfeed_shard.plan import plan_shards
    from fastfeed_shard.progress import show_progress
    from fastfeed_shard.sidecars import ENERGON_FOLDER

    begin = time.perf_counter()
    dest = Path(options.dest)
    compress = parse_compression(options.compress, level=options.level, frame=options.frame)
    if compress is not None and options.energon:
        raise OptionError("Energon reads plain tars only", way_out="Leave out one of the two")
    source = _source(options)
    if not source.samples:
        skipped = ", ".join(f"{count} {why}" for why, count in source.skipped.items())
        raise OptionError(
            f"there are no samples in {options.src!r}",
            way_out=f"Try another --layout; files skipped: {skipped or 'none'}",
        )
    source = _with_pictures(source, options)
    plan = plan_shards(
        source,
        name=options.name,
        shard_size=parse_size(options.shard_size, name="shard size"),
        seed=options.shuffle,
    )
    if options.dry_run:
        for shard in plan.shards:
            _say(f"{shard.name}\t{shard.stop - shard.start} samples\t{shard.nbytes} bytes")
    elif options.resume and already_built(plan, dest, compress=compress):
        if options.energon and not (dest / ENERGON_FOLDER).exists():
            raise OptionError(
                f"{str(dest)!r} is complete, without Energon's folder",
                way_out="Build into a new folder with --energon",
            )
        _say(f"{dest} is complete already")
        return 0
    else:
        with open_folder(
            dest, plan, name=options.name, resume=options.resume, compress=compress
        ) as folder:
            with show_progress("packing", plan.nbytes, quiet=options.quiet) as progress:
                packed = build_shards(
                    plan,
                    folder,
                    jobs=_jobs(options),
                    sync=options.sync,
                    progress=progress,
                    compress=compress,
                )
            publish(
                dest, packed, classes=source.classes, energon=options.energon, sync=options.sync
            )
            folder.complete()
    if not options.quiet:
        _summarise(source, plan, time.perf_counter() - begin)
    return 0


def _source(options: argparse.Namespace) -> Source:
    """Read the source as its layout says, or as the name of SRC suggests."""
    src = options.src
    suffix = src.rpartition(".")[2].lower()
    layout = options.layout or {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}.get(suffix)
    if layout in {"csv", "jsonl"}:
        from fastfeed_shard.table import Columns, read_table

        columns = Columns(
            key=options.key,
            files=_pairs(options.files),
            fields=_pairs(options.fields),
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
    if Path(options.dest).resolve().is_relative_to(Path(src).resolve()):
        raise OptionError(
            f"the destination {options.dest!r} is inside the source {src!r}",
            way_out="Name a folder elsewhere",
        )
    return scan_folder(src, classes=layout != "files", rename=options.rename)


def _with_pictures(source: Source, options: argparse.Namespace) -> Source:
    """Return the source as `--pictures` wants it."""
    from fastfeed_shard.progress import show_progress

    if options.pictures is None:
        if options.side is not None or options.square:
            raise OptionError(
                "--side and --square say how pictures are made raw",
                way_out="Add --pictures raw",
            )
        return source
    from fastfeed_shard.pictures import RawPictures, make_raw

    recipe = RawPictures(options.side or 256, square=options.square)
    with show_progress("measuring", 0, quiet=options.quiet) as progress:
        return make_raw(source, recipe, jobs=_jobs(options), progress=progress)


def _pairs(text: str | None) -> dict[str, str] | None:
    """Return `image=jpg,mask` as {"image": "jpg", "mask": ""}."""
    if text is None:
        return None
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {column.strip(): field.strip().lower() for column, _, field in pairs}


def _summarise(source: Source, plan: Plan, seconds: float) -> None:
    from fastfeed_shard.progress import size_text
    from fastfeed_shard.samples import MadePart

    fields: dict[str, int] = {}
    made: list[MadePart] = []
    for sample in plan.samples:
        for part in sample.parts:
            fields[part.field] = fields.get(part.field, 0) + 1
            if isinstance(part, MadePart):
                made.append(part)
    _say(
        f"{len(plan.samples):,} samples in {len(plan.shards):,} shards, {size_text(plan.nbytes)}, "
        f"{seconds:.2f} s, {size_text(plan.nbytes / seconds)}/s"
    )
    _say("fields: " + ", ".join(f"{name} ({fields[name]:,})" for name in sorted(fields)))
    if made:
        before, after = sum(part.source.size for part in made), sum(part.size for part in made)
        _say(
            f"pictures: {len(made):,} raw, {size_text(after)} ({size_text(after / len(made))} "
            f"each), files {size_text(before)} ({size_text(before / len(made))} each)"
        )
    if source.skipped:
        skipped = (f"{count:,} {why}" for why, count in sorted(source.skipped.items()))
        _say("skipped files: " + ", ".join(skipped))


def _index(options: argparse.Namespace) -> int:
    from fastfeed_shard.progress import show_progress, size_text
    from fastfeed_shard.reindex import index_shards

    begin = time.perf_counter()
    with show_progress("indexing", 0, quiet=options.quiet) as progress:
        packed = index_shards(options.shards, jobs=_jobs(options), progress=progress)
    if not options.quiet:
        samples = sum(shard.entry.samples for shard in packed)
        nbytes = sum(shard.entry.bytes for shard in packed)
        _say(
            f"indexed {samples:,} samples in {len(packed):,} shards, {size_text(nbytes)}, "
            f"{time.perf_counter() - begin:.2f} s"
        )
    return 0


def _verify(options: argparse.Namespace) -> int:
    from fastfeed_shard.browse import shown
    from fastfeed_shard.progress import show_progress, size_text
    from fastfeed_shard.verify import verify_shards

    needed = [name for name in (options.fields or "").split(",") if name]
    with show_progress("verifying", 0, quiet=options.quiet) as progress:
        verdict = verify_shards(
            options.dest,
            jobs=_jobs(options),
            decode=options.decode,
            needed=needed,
            progress=progress,
        )
    for line in verdict.problems:
        _fail(shown(line), 1)
    for line in verdict.warnings:
        _fail(f"warning: {shown(line)}", 0)
    if not options.quiet:
        fields = ", ".join(f"{shown(name)} ({count:,})" for name, count in verdict.fields.items())
        _say(
            f"{verdict.samples:,} samples in {verdict.shards:,} shards, "
            f"{size_text(verdict.nbytes)}; fields: {fields or 'none'}"
        )
        _say(f"{len(verdict.problems):,} problems" if verdict.problems else "whole")
    return 1 if verdict.problems else 0


def _ls(options: argparse.Namespace) -> int:
    from fastfeed_shard.browse import list_samples

    for line in list_samples(options.dest):
        _say(line)
    return 0


def _cat(options: argparse.Namespace) -> int:
    from fastfeed_shard.browse import copy_fields

    copy_fields(options.dest, options.key, sys.stdout.buffer.write)
    sys.stdout.buffer.flush()
    return 0


def _extract(options: argparse.Namespace) -> int:
    from fastfeed_shard.extract import extract_shards
    from fastfeed_shard.progress import show_progress, size_text

    with show_progress("extracting", 0, quiet=options.quiet) as progress:
        files, nbytes = extract_shards(options.dest, Path(options.folder), progress=progress)
    if not options.quiet:
        _say(f"{files:,} files, {size_text(nbytes)}")
    return 0


def _jobs(options: argparse.Namespace) -> int:
    if options.jobs is not None:
        return int(options.jobs)
    from fastfeed.topology import usable_cores

    return usable_cores(environment=os.environ).count


_COMMANDS = {
    "build": _build,
    "index": _index,
    "verify": _verify,
    "ls": _ls,
    "cat": _cat,
    "extract": _extract,
}

if __name__ == "__main__":
    sys.exit(main())
