"""Extract shards into a folder, and never a byte outside of it.

Names come from the shards and may be hostile. All of them are looked at before anything is
written; then every folder on the way to a file is opened by itself, without following links, so
that not even somebody who changes the folder meanwhile can lead a file elsewhere. Files are made
new: nothing that exists is written to.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError, ShardError, StorageError, located
from fastfeed.shardfile.names import is_contained
from fastfeed.storage.compressed import open_shard
from fastfeed_shard.browse import contents, copy_data, find_shards, read_contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def extract_shards(dest: str, folder: Path, *, progress: Callable[[int], None]) -> tuple[int, int]:
    """Write every field of every sample to `folder` as `KEY.FIELD`; returns (files, bytes).

    Raises ShardError, before anything is written, if a name would lead out of the folder, and
    StorageError if a file is there already.
    """
    paths = find_shards(dest)
    _refuse_hostile(paths)
    files = total = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
    try:
        for path in paths:
            with open_shard(path) as storage, located(shard=path):
                keys, index = read_contents(path, storage)
                for row, key in enumerate(keys):
                    for part in contents(index, row):
                        with _new_file(root, f"{key}.{part.field}") as write:
                            copy_data(storage, part, write)
                        files += 1
                        total += part.size
                progress(storage.size)
    finally:
        os.close(root)
    return files, total


def _refuse_hostile(paths: list[str]) -> None:
    """Look at all names of all shards, and refuse those that aren't plain relative paths."""
    for path in paths:
        with open_shard(path) as storage:
            keys, index = read_contents(path, storage)
        bad = [name for name in (*keys, *index.fields) if not is_contained(name)]
        bad += [field for field in index.fields if "/" in field]
        if bad:
            raise ShardError(
                f"{len(bad):,} names of the shard are no plain paths inside a folder, such as "
                f"{bad[0]!r}; nothing was extracted",
                way_out="Ask where this shard comes from; `fastfeed-shard cat` shows its fields",
                shard=path,
            )


@contextmanager
def _new_file(root: int, name: str) -> Iterator[Callable[[bytes], object]]:
    """Make a file below the open folder `root`, and give the function that writes to it."""
    *parents, base = name.split("/")
    opened: list[int] = []
    try:
        at = root
        for parent in parents:
            at = _open_folder(parent, at)
            opened.append(at)
        file = os.open(base, _NEW, 0o644, dir_fd=at)
        opened.append(file)

        def write(data: bytes) -> None:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]

        try:
            yield write
        except BaseException:  # the disk is full, or the shard ends: half a file looks like a whole
            os.unlink(base, dir_fd=at)
            raise
    except FileExistsError as error:
        raise OptionError(
            f"the file {name!r} is there already, and nothing is overwritten",
            way_out="Extract to a new folder, shard by shard if shards share keys",
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot write {name!r}: {error.strerror}",
            way_out="Make room or name another folder; what is extracted already stays",
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_folder(name: str, at: int) -> int:
    """Open the folder `name` in the open folder `at`, made if need be; a link is an OSError."""
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=at)
        return os.open(name, _FOLDER, dir_fd=at)
