"""Bring what is remote near, for who needs files of this machine: a shard, or a folder's documents.

A shard takes the room of itself and its indexes in the temporary folder (TMPDIR) while it is used.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastfeed.errors import StorageError
from fastfeed.shardfile.names import MANIFEST_NAME, index_name, is_contained
from fastfeed.storage.open import open_storage, read_if_there
from fastfeed.storage.urls import base_name, is_remote, join, scheme_of
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.frames import SUFFIX
from fastfeed_shard.importers.whole import beside
from fastfeed_shard.scratch import scratch_folder
from fastfeed_shard.sidecars import ENERGON_FOLDER, WIDS_NAME, dali_name, energon_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PIECE = 32 << 20
_LIMIT = 8 << 30
_SHARDS = (".tar", f".tar{SUFFIX}")


@contextmanager
def near_shard(path: str) -> Iterator[str]:
    """Give the path of a shard on this machine, its indexes beside it."""
    if not is_remote(path):
        yield path
        return
    name = base_name(path)
    if not is_contained(name) or "/" in name:
        raise StorageError(f"{name!r} is no name for a file")
    with scratch_folder() as folder:
        plain = name.removesuffix(SUFFIX)
        for side in (index_name(name), dali_name(plain), energon_name(plain)):
            content = read_if_there(beside(path, lambda _, side=side: side), limit=_LIMIT)  # type: ignore[misc]
            if content is not None:
                (folder / side).write_bytes(content)
        _copy(path, folder / name)
        yield str(folder / name)


def _copy(path: str, local: Path) -> None:
    with open_storage(path) as storage:
        try:
            with local.open("wb") as file:
                for start in range(0, storage.size, _PIECE):
                    file.write(storage.read_at(start, _PIECE))
        except OSError as error:
            raise StorageError(
                f"cannot write to the temporary folder {str(local.parent)!r}: {error.strerror}",
                way_out="Make room, set TMPDIR to a larger disk, or use fewer --jobs",
            ) from error


@contextmanager
def near_folder(url: str) -> Iterator[Path]:
    """Give a folder with the documents of a remote data set, and an empty file for each shard."""
    with scratch_folder() as root:
        (root / ENERGON_FOLDER).mkdir()
        for name in (MANIFEST_NAME, WIDS_NAME, f"{ENERGON_FOLDER}/.info.json"):
            content = read_if_there(join(url, name), limit=_LIMIT)
            if content is not None:
                (root / name).write_bytes(content)
        # http tells nobody what else lies there.
        listed = {} if scheme_of(url) in {"http", "https"} else Bucket(url).names()
        for name in listed:
            if name.endswith(_SHARDS) and is_contained(name):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).touch()
        yield root
