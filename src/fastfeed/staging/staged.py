"""Shards by way of the shelf: read from the local disk once they are there, from afar until then.

This is the seam with reading, which opens each shard through `Staged.open` and notices nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastfeed.errors import StorageError
from fastfeed.staging.check import is_proven
from fastfeed.staging.disk import inspect
from fastfeed.staging.follower import Follower
from fastfeed.staging.shard import StagedShard
from fastfeed.staging.shelf import Shelf
from fastfeed.staging.source import describe as ask
from fastfeed.storage.answers import Facts
from fastfeed.storage.open import open_storage
from fastfeed.storage.remote import RemoteFile
from fastfeed.storage.urls import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from fastfeed.errors import FastfeedError
    from fastfeed.options import Cache
    from fastfeed.staging.disk import Disk
    from fastfeed.staging.shelf import StagedFile
    from fastfeed.staging.source import Source
    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

_HELD = 128
"""Shards held open by a process; each takes a descriptor. Its zone alone protects the others."""
_LOOSE = 4
"""The same for a process that follows no plan: what is held cannot be evicted."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one process has read, and brought."""

    local_bytes: int
    """Read from the shelf."""
    far_bytes: int
    """Read from afar, past the shelf."""
    staged_bytes: int
    """Brought to the shelf by this process."""


class Staged:
    """Opens the shards of one data set by way of a cache folder; goes to workers of any kind.

    Local shards are read in place, and the folder must lie apart from those in `apart_from`.
    `opener` and `describe` reach the storage, with `storage_options` unless they are given:
    `describe(url)` says size and version of a shard that `learn` was not told of, or None if it is
    not to be staged.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        storage_options: Mapping[str, Any] | None = None,
        opener: Callable[[str], Storage] | None = None,
        describe: Callable[[str], Source | None] | None = None,
        apart_from: Iterable[str] = (),
    ) -> None:
        self._shelf = Shelf(cache.folder, cache.nbytes, apart_from=apart_from)
        self._opener = opener or partial(open_storage, storage_options=storage_options)
        self._describe = describe or partial(ask, storage_options=storage_options)
        self._sources: dict[str, Source | None] = {}
        self._begin()
        # While the manifest is on its way.
        pool = ThreadPoolExecutor(1, "fastfeed-disk")
        self._looking: Future[Disk] | None = pool.submit(inspect, self._shelf.folder)
        pool.shutdown(wait=False)

    def _begin(self) -> None:
        """Begin in a process of its own: nothing that is open or running is shared."""
        self._follower: Follower | None = None
        self._end: weakref.finalize[..., Staged] | None = None
        self._staged_before: list[int] = []
        self._held: OrderedDict[str, StagedShard] = OrderedDict()
        self._lock = threading.Lock()
        self._doubted: set[str] = set()
        self._lost: set[str] = set()
        # Held while the follower is told, or changes. Whoever is collected meanwhile may close us.
        self._telling = threading.RLock()
        self._urls: Sequence[str] = ()
        self._users: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        """Threads' readers that share the follower, each with the number of the order it is in."""
        self._order = 0
        self._local_bytes = self._far_bytes = 0
        self._pid = os.getpid()  # last: others may come meanwhile

    @property
    def place(self) -> tuple[Path, int]:
        """The cache folder and the bytes it may take, with whatever else is copied there."""
        return self._shelf.folder, self._shelf.budget

    def learn(self, sources: Iterable[Source]) -> None:
        """Take what a manifest says of shards, so that nobody asks the storage for it.

        Says in the log what was found of the folder's disk; StorageError if it takes nothing.
        """
        self._sources.update((source.url, source) for source in sources)
        looking, self._looking = self._looking, None
        if looking is not None:
            disk = looking.result()
            log.info("cache: %s", disk)
            if disk.warning is not None:
                log.warning("cache: %s", disk.warning)

    def open(self, url: str) -> Storage:
        """Open a shard; one that is known is not asked for before its first byte is read."""
        if not is_remote(url):
            return self._opener(url)
        source = self._source(url)
        return self._opener(url) if source is None else StagedShard(self, source)

    def _source(self, url: str) -> Source | None:
        if url not in self._sources:
            self._sources[url] = self._describe(url)
        return self._sources[url]

    def expect(self, urls: Sequence[str], *, user: object | None = None) -> None:
        """Begin an epoch of this process: its shards in order, then those of the next epoch.

        Threads with a reader each name it as the `user`; the first to come to an epoch begins it.
        """
        self._after_fork()
        found = [self._source(url) if is_remote(url) else None for url in urls]
        with self._telling:
            if self._joins(user, urls):
                return
            self._urls = urls
            self._doubted.clear()
            self._lost.clear()
            # How many of those before each place are staged: the others do not count.
            self._staged_before = [0, *accumulate(source is not None for source in found)]
            if self._follower is None:
                self._follower = Follower(self._shelf, self._opener)
                # A data set that nobody closes ends with its last reference, its stager with it.
                self._end = weakref.finalize(self, _end_in, os.getpid(), self._follower)
            self._follower.expect([source for source in found if source is not None])

    def roam(self, urls: Sequence[str]) -> None:
        """Say after a read that shards are read in no known order: all are wanted, and kept.

        `urls` is one list for as long as it holds the same. Nothing while readers follow an order.
        """
        self._after_fork()
        with self._telling:
            if self._users:
                return
            if urls is not self._urls:
                self.expect(urls)
            self.reached(0, window=len(urls), zone=len(urls))

    def _joins(self, user: object | None, urls: Sequence[str]) -> bool:
        """Note in which order a user is; True if that is the one that others are in."""
        # Whoever has been in it begins the next one, which is the same where nothing is shuffled.
        joins = urls == self._urls and self._order in self._users.values()
        joins = joins and user is not None and self._at(user) != self._order
        self._order += not joins
        if user is not None:
            self._users[user] = self._order
        return joins

    def _at(self, user: object | None) -> int | None:
        return self._order if user is None else self._users.get(user)

    def reached(self, place: int, *, window: int, zone: int, user: object | None = None) -> None:
        """Say before each batch where the reading is: all before `place` is done.

        `window` shards from there are being read, and `zone` shards, these included, come soon. Of
        a user that is in an epoch from which others have gone on, nothing is taken.
        """
        self._after_fork()
        with self._telling:
            follower = self._follower
            if follower is None or self._at(user) != self._order:
                return
            before = self._staged_before
            here = before[place]
            window, zone = before[place + window] - here, before[place + zone] - here
            moved = follower.reached(here, window=window, zone=zone)
            if moved:
                with self._lock:
                    for name, shard in list(self._held.items()):
                        if not follower.keeps(shard.source):
                            self._held.pop(name).let_go()
            follower.go_on(moved=moved)

    def counts(self) -> Counts:
        """Return what this process has read and brought so far."""
        staged = 0 if self._follower is None else self._follower.staged_bytes
        return Counts(self._local_bytes, self._far_bytes, staged)

    def under_way(self) -> str:
        """Say to a person which shards are being copied to the folder, by any process."""
        try:
            sizes = self._shelf.under_way()
        except StorageError:  # whoever reads meets it too
            return ""
        shards = "a shard" if len(sizes) == 1 else f"{len(sizes)} shards"
        return f", staging {shards} ({sum(sizes) / 1e9:.1f} GB)" if sizes else ""

    def close(self, *, user: object | None = None) -> None:
        """End the threads of this process and let go of what it holds; it may begin anew.

        For a `user` only once no other one is left.
        """
        self._after_fork()
        with self._telling:
            if user is None:
                self._users.clear()
            else:
                self._users.pop(user, None)
            if self._users:
                return
            follower, self._follower = self._follower, None
            end, self._end = self._end, None
        if end is not None:
            end.detach()
        if follower is not None:
            follower.close()
        with self._lock:
            for shard in self._held.values():
                shard.let_go()
            self._held.clear()

    def doubt(self, url: str, error: FastfeedError) -> bool:
        """Give up a copy of a shard whose bytes proved wrong, unless it is the shard that is wrong.

        False then, and if there is none, or one was given up before in this epoch.
        """
        source = self._sources.get(url)
        if source is None or source.name in self._doubted:
            return False
        with self._lock:
            shard = self._held.pop(source.name, None)
        file = shard.let_go() if shard is not None else None
        file = file or self._shelf.get(source)
        if file is None:
            return False
        self._doubted.add(source.name)
        if is_proven(file.descriptor, source):
            return False
        self.lose(source, file, error)
        return True

    # For the shards

    def find(self, shard: StagedShard) -> StagedFile | None:
        """Return a shard's file on the shelf, waited for if that is right; None: read from afar."""
        file, follower = self.look_for(shard), self._follower
        if file is None and follower is not None:
            until = follower.deadline()
            while file is None and follower.wait_for(shard.source, until=until):
                file = self.look_for(shard)
            # It may have come between the look at the shelf and the one at what is under way.
            file = file or self.look_for(shard)
        return file

    def look_for(self, shard: StagedShard) -> StagedFile | None:
        """Return a shard's file on the shelf if it is there now."""
        self._after_fork()
        file = self._shelf.get(shard.source)
        if file is not None:
            with self._lock:
                self._held[shard.source.name] = shard
                self._held.move_to_end(shard.source.name)
                most = _LOOSE if self._follower is None else _HELD
                while len(self._held) > most:
                    self._held.popitem(last=False)[1].let_go()
        return file

    def open_far(self, source: Source) -> Storage:
        """Open a shard where it comes from."""
        remote = self._opener(source.url)
        if isinstance(remote, RemoteFile):
            remote.believe(Facts(source.size, source.tag))
        return remote

    def lose(self, source: Source, file: StagedFile, error: FastfeedError) -> None:
        """Take a copy that the disk does not give back as it was off the shelf."""
        if source.name not in self._lost:
            self._lost.add(source.name)
            log.warning("a staged shard cannot be read and is fetched again: %s", error)
        # If it is another one's doing that it is gone, there may be a good one in its place.
        if not file.is_removed():
            self._shelf.discard(source)
        if self._follower is not None:
            self._follower.look_again()

    def count(self, nbytes: int, *, local: bool) -> None:
        """Count bytes that a shard has given; two threads may lose one another's, which is fine."""
        if local:
            self._local_bytes += nbytes
        else:
            self._far_bytes += nbytes

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def __getstate__(self) -> dict[str, Any]:
        own = {
            "_follower",
            "_end",
            "_held",
            "_lock",
            "_telling",
            "_users",
            "_urls",
            "_doubted",
            "_lost",
            "_looking",
        }
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._looking = None
        self._begin()


def _end_in(process: int, follower: Follower) -> None:
    # A forked child has a copy of it, whose threads and locks are its parent's.
    if process == os.getpid():
        follower.end()
