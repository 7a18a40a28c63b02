"""Index shards that are there already, of this or of another tool, checksums included."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError
from fastfeed.reading.sources import names_of
from fastfeed.shardfile.index import save_index
from fastfeed.shardfile.manifest import Manifest, save_manifest
from fastfeed.shardfile.names import MANIFEST_NAME, index_name
from fastfeed.storage.local import write_whole
from fastfeed.storage.open import local_path
from fastfeed_shard.browse import tars_in
from fastfeed_shard.check import index_shard, open_tar
from fastfeed_shard.packing import Packed
from fastfeed_shard.pool import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def index_shards(
    sources: Sequence[str], *, jobs: int, progress: Callable[[int], None]
) -> list[Packed]:
    """Write the index of each shard that `sources` name, and for whole folders the manifest.

    A source is a shard, a pattern of shards, or a folder, which stands for all its `.tar` and
    `.tar.zst` files.
    Raises OptionError if a shard's folder has a manifest that would no longer fit.
    """
    folders = [source for source in sources if Path(local_path(source)).is_dir()]
    paths: list[str] = []
    for source in sources:
        if source in folders:
            found = tars_in(Path(local_path(source)))
            if not found:
                raise OptionError(f"the folder {source!r} holds no shards", way_out="Name another")
            paths += found
        else:
            paths += names_of(source)
    paths = list(dict.fromkeys(paths))
    _refuse_stale_manifest(paths, folders)

    def work(number: int) -> Packed:
        return _index(paths[number])

    done: dict[int, Packed] = {}
    for number, packed in run_tasks(work, paths, jobs=jobs):
        done[number] = packed
        progress(packed.entry.bytes)
    for source in folders:
        folder = Path(local_path(source))
        own = [done[i] for i, path in enumerate(paths) if Path(local_path(path)).parent == folder]
        _write_manifest(folder, own)
    return [done[number] for number in range(len(paths))]


def _index(path: str) -> Packed:
    """Write the index of one shard."""
    with open_tar(path) as (storage, entry):
        index = index_shard(path, storage)
        write_whole(local_path(index_name(path)), save_index(index))
        return Packed(replace(entry, samples=len(index)), index.counts())


def _refuse_stale_manifest(paths: Sequence[str], folders: Sequence[str]) -> None:
    whole = {Path(local_path(folder)) for folder in folders}
    for parent in {Path(local_path(path)).parent for path in paths} - whole:
        if (parent / MANIFEST_NAME).exists():
            raise OptionError(
                f"{str(parent)!r} has a manifest, which speaks for all of its shards",
                way_out="Name the folder: its indexes and its manifest are then written anew",
            )


def _write_manifest(folder: Path, packed: Sequence[Packed]) -> None:
    fields: Counter[str] = Counter()
    for shard in packed:
        fields.update(shard.fields)
    manifest = Manifest(dict(sorted(fields.items())), tuple(shard.entry for shard in packed))
    for name, content in save_manifest(manifest).items():
        write_whole(folder / name, content)
