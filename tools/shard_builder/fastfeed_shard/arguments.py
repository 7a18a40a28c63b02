"""The arguments of the `fastfeed-shard` command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastfeed.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Command = Callable[[argparse.Namespace], int]

LAYOUTS = ("folders", "files", "csv", "jsonl")
KINDS = ("shards", "parquet", "huggingface", "mds", "tfrecord")
"""What a source of `convert` may be."""


def make_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser; `commands` are the functions to call, by name."""
    parser = argparse.ArgumentParser(
        prog="fastfeed-shard",
        description="Packs data sets into tar shards with indexes, and looks into them.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = subparsers.add_parser(name, help=text, description=text)
        made.set_defaults(command=commands[name])
        return made

    _add_build(command("build", "Pack a folder or a table of files into shards."))
    _add_convert(command("convert", "Write shards, or data sets of other formats, as new shards."))
    _add_merge(command("merge", "Write the samples of several data sets into one."))
    _add_reshard(command("reshard", "Write the same samples in other shards or another order."))
    _add_stage(command("stage", "Bring remote shards to a cache folder ahead of a job."))
    index = command("index", "Write the indexes of shards made by any tool.")
    index.add_argument(
        "shards", nargs="+", metavar="SHARDS", help="tars, patterns, or folders (with manifest)"
    )
    verify = command("verify", "Prove that a data set is whole; exit code 1 if it is not.")
    verify.add_argument("dest", metavar="DEST", help="folder, tar, or pattern of tars")
    verify.add_argument("--decode", action="store_true", help="decode pictures and values too")
    verify.add_argument("--fields", metavar="A,B", help="fields that every sample must have")
    listing = command("ls", "List samples: shard, key, fields with their sizes.")
    listing.add_argument("dest", metavar="DEST", help="folder, tar, or pattern of tars")
    cat = command("cat", "Write the data of a field, or of all fields of a sample, to stdout.")
    cat.add_argument("dest", metavar="DEST", help="folder, tar, or pattern of tars")
    cat.add_argument("key", metavar="KEY[.FIELD]")
    extract = command("extract", "Write every field to a file of its own, inside one folder.")
    extract.add_argument("dest", metavar="DEST", help="folder, tar, or pattern of tars")
    extract.add_argument("folder", metavar="DIR", help="where to; nothing there is overwritten")
    for made in (index, verify):
        _add_jobs(made)
    for made in (index, verify, extract):
        _add_quiet(made)
    return parser


def _add_build(build: argparse.ArgumentParser) -> None:
    add = build.add_argument
    add("src", metavar="SRC", help="a folder, a .csv or a .jsonl file")
    add(
        "--layout",
        choices=LAYOUTS,
        help="folders: SRC/CLASS/NAME.jpg, the class becomes `cls`; files: a tree without classes; "
        "csv, jsonl: a table. Default: by the name of SRC, folders for a folder",
    )
    add("--shuffle", type=int, metavar="SEED", help="order samples by chance instead of by key")
    _add_target(build)
    pictures = build.add_argument_group("pictures")
    pictures.add_argument(
        "--pictures",
        choices=("raw",),
        help="raw: decode them and store arrays, field npy (docs/shards.md says when it pays)",
    )
    pictures.add_argument(
        "--side", type=_positive, metavar="N", help="pixels of the shorter side (default: 256)"
    )
    pictures.add_argument("--square", action="store_true", help="keep the middle, N by N pixels")
    table = build.add_argument_group("tables")
    table.add_argument(
        "--key", metavar="COLUMN", help="column of keys (default: key, or row number)"
    )
    table.add_argument(
        "--files", metavar="COLUMN[=FIELD],...", help="columns of file names, by table's folder"
    )
    table.add_argument(
        "--fields", metavar="COLUMN=FIELD,...", help="columns that become fields of their own"
    )
    table.add_argument(
        "--allow-outside", action="store_true", help="files may lie outside the table's folder"
    )


def _add_compression(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("compression").add_argument
    add("--compress", choices=("zstd",), help="write .tar.zst shards that are read by position")
    add("--level", type=_positive, metavar="N", help="1 is fast, 19 small (default: 3)")
    add("--frame", metavar="SIZE", help="bytes read for a sample, at most (768KiB to 4MiB)")


def _add_convert(convert: argparse.ArgumentParser) -> None:
    add = convert.add_argument
    add("src", metavar="SRC", help="shards, or a folder or files of another format; a path or URL")
    add(
        "--from",
        dest="kind",
        choices=KINDS,
        help="what SRC is (default: told by what lies there)",
    )
    _add_target(convert)
    columns = convert.add_argument_group("columns, of other formats than shards")
    columns.add_argument(
        "--key", metavar="COLUMN", help="column of keys (default: __key__ or key, or row number)"
    )
    columns.add_argument(
        "--fields",
        metavar="COLUMN=FIELD,...",
        help="names for the fields of columns; with an empty name a column is left out",
    )


def _add_merge(merge: argparse.ArgumentParser) -> None:
    merge.add_argument("src", nargs="+", metavar="SRC", help="shards; a path, a pattern or a URL")
    _add_target(merge)
    merge.add_argument(
        "--prefix", metavar="A,B,...", help="put before the keys of each SRC, such as cats/,dogs/"
    )


def _add_reshard(reshard: argparse.ArgumentParser) -> None:
    reshard.add_argument("src", metavar="SRC", help="shards; a path, a pattern or a URL")
    _add_target(reshard)
    add = reshard.add_argument
    add("--shards", type=_positive, metavar="N", help="so many shards of about the same size")
    add("--shuffle", type=int, metavar="SEED", help="order samples by chance, as a build does")


def _add_stage(stage: argparse.ArgumentParser) -> None:
    add = stage.add_argument
    add("urls", nargs="+", metavar="URL", help="remote shards: a folder, a shard or a pattern")
    add("folder", metavar="DIR", help="the cache folder, as in ff.Cache(DIR, SIZE)")
    add("--size", default="500GB", help="bytes that it may take (default: %(default)s)")
    add("--dry-run", action="store_true", help="show what would be brought")
    _add_quiet(stage)


def _add_target(parser: argparse.ArgumentParser) -> None:
    """Add what all commands that write a data set have in common."""
    add = parser.add_argument
    add("dest", metavar="DEST", help="a new or empty folder for the shards, or the URL of one")
    add("--shard-size", metavar="SIZE", help="at most; unless it cuts as SRC does: 256MiB")
    add("--name", default="train", help="shards are NAME-000000.tar (default: %(default)s)")
    add("--resume", action="store_true", help="go on with a run that was interrupted")
    add("--dry-run", action="store_true", help="show what would happen, write nothing")
    add("--rename", action="store_true", help="rewrite names that some reader would misread")
    add("--energon", action="store_true", help="write the folder that Megatron-Energon wants, too")
    add("--sync", action="store_true", help="wait for the disk before a shard gets its name")
    _add_jobs(parser)
    _add_quiet(parser)
    zstd = parser.add_argument_group("compression")
    zstd.add_argument("--compress", choices=("zstd",), help="write .tar.zst shards")
    zstd.add_argument("--level", type=_positive, metavar="N", help="1 to 22 (default: 3)")
    zstd.add_argument("--frame", metavar="SIZE", help="bytes compressed together (768KiB to 4MiB)")


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="processes (default: the cores usable here)"
    )


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no summary")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return number


def pairs_of(text: str | None) -> dict[str, str] | None:
    """Return `image=jpg,mask` as {"image": "jpg", "mask": ""}."""
    if text is None:
        return None
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {column.strip(): field.strip().lower() for column, _, field in pairs}
