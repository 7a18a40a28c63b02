"""Prove that a data set is whole: each of its shards, and that no shard is missing or too many."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, MissingFieldError, ShardError
from fastfeed.reading.sources import list_shards
from fastfeed.shardfile.manifest import ShardEntry
from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed.storage.open import local_path
from fastfeed.storage.urls import base_name, is_remote, shown
from fastfeed_shard.browse import find_shards
from fastfeed_shard.check import Checked, check_shard
from fastfeed_shard.importers.whole import is_there, join
from fastfeed_shard.near import near_folder, near_shard
from fastfeed_shard.pool import run_tasks
from fastfeed_shard.sidecars import ENERGON_FOLDER, WIDS_NAME, energon_files, wids_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# Signs that dots in names were taken for the beginning of a field.
_MANY_FIELDS = 64
_MANY_SINGLE = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found; the data set is proven whole if there are no problems."""

    shards: int
    samples: int
    nbytes: int
    fields: Mapping[str, int]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def verify_shards(
    dest: str,
    *,
    jobs: int,
    decode: bool,
    needed: Sequence[str],
    progress: Callable[[int], None],
) -> Verdict:
    """Check every shard of `dest` and everything that lies beside it.

    `needed` are fields that every sample must have. Shards without manifest and index are checked
    for their structure, and a warning says that no more could be proven.
    """
    folder = dest.removesuffix(f"/{MANIFEST_NAME}") if dest != MANIFEST_NAME else "."
    whole = is_there(join(folder, MANIFEST_NAME))
    listing = list_shards(folder) if whole else None
    paths = list(listing.paths) if listing else find_shards(dest)
    entries = listing.entries if listing else (None,) * len(paths)

    def work(number: int) -> Checked:
        return _check(paths[number], entries[number], decode=decode)

    done: dict[int, Checked] = {}
    for number, checked in run_tasks(work, paths, jobs=jobs):
        done[number] = checked
        progress(checked.entry.bytes)
    found = [done[number] for number in range(len(paths))]
    fields: Counter[str] = Counter()
    for checked in found:
        fields.update(checked.fields)
    samples = sum(checked.entry.samples for checked in found)
    problems = [problem for checked in found for problem in checked.problems]
    if listing is not None:
        known = [entry for entry in listing.entries if entry is not None]
        if is_remote(folder):
            with near_folder(folder) as near:
                problems += _against_folder(near, known)
        else:
            problems += _against_folder(Path(local_path(folder)), known)
        if not problems and dict(fields) != listing.counts:
            way_out = f"Run `fastfeed-shard index {shown(folder)}`"
            problems.append(
                str(ShardError("the manifest counts fields differently", way_out=way_out))
            )
    problems += _lacking(needed, fields, samples)
    return Verdict(
        shards=len(paths),
        samples=samples,
        nbytes=sum(checked.entry.bytes for checked in found),
        fields=dict(sorted(fields.items())),
        problems=tuple(problems),
        warnings=tuple(_warnings(found, fields, samples)),
    )


def _check(path: str, entry: ShardEntry | None, *, decode: bool) -> Checked:
    """Check one shard; one that is remote is brought near for it."""
    if not is_remote(path):
        return check_shard(path, entry=entry, decode=decode)
    try:
        with near_shard(path) as near:
            checked = check_shard(near, entry=entry, decode=decode)
    except FastfeedError as error:
        error.shard = error.shard or shown(path)
        name = base_name(path) if entry is None else entry.name
        return Checked(ShardEntry(name, 0, 0), {}, problems=(str(error),))
    problems, notes = (
        tuple(line.replace(near, shown(path)) for line in lines)
        for lines in (checked.problems, checked.notes)
    )
    return replace(checked, problems=problems, notes=notes)


def _against_folder(folder: Path, entries: Sequence[ShardEntry]) -> Iterator[str]:
    """Compare what lies in the folder with the manifest."""
    listed = {entry.name for entry in entries}
    for path in sorted((*folder.rglob("*.tar"), *folder.rglob("*.tar.zst"))):
        name = path.relative_to(folder).as_posix()
        if name not in listed and not path.name.startswith("."):
            way_out = f"If it belongs to the data set, run `fastfeed-shard index {folder}`"
            fact = "this shard is not in the manifest"
            yield str(ShardError(fact, way_out=way_out, shard=name))
    wids = folder / WIDS_NAME
    if wids.exists() and wids.read_bytes() != wids_index(entries):
        yield str(ShardError(f"{WIDS_NAME!r} does not list the shards of the manifest"))
    info = folder / ENERGON_FOLDER / ".info.json"
    if info.exists():
        right = json.loads(energon_files(entries)[".info.json"])["shard_counts"]
        try:
            same = json.loads(info.read_bytes())["shard_counts"] == right
        except (ValueError, TypeError, KeyError):
            same = False
        if not same:
            yield str(ShardError(f"'{ENERGON_FOLDER}/.info.json' does not fit the manifest"))


def _lacking(needed: Sequence[str], fields: Mapping[str, int], samples: int) -> Iterator[str]:
    for name in needed:
        if fields.get(name, 0) < samples or not samples:
            seen = ", ".join(f"{field} ({count:,})" for field, count in sorted(fields.items()))
            yield str(
                MissingFieldError(
                    f"{fields.get(name, 0):,} of {samples:,} samples have the field {name!r}; "
                    f"fields seen: {seen or 'none'}"
                )
            )


def _warnings(found: Sequence[Checked], fields: Mapping[str, int], samples: int) -> Iterator[str]:
    for checked in found:
        yield from checked.notes
    skipped: Counter[str] = Counter()
    for checked in found:
        skipped.update(checked.skipped)
    for reason, count in sorted(skipped.items()):
        yield f"{count:,} members belong to no sample ({reason})"
    single = sum(checked.single for checked in found)
    if len(fields) > 1 and single > _MANY_SINGLE * samples:
        yield (
            f"{single:,} of {samples:,} samples have one field only: are there dots in their keys?"
        )
    if len(fields) > _MANY_FIELDS:
        yield f"there are {len(fields):,} different fields: are there dots in the keys?"
