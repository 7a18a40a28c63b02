"""The walk of `fastfeed-shard build`: scan, plan, pack the shards in processes, publish."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, StorageError, WorkerError, located
from fastfeed.shardfile.manifest import Manifest, load_manifest, save_manifest
from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed_shard.folder import STATE_NAME, DatasetFolder
from fastfeed_shard.frames import SUFFIX
from fastfeed_shard.packing import Packed, ShardFile, write_file
from fastfeed_shard.plan import digest_plan, packed_size
from fastfeed_shard.pool import parent_is_gone, run_tasks
from fastfeed_shard.samples import FilePart, MadePart, cannot_read
from fastfeed_shard.sidecars import (
    ENERGON_FOLDER,
    WIDS_NAME,
    dali_name,
    energon_files,
    wids_index,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fastfeed_shard.frames import Compression
    from fastfeed_shard.plan import Plan, PlannedShard
    from fastfeed_shard.samples import Part, Sample

CLASSES_NAME = "classes.txt"


def build_shards(
    plan: Plan,
    folder: DatasetFolder,
    *,
    jobs: int,
    sync: bool,
    progress: Callable[[int], None],
    compress: Compression | None = None,
) -> list[Packed]:
    """Write the shards of a plan with `jobs` processes; those that are there whole are kept.

    `sync` waits until each is on the disk before it gets its name. `progress` is called with the
    bytes of each shard that is done, before compression. Returns them in their order.
    """
    parent = os.getpid()

    def work(number: int) -> Packed:
        shard = plan.shards[number]
        path = folder.path / stored_name(shard.name, compress)
        if path.exists():
            packed = _finished(path, shard)
            if packed is not None:
                return packed
        with ShardFile(path, sync=sync, compress=compress) as file:
            return _pack(file, path.name, plan.samples[shard.start : shard.stop], parent=parent)

    done: dict[int, Packed] = {}
    # Closed here, so that no process outlives the lock on the folder.
    with closing(run_tasks(work, [shard.name for shard in plan.shards], jobs=jobs)) as results:
        for number, packed in results:
            done[number] = packed
            progress(packed.entry.bytes)
    return [done[number] for number in sorted(done)]


def stored_name(shard: str, compress: Compression | None) -> str:
    """Return the name of a shard's file: `train-000000.tar.zst` if it is compressed."""
    return shard if compress is None else f"{shard}{SUFFIX}"


def _pack(shard: ShardFile, name: str, samples: Sequence[Sample], *, parent: int) -> Packed:
    """Write one shard."""
    for sample in samples:
        if parent_is_gone(parent):
            raise WorkerError("the build has ended", way_out="Go on with --resume")
        shard.begin(packed_size([part.size for part in sample.parts]))
        # One context a sample: per field it would show in the speed.
        with located(shard=name, key=sample.key):
            for part in sample.parts:
                _add(shard, f"{sample.key}.{part.field}", part)
    return shard.finish()


def _add(shard: ShardFile, name: str, part: Part) -> None:
    """Append one field to a shard."""
    with part.open() as file:
        try:
            shard.add(name, part.size, file.readinto)
        except OSError as error:
            raise cannot_read(getattr(part, "path", name), error) from error


def _finished(path: Path, shard: PlannedShard) -> Packed | None:
    """Return a shard of a former run, if all of it is proven to be as it was written."""
    from fastfeed_shard.check import check_shard

    checked = check_shard(str(path))
    whole = not checked.problems and not checked.notes
    if not whole or (checked.entry.bytes, checked.entry.samples) != (
        shard.nbytes,
        shard.stop - shard.start,
    ):
        return None
    return Packed(checked.entry, checked.fields)


def publish(
    folder: Path,
    packed: Sequence[Packed],
    *,
    classes: Sequence[str] | None,
    energon: bool,
    sync: bool,
) -> Manifest:
    """Write the documents of the whole data set, the manifest last: a folder with one is whole."""
    fields: Counter[str] = Counter()
    for shard in packed:
        fields.update(shard.fields)
    entries = tuple(shard.entry for shard in packed)
    manifest = Manifest(dict(sorted(fields.items())), entries)
    if classes is not None:
        lines = "".join(f"{name}\n" for name in classes)
        write_file(folder / CLASSES_NAME, lines.encode("utf-8", "surrogateescape"), sync=sync)
    if all(entry.compression is None for entry in entries):  # wids reads no others
        write_file(folder / WIDS_NAME, wids_index(entries), sync=sync)
    if energon:
        (folder / ENERGON_FOLDER).mkdir(exist_ok=True)
        for name, content in energon_files(entries).items():
            write_file(folder / ENERGON_FOLDER / name, content, sync=sync)
    for name, content in save_manifest(manifest).items():
        write_file(folder / name, content, sync=sync)
    return manifest


def already_built(plan: Plan, dest: Path, *, compress: Compression | None = None) -> bool:
    """Say whether `dest` holds, complete, what the plan would make; OptionError if other data."""
    if not (dest / MANIFEST_NAME).exists() or (dest / STATE_NAME).exists():
        return False
    manifest = load_manifest(lambda name: (dest / name).read_bytes(), shard=str(dest))
    there = [(shard.name, shard.bytes, shard.samples) for shard in manifest.shards]
    planned = [
        (stored_name(shard.name, compress), shard.nbytes, shard.stop - shard.start)
        for shard in plan.shards
    ]
    if there != planned:
        raise OptionError(
            f"{str(dest)!r} holds a complete data set of other shards",
            way_out="Name a new folder, or remove this one yourself",
        )
    finished = (dest / MANIFEST_NAME).stat().st_mtime_ns
    for shard in plan.shards:
        parts = [
            (f"{sample.key}.{part.field}", part)
            for sample in plan.samples[shard.start : shard.stop]
            for part in sample.parts
        ]
        if [name for name, _ in parts] != _packed_names(dest / dali_name(shard.name)):
            raise OptionError(
                f"{str(dest)!r} holds a complete data set of other samples: see {shard.name!r}",
                way_out="Name a new folder, or remove this one yourself",
            )
        for name, part in parts:
            if isinstance(part, FilePart | MadePart) and part.changed > finished:
                raise OptionError(
                    f"the source of {name!r} has changed since {str(dest)!r} was finished",
                    way_out="Build into a new folder",
                )
    return True


def _packed_names(index: Path) -> list[str]:
    """Return the members of a shard, from every fourth word of DALI's index of it."""
    try:
        lines = index.read_text(encoding="utf-8", errors="surrogateescape").splitlines()[1:]
    except OSError as error:
        raise StorageError(f"cannot read {str(index)!r}: {error.strerror}") from error
    return [name for line in lines for name in line.split(" ")[3::4]]


def open_folder(
    dest: Path, plan: Plan, *, name: str, resume: bool, compress: Compression | None = None
) -> DatasetFolder:
    """Return the folder for a build, to be held with `with`."""
    how = "" if compress is None else f"-zstd-{compress.level}-{compress.frame}"
    return DatasetFolder(dest, name=name, plan=digest_plan(plan) + how, resume=resume)
