"""Where finished shards go: a folder, or a bucket that gets each as soon as it is whole.

In both a data set is complete when its manifest is there, which comes last. A bucket has no locks
and no rename, so beside the shards lies, until all is done, what a run knows of them: an object
that names the plan, and one for each shard that arrived with its indexes.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastfeed.errors import OptionError
from fastfeed.shardfile.manifest import Manifest, ShardEntry, load_manifest
from fastfeed.shardfile.names import MANIFEST_NAME
from fastfeed.storage.open import local_path, read_whole
from fastfeed.storage.urls import is_remote, shown
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.build import publish
from fastfeed_shard.check import check_shard
from fastfeed_shard.folder import STATE_NAME, DatasetFolder
from fastfeed_shard.importers.whole import is_there, join
from fastfeed_shard.packing import Packed
from fastfeed_shard.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ARRIVED_FOLDER = ".fastfeed-build"
_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Planned:
    """One shard to write: its name, its samples, and its bytes as a plain tar."""

    name: str
    samples: int
    nbytes: int


class Destination(Protocol):
    """The place of one data set while it is written."""

    @property
    def folder(self) -> Path:
        """The folder of this machine that shards are written to, under their own names."""
        ...

    def kept(self, name: str) -> Packed | None:
        """Return a shard that a former run has finished, proven to be as it was written."""
        ...

    def deliver(self, packed: Packed) -> None:
        """Bring a shard that was written to `folder` where it belongs, its indexes after it."""
        ...

    def complete(
        self, packed: Sequence[Packed], *, classes: Sequence[str] | None, energon: bool
    ) -> None:
        """Write the documents of the whole data set, the manifest last."""
        ...


@contextmanager
def open_destination(
    dest: str, *, name: str, plan: str, resume: bool, sync: bool
) -> Iterator[Destination]:
    """Hold a destination for one writer.

    It must be new or empty, or with `resume` hold an unfinished run of the same `plan`, or be
    complete; OptionError otherwise. Nothing is ever overwritten.
    """
    manifest = _finished(dest) if resume else None
    if manifest is not None:
        yield FinishedDestination(dest, manifest)
        return
    if is_remote(dest):
        remote = RemoteDestination(Bucket(dest), plan=plan, resume=resume)
        with scratch_folder() as scratch:
            remote.begin(scratch)
            yield remote
        return
    with DatasetFolder(Path(local_path(dest)), name=name, plan=plan, resume=resume) as held:
        yield LocalDestination(held, sync=sync)


def is_complete(
    dest: str, planned: Sequence[Planned], *, fields: Mapping[str, int] | None = None
) -> bool:
    """Say whether `dest` holds, complete, the shards of a plan; OptionError if it holds others."""
    manifest = _finished(dest)
    if manifest is None:
        return False
    there = [Planned(shard.name, shard.samples, shard.bytes) for shard in manifest.shards]
    if there != list(planned) or (fields is not None and fields != manifest.fields):
        raise _of_others(dest)
    return True


def _finished(dest: str) -> Manifest | None:
    """Return the manifest of a complete data set at `dest`, None if there is none."""
    if not is_there(join(dest, MANIFEST_NAME)) or is_there(join(dest, STATE_NAME)):
        return None
    return load_manifest(lambda name: read_whole(join(dest, name), limit=_LIMIT), shard=shown(dest))


def _of_others(dest: str) -> OptionError:
    return OptionError(
        f"{shown(dest)!r} holds a complete data set of other shards",
        way_out="Name a new place, or empty this one yourself",
    )


class FinishedDestination:
    """A complete data set: nothing is written, and what would be is compared with it."""

    def __init__(self, dest: str, manifest: Manifest) -> None:
        self._dest = dest
        self._shards = {shard.name: shard for shard in manifest.shards}

    @property
    def folder(self) -> Path:
        """No shard is written anywhere."""
        raise _of_others(self._dest)

    def kept(self, name: str) -> Packed | None:
        """Return a shard as the manifest has it."""
        if name not in self._shards:
            raise _of_others(self._dest)
        return Packed(self._shards[name], {})

    def deliver(self, packed: Packed) -> None:  # noqa: ARG002 - nothing was written
        """Refuse what is not there already."""
        raise _of_others(self._dest)

    def complete(
        self,
        packed: Sequence[Packed],
        *,
        classes: Sequence[str] | None,  # noqa: ARG002 - all is there
        energon: bool,  # noqa: ARG002
    ) -> None:
        """Compare the number of shards."""
        if len(packed) != len(self._shards):
            raise _of_others(self._dest)


class LocalDestination:
    """A folder of this machine: shards are written where they stay."""

    def __init__(self, held: DatasetFolder, *, sync: bool) -> None:
        self._held = held
        self._sync = sync
        self.folder = held.path

    def kept(self, name: str) -> Packed | None:
        """Return a finished shard after reading all of it."""
        if not (self.folder / name).exists():
            return None
        checked = check_shard(str(self.folder / name))
        whole = not checked.problems and not checked.notes
        return Packed(checked.entry, checked.fields) if whole else None

    def deliver(self, packed: Packed) -> None:
        """Leave the shard where it is."""

    def complete(
        self, packed: Sequence[Packed], *, classes: Sequence[str] | None, energon: bool
    ) -> None:
        """Write the documents of the data set."""
        publish(self.folder, packed, classes=classes, energon=energon, sync=self._sync)
        self._held.complete()


class RemoteDestination:
    """A bucket: each shard is written to a folder of this machine, sent, and removed there.

    So the disk holds no more than the shards that are being written, and those that wait for the
    one being sent.
    """

    def __init__(self, bucket: Bucket, *, plan: str, resume: bool) -> None:
        self._bucket = bucket
        self._plan = plan
        self._resume = resume
        self._arrived: dict[str, Packed] = {}

    def begin(self, folder: Path) -> None:
        """Look at what is there, and say in the bucket what is to come."""
        self.folder = folder
        names = self._bucket.names()
        where = shown(self._bucket.url)
        if STATE_NAME not in names and names:
            done = "a complete data set" if MANIFEST_NAME in names else "objects already"
            raise OptionError(
                f"{where!r} holds {done}, and nothing is overwritten",
                way_out="Name a new place, or empty this one yourself",
            )
        if STATE_NAME in names:
            if not self._resume:
                raise OptionError(
                    f"{where!r} holds an unfinished build",
                    way_out="Go on with --resume, or remove it yourself",
                )
            if _json(self._bucket.read(STATE_NAME)).get("plan") != self._plan:
                raise OptionError(
                    f"the unfinished build in {where!r} had other sources or options",
                    way_out="Remove it and begin anew",
                )
        self._bucket.write(STATE_NAME, json.dumps({"plan": self._plan}).encode())
        for name, size in names.items():
            if name.startswith(f"{ARRIVED_FOLDER}/") and size:
                self._recall(name, names)

    def kept(self, name: str) -> Packed | None:
        """Return a shard that arrived whole, as it was noted then."""
        return self._arrived.get(name)

    def deliver(self, packed: Packed) -> None:
        """Send the shard, then its indexes, then the note of both, and remove them here."""
        shard = self.folder / packed.entry.name
        if not shard.exists():
            return
        self._bucket.put(shard, shard.name)
        beside = sorted(self.folder.glob(f"{shard.name.partition('.')[0]}.*"))
        for path in beside:
            if path != shard:
                self._bucket.put(path, path.name)
        note = {"entry": asdict(packed.entry), "fields": dict(packed.fields)}
        self._bucket.write(_note_name(packed.entry.name), json.dumps(note).encode())
        for path in beside:
            path.unlink()

    def complete(
        self, packed: Sequence[Packed], *, classes: Sequence[str] | None, energon: bool
    ) -> None:
        """Send the documents of the data set, the manifest last, and remove the notes."""
        publish(self.folder, packed, classes=classes, energon=energon, sync=False)
        paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        for path in sorted(paths, key=lambda path: path.name == MANIFEST_NAME):
            self._bucket.put(path, path.relative_to(self.folder).as_posix())
        self._bucket.remove([*(_note_name(shard.entry.name) for shard in packed), STATE_NAME])

    def _recall(self, note: str, names: dict[str, int]) -> None:
        """Take the word of a note if its shard has still the size that was sent."""
        known = _json(self._bucket.read(note))
        try:
            entry = ShardEntry(**known["entry"])
            fields = {str(name): int(count) for name, count in known["fields"].items()}
            whole = names.get(entry.name) == entry.file_bytes and _note_name(entry.name) == note
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        if whole:
            self._arrived[entry.name] = Packed(entry, fields)


def _note_name(shard: str) -> str:
    return f"{ARRIVED_FOLDER}/{shard}.json"


def _json(data: bytes) -> dict[str, Any]:
    try:
        known = json.loads(data)
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}
