"""What a source is, told by its name and by what lies in it, and which files it stands for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.reading.sources import is_pattern, list_shards, names_of
from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed.storage.open import local_path
from fastfeed.storage.urls import base_name, is_remote, scheme_of, shown
from fastfeed_shard.arguments import KINDS
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.importers.whole import is_there, join

if TYPE_CHECKING:
    from fastfeed_shard.importers.rows import Importer

# A file of this name decides, whatever else lies in the folder.
_SIGNS = {
    MANIFEST_NAME: "shards",
    "index.json": "mds",
    "state.json": "huggingface",
}
_SPLITS = "dataset_dict.json"
_ENDS = {
    "shards": re.compile(r".*\.(tar|tar\.zst|tar\.gz|tgz)"),
    "parquet": re.compile(r".*\.parquet"),
    "tfrecord": re.compile(r".*(\.tfrecords?(\.gz)?|tfrecord.*-\d+-of-\d+|-\d{5}-of-\d{5})"),
}


def find_kind(src: str) -> str:
    """Return which of `KINDS` a source is; OptionError if it is none, or could be several."""
    if _is_manifest(src):
        return "shards"
    listed = _names(src)
    names = {name.rpartition("/")[2] for name in listed}
    for sign, kind in _SIGNS.items():
        if sign in listed:
            return kind
    if _SPLITS in listed:
        raise OptionError(
            f"{shown(src)!r} holds several splits, and a data set is one of them",
            way_out=f"Name one, such as {join(shown(src), 'train')}",
        )
    found = [kind for kind, end in _ENDS.items() if any(map(end.fullmatch, names))]
    if len(found) == 1:
        return found[0]
    way_out = f"Say with --from what it is: {', '.join(KINDS)}"
    if found:
        raise OptionError(f"{shown(src)!r} holds {' and '.join(found)}", way_out=way_out)
    raise OptionError(f"{shown(src)!r} holds nothing that can be converted", way_out=way_out)


def shards_of(src: str) -> list[str]:
    """Return the shards that a source stands for, compressed ones too."""
    if _is_manifest(src):
        return list(list_shards(src).paths)
    if is_pattern(src) or _is_file(src):
        return names_of(src)
    names = _names(src)
    if MANIFEST_NAME in names:
        return list(list_shards(src).paths)
    found = [name for name in names if "/" not in name and _ENDS["shards"].fullmatch(name)]
    if not found:
        raise OptionError(f"{shown(src)!r} holds no shards", way_out="Name another source")
    return [join(src, name) for name in found]


def importer_of(src: str, kind: str) -> Importer:
    """Return the importer for a source of another format."""
    if kind == "mds":
        from fastfeed_shard.importers.mds import MdsImporter

        return MdsImporter(src)
    if kind == "huggingface":
        from fastfeed_shard.importers.arrow import ArrowFolderImporter

        return ArrowFolderImporter(src)
    files = _files_of(src, kind)
    if kind == "parquet":
        from fastfeed_shard.importers.arrow import ParquetImporter

        return ParquetImporter(files)
    from fastfeed_shard.importers.tfrecord import TfrecordImporter

    return TfrecordImporter(files)


def _files_of(src: str, kind: str) -> list[str]:
    if is_pattern(src) or _is_file(src):
        return names_of(src)
    names = _names(src)
    found = [name for name in names if _ENDS[kind].fullmatch(name.rpartition("/")[2])]
    if not found:
        raise OptionError(f"{shown(src)!r} holds no {kind} files", way_out="Name the files")
    return [join(src, name) for name in found]


def _names(src: str) -> list[str]:
    """Return the names below a folder, sorted, hidden ones left out; or those of the files."""
    if is_pattern(src) or _is_file(src):
        return [name.rpartition("/")[2] for name in names_of(src)]
    if scheme_of(src) in {"http", "https"}:
        # They tell nobody what lies in a folder; these files can be asked for by name.
        names = [name for name in (*_SIGNS, _SPLITS) if is_there(join(src, name))]
    elif is_remote(src):
        names = list(Bucket(src).names())
    else:
        folder = Path(local_path(src))
        if not folder.is_dir():
            raise OptionError(f"{src!r} is neither a file nor a folder", way_out="Check its name")
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return sorted(
        name for name in names if not any(part.startswith((".", "_")) for part in name.split("/"))
    )


def is_folder(src: str) -> bool:
    """Say whether a source is a folder, as far as its name tells for one that is remote."""
    return not (is_pattern(src) or _is_file(src) or _is_manifest(src))


def _is_manifest(src: str) -> bool:
    return (base_name(src) if is_remote(src) else Path(src).name) == MANIFEST_NAME


def _is_file(src: str) -> bool:
    if is_remote(src):
        # Storage of objects knows no folders, so the name must tell.
        return any(end.fullmatch(base_name(src)) for end in _ENDS.values())
    return Path(local_path(src)).is_file()
