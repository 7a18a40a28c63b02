"""Fill a cache ahead of a job."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, StorageError
from fastfeed.staging.shelf import Refusal, Shelf
from fastfeed.staging.stager import THREADS, open_checked
from fastfeed.staging.transfer import PIECE, Transfer, make_buffer
from fastfeed.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastfeed.options import Cache
    from fastfeed.staging.source import Source
    from fastfeed.storage.open import Storage


@dataclass(frozen=True, slots=True)
class Warmed:
    """What became of one shard."""

    source: Source
    nbytes: int
    """Bytes that were brought; 0 if it was there, or did not come."""
    why_not: FastfeedError | Refusal | None = None
    """Why it is not on the shelf; None if it is, `Refusal.THERE` if somebody else brings it."""


def warm(
    sources: Sequence[Source],
    cache: Cache,
    *,
    progress: Callable[[Warmed], None] = lambda _: None,
    opener: Callable[[str], Storage] = open_storage,
    threads: int = THREADS,
) -> list[Warmed]:
    """Bring shards to the cache in this order, and tell `progress` of each.

    Shards of this call are not evicted for others of it: a cache that is too small keeps the first.
    A shard that fails is told, and the others are brought all the same.
    """
    shelf = Shelf(cache.folder, cache.nbytes)
    keep = frozenset(source.name for source in sources)
    done = []
    for source in sources:
        done.append(_warm_one(shelf, source, keep, opener=opener, threads=threads))
        progress(done[-1])
    return done


def _warm_one(
    shelf: Shelf,
    source: Source,
    keep: frozenset[str],
    *,
    opener: Callable[[str], Storage],
    threads: int,
) -> Warmed:
    try:
        reserved = shelf.reserve(source, keep=keep)
        if isinstance(reserved, Refusal):
            return Warmed(source, 0, None if source in shelf else reserved)
        with reserved:
            transfer = Transfer(open_checked(source, opener), reserved)
            _carry_all(transfer, min(threads, -(-source.size // PIECE) or 1))
    except FastfeedError as error:
        return Warmed(source, 0, error)
    return Warmed(source, 0 if transfer.error else source.size, transfer.error)


def _carry_all(transfer: Transfer, threads: int) -> None:
    def carry() -> None:
        buffer = make_buffer(PIECE)
        while (offset := transfer.take()) is not None:
            transfer.carry(offset, buffer)

    others = [threading.Thread(target=carry, name="fastfeed-stage") for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    try:
        carry()
    finally:
        transfer.abandon(StorageError("the transfer was interrupted"))
        for thread in others:
            thread.join()
