"""Find the index of a shard, or make it when a shard of another tool is used for the first time."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import IndexMismatchError, StorageError, TarError
from fastfeed.shardfile.index import MISSING, ShardIndex, group, load_index, save_index
from fastfeed.shardfile.names import index_name
from fastfeed.shardfile.tar import read_member, walk
from fastfeed.staging.shard import StagedShard
from fastfeed.storage.local import write_whole
from fastfeed.storage.open import facts, local_path, read_if_there
from fastfeed.storage.remote import RemoteFile
from fastfeed.storage.urls import base_name, is_remote, join, parent, shown, unsigned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastfeed.storage.answers import Facts
    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

INDEX_LIMIT = 1 << 30
"""Bytes of an index that is fetched, at most; one of ten million samples takes less."""

_WAY_OUT = "Run `fastfeed-shard index` on the shard again"
_CUT = (
    "If it was cut, copy or build it again; if it is meant to be so, run `fastfeed-shard index` on "
    "it again"
)


def find_index(
    shard: str,
    storage: Storage,
    *,
    cache: Path | None,
    storage_options: Mapping[str, Any] | None = None,
) -> ShardIndex:
    """Return the index of an open shard, mapped into memory.

    It lies beside the shard; failing that in `cache`, under a name made of the shard's path, size
    and time. If it is in neither place it is made, without checksums, and written to the first of
    them that can be written to. One without checksums is made anew if the shard has changed since,
    for nothing else would show it. Raises IndexMismatchError if the index is of another file, and
    StorageError if it can be kept nowhere.

    The index of a remote shard is fetched once into `cache`, under a name made of the URL and of
    the tag and size that the storage gives; nothing is ever written beside a remote shard.
    """
    if is_remote(shard):
        return _Remote(shard, storage, cache, storage_options).index()
    beside = local_path(index_name(shard))
    cached = None if cache is None else cache / _cached_name(shard, storage.size)
    for path in (beside, cached):
        if path is None or not _is_there(path):
            continue
        index = load_index(path)
        if not index.has_checksums:
            if _is_older(path, shard):
                continue
            index = load_index(path, verify=True)  # what it says is not compared with anything else
        check_fit(index, storage, shard=shard)
        return index
    log.info("indexing %s, which has no index", shard)
    index = load_index(_keep(_walked(shard, storage), beside=beside, cached=cached, shard=shard))
    check_fit(index, storage, shard=shard)
    return index


def _is_there(index: str | Path) -> bool:
    """Say whether there is an index; one that cannot be looked at is not made anew, nor ignored."""
    try:
        return Path(index).exists()
    except OSError as error:
        raise StorageError(f"cannot open {str(index)!r}: {error.strerror}") from error


def _is_older(index: str | Path, shard: str) -> bool:
    try:
        return os.stat(index).st_mtime_ns < os.stat(local_path(shard)).st_mtime_ns  # noqa: PTH116
    except OSError as error:
        raise StorageError(f"cannot open {shard!r}: {error.strerror}") from error


class _Remote:
    """Finds the index of one remote shard."""

    def __init__(
        self,
        shard: str,
        storage: Storage,
        cache: Path | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._shard = shard
        self._storage = storage
        self._cache = cache
        self._options = options
        digest = xxhash.xxh3_128_hexdigest(unsigned(shard).encode())
        self._stem = f"{digest}-"

    def index(self) -> ShardIndex:
        # Where the cache knows nothing of the shard, its facts and its index are asked for at once:
        # the first batch waits for both, and each is a round trip.
        if self._cache is not None and any(self._cache.glob(f"{self._stem}*")):
            return self._known(self._facts()) or self._new(self._fetch())
        with ThreadPoolExecutor(1, "fastfeed-facts") as pool:
            facts = pool.submit(self._facts)
            content = self._fetch()
            facts.result()
        return self._new(content)

    def _facts(self) -> Facts:
        if isinstance(self._storage, RemoteFile | StagedShard):
            return self._storage.facts  # asked for once, or known without asking
        return facts(self._shard, storage_options=self._options)

    def _known(self, facts: Facts) -> ShardIndex | None:
        path = self._path(facts)
        if path is None or not _is_there(path):
            return None
        try:
            index = load_index(path)
        except IndexMismatchError:
            return None  # it was damaged where it is kept; another is as good as new
        return index if index.shard_bytes == self._storage.size else None

    def _fetch(self) -> bytes | None:
        """Return the index beside the shard, or None if there is none for us to read."""
        return read_if_there(_beside(self._shard), limit=INDEX_LIMIT, storage_options=self._options)

    def _new(self, content: bytes | None) -> ShardIndex:
        """Take the index that was fetched, or make one; keep it once it has proven to fit."""
        fetched = content is not None
        if content is None:
            log.info("indexing %s, which has no index", shown(self._shard))
            content = _walked(self._shard, self._storage)
        index = self._loaded(content, fetched=fetched)
        # With checksums each field proves itself when it is read, and the header would cost the
        # first batch a round trip.
        if fetched and not (index.has_checksums and index.shard_bytes == self._storage.size):
            check_fit(index, self._storage, shard=shown(self._shard))
        path = self._path(self._facts())
        if path is None or self._cache is None:
            return index
        _make_folder(self._cache, self._shard)
        write_whole(path, content)
        return load_index(path)

    def _loaded(self, content: bytes, *, fetched: bool) -> ShardIndex:
        """Map an index from a file without a name: what does not fit never gets one."""
        with NamedTemporaryFile(prefix="fastfeed-") as file:
            file.write(content)
            file.flush()
            try:
                return load_index(file.name, verify=fetched)
            except IndexMismatchError as error:
                beside = shown(_beside(self._shard))
                error.fact = error.fact.replace(repr(file.name), repr(beside))
                raise

    def _path(self, facts: Facts) -> Path | None:
        """Return where the index is kept; nowhere if the storage cannot tell versions apart."""
        if self._cache is None or facts.tag is None:
            return None
        tag = xxhash.xxh3_64_hexdigest(facts.tag.encode())
        return self._cache / index_name(f"{self._stem}{facts.size}-{tag}")


def _beside(shard: str) -> str:
    """Return the URL of the index of a remote shard."""
    return join(parent(shard), index_name(base_name(shard)))


def check_fit(index: ShardIndex, storage: Storage, *, shard: str) -> None:
    """Compare the size of a shard, and the header of its last sample, with the index."""
    if index.shard_bytes != storage.size:
        raise IndexMismatchError(
            f"the shard has {storage.size:,} bytes, but {index.shard_bytes:,} when it was indexed",
            way_out=_CUT if storage.size < index.shard_bytes else _WAY_OUT,
            shard=shard,
        )
    if not len(index):
        next(walk(storage.read_at, storage.size, shard=shard), None)  # it may be zeros alone
        return
    # The last header moves with almost any change of the shard.
    header, offset, size, _ = max(
        (cell for cell in index.cells[-1].tolist() if cell[0] != MISSING), default=[0, 0, 0, 0]
    )
    try:
        member = read_member(storage.read_at, storage.size, header=header, shard=shard)
    except TarError as error:
        raise _other(shard, header) from error
    if member.kind == "file" and (member.offset, member.size) != (offset, size):
        raise _other(shard, header)


def _other(shard: str, header: int) -> IndexMismatchError:
    return IndexMismatchError(
        "the index is of another file: the member that it names is not in the shard",
        way_out=_WAY_OUT,
        shard=shard,
        offset=header,
    )


def _walked(shard: str, storage: Storage) -> bytes:
    """Return the bytes of an index made by reading every header of a shard."""
    members = walk(storage.read_at, storage.size, shard=shown(shard))
    return save_index(group(members, shard=shown(shard), shard_bytes=storage.size))


def _keep(content: bytes, *, beside: str, cached: Path | None, shard: str) -> str:
    """Write an index to the first place that takes it, and return where that is."""
    try:
        write_whole(beside, content)
    except StorageError as error:
        if cached is None:
            error.way_out = "Let the index be kept in a cache folder, or index the shards elsewhere"
            raise
    else:
        return beside
    _make_folder(cached.parent, shard)
    write_whole(cached, content)
    return str(cached)


def _make_folder(folder: Path, shard: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the index of the shard has no place: cannot make {str(folder)!r}: {error.strerror}",
            shard=shown(shard),
            way_out="Let the shard's folder or the cache folder (XDG_CACHE_HOME) be written to",
        ) from error


def _cached_name(shard: str, size: int) -> str:
    path = os.path.abspath(local_path(shard))  # noqa: PTH100 - the name is all that is wanted
    try:
        changed = os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError as error:
        raise StorageError(f"cannot open {shard!r}: {error.strerror}") from error
    digest = xxhash.xxh3_128_hexdigest(os.fsencode(path))
    return index_name(f"{digest}-{size}-{changed}")
