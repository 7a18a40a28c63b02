"""The `fastfeed-shard` command: what it accepts, what it prints, its exit codes.

0: done, or proven whole. 1: the data are not right, or cannot be read or written. 2: the call is
not right. Each command's own module is loaded only when the command is given.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.command import complain, run_command
from fastfeed_shard.arguments import make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_PROGRAM = "fastfeed-shard"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return run_command(_PROGRAM, make_parser(_COMMANDS).parse_args(arguments))


def _warn(line: str) -> None:
    complain(_PROGRAM, line)


def _say(line: str) -> None:
    print(line)  # noqa: T201 - a command prints


def _build(options: argparse.Namespace) -> int:
    from fastfeed_shard.buildcommand import build

    return build(options, say=_say)


def _convert(options: argparse.Namespace) -> int:
    from fastfeed_shard.convert import convert

    return convert(options, say=_say)


def _merge(options: argparse.Namespace) -> int:
    from fastfeed_shard.merge import merge

    return merge(options, say=_say)


def _reshard(options: argparse.Namespace) -> int:
    from fastfeed_shard.reshard import reshard

    return reshard(options, say=_say)


def _stage(options: argparse.Namespace) -> int:
    from fastfeed_shard.stage import stage

    return stage(options, say=_say, fail=_warn)


def _index(options: argparse.Namespace) -> int:
    from fastfeed_shard.progress import show_progress, size_text
    from fastfeed_shard.reindex import index_shards
    from fastfeed_shard.target import jobs_of

    begin = time.perf_counter()
    with show_progress("indexing", 0, quiet=options.quiet) as progress:
        packed = index_shards(options.shards, jobs=jobs_of(options), progress=progress)
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
    from fastfeed_shard.target import jobs_of
    from fastfeed_shard.verify import verify_shards

    needed = [name for name in (options.fields or "").split(",") if name]
    with show_progress("verifying", 0, quiet=options.quiet) as progress:
        verdict = verify_shards(
            options.dest,
            jobs=jobs_of(options),
            decode=options.decode,
            needed=needed,
            progress=progress,
        )
    for line in verdict.problems:
        _warn(shown(line))
    for line in verdict.warnings:
        _warn(f"warning: {shown(line)}")
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


_COMMANDS = {
    "build": _build,
    "convert": _convert,
    "merge": _merge,
    "reshard": _reshard,
    "stage": _stage,
    "index": _index,
    "verify": _verify,
    "ls": _ls,
    "cat": _cat,
    "extract": _extract,
}

if __name__ == "__main__":
    sys.exit(main())
