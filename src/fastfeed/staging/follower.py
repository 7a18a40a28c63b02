"""One process on its way through the plan: what it needs, who brings it, what it waits for.

In the window where it starts, a process reads from afar whatever is not on the shelf: nothing
waits for a whole shard. In later windows it waits for a shard as long as somebody brings that one
or one before it, since reading it from afar as well would only take the stager's part of the link.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import xxhash

from fastfeed.errors import FastfeedError, StorageError
from fastfeed.staging.folder import alone
from fastfeed.staging.locks import lock_now, lock_within
from fastfeed.staging.needs import Need
from fastfeed.staging.stager import Election, Stager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fastfeed.staging.shelf import Shelf
    from fastfeed.staging.source import Source
    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

PATIENCE_S = 120.0
"""How long to wait for one shard that somebody brings, before reading it from afar as well."""
_WAITS = 16
"""Parts to wait for, one after the other, before one shard is read from afar."""
_EVERY_S = 1.0
"""Between two looks for what others have evicted, and for room that they have made."""


class Follower:
    """Follows one data set's order on a shelf, in one process."""

    def __init__(
        self,
        shelf: Shelf,
        opener: Callable[[str], Storage],
        *,
        patience: float = PATIENCE_S,
    ) -> None:
        self._shelf = shelf
        self._open = opener
        self._patience = patience
        self._sources: Sequence[Source] = ()
        self._places: dict[str, int] = {}
        self._place = self._zone = -1
        self._waits_from: int | None = None
        self._waits: dict[int, set[str]] = {}
        self._need: Need | None = None
        self._election: Election | None = None
        self._stager: Stager | None = None
        self._has_all = False
        self._next_look = 0.0

    @property
    def staged_bytes(self) -> int:
        """Bytes that this process has brought to the shelf."""
        return 0 if self._stager is None else self._stager.staged_bytes

    def expect(self, sources: Sequence[Source]) -> None:
        """Begin an epoch: its shards in order, then those of the next one."""
        entering = self._waits_from is None
        self._sources = sources
        self._places = {}
        for place, source in enumerate(sources):
            self._places.setdefault(source.name, place)
        self._place = self._zone = -1
        self._has_all = False
        self._waits.clear()
        if not entering:
            self._waits_from = 0
        before, self._need = self._need, None
        try:
            self._need = Need(self._shelf.folder, sources, zone=0)
        except FastfeedError as error:
            log.warning("others do not know what this process needs: %s", error)
        finally:
            if before is not None:
                before.close()
        if self._election is None:
            names = "\n".join(sorted(self._places))
            self._election = Election(self._shelf, xxhash.xxh3_128_hexdigest(names.encode()))
        if self._stager is not None:
            self._stager.forgive()

    def reached(self, place: int, *, window: int, zone: int) -> bool:
        """Say where the reading is: all before `place` is done; True if that is news.

        `window` shards from there are being read, and `zone` shards, these included, come soon.
        """
        moved = (place, zone) != (self._place, self._zone)
        self._place, self._zone = place, zone
        if self._waits_from is None:
            self._waits_from = place + window
        if moved and self._need is not None:
            self._need.move(place, zone=zone)
        return moved

    def go_on(self, *, moved: bool) -> None:
        """Have the shards brought that are needed from here on, if that is for us to do.

        Call it when what is needed no more was let go: there may be no room before.
        """
        if self._stager is None:
            if self._election is None or not self._election.stand():
                return
            self._stager = Stager(self._shelf, self._open)
        now = time.monotonic()
        # Where all is there only others can change that, and do so at their own pace.
        if (moved and not self._has_all) or now >= self._next_look:
            self._next_look = now + _EVERY_S
            self._has_all = self._stager.want(self._sources[self._place :])

    def look_again(self) -> None:
        """Say that a shard was taken off the shelf."""
        self._has_all = False

    def deadline(self) -> float:
        """Return until when a shard that is asked for now may be waited for."""
        return time.monotonic() + self._patience

    def wait_for(self, source: Source, *, until: float) -> bool:
        """Wait until a shard was brought or is not going to be; False if there was nothing to do.

        After True it may be on the shelf. Each wait is for one part's lock, which ends with its
        holder. `until` is the `deadline` of the first of them.
        """
        place = self._places.get(source.name)
        if place is None or self._waits_from is None or place < self._waits_from:
            return False
        waited = self._waits.setdefault(place, set())
        # One that was left out would be waited for until all after it were there, next epoch's too.
        if len(waited) > max(_WAITS, 2 * self._zone):
            return False
        seconds = until - time.monotonic()
        if seconds <= 0:
            return False
        try:
            parts = self._shelf.parts()
        except StorageError as error:
            self._wait_no_more(error)
            return False
        for name, file in parts:
            # The stager may be behind us: it follows its own process.
            if self._places.get(name, place + 1) <= place:
                waited.add(file)
                path = self._shelf.part_path(file)
                return self._wait_for_part(path, seconds, after_others=len(waited) > 1)
        # Where the reading enters a window, it may be faster than the stager, which was just told.
        stager = self._stager
        return stager is not None and stager.considers(source, seconds)

    def _wait_for_part(self, path: Path, seconds: float, *, after_others: bool) -> bool:
        try:
            with lock_within(str(path), seconds=seconds, shared=True):
                pass
            # It gets its first lock, and its new name, while its writer is alone. So one that is
            # there and not locked is a dead one's, and nobody will finish it.
            with alone(self._shelf.folder):
                lock = lock_now(str(path), shared=True)
            if lock is None:
                return True
            with lock:
                return lock.is_removed()
        except FileNotFoundError:
            return True  # done between the two looks
        except (OSError, StorageError) as error:
            if not after_others:  # else shards do come, if too slowly for this one
                self._wait_no_more(error)
            return False

    def _wait_no_more(self, error: Exception) -> None:
        self._waits_from = len(self._sources)
        log.warning("not waiting for staging any more in this epoch: %s", error)

    def keeps(self, source: Source) -> bool:
        """Say whether a shard is among those being read, or soon to be."""
        return self._place <= self._places.get(source.name, -1) < self._place + self._zone

    def close(self) -> None:
        """Stop bringing and needing; another process may go on."""
        if self._stager is not None:
            self._stager.close()
        self.end()

    def end(self) -> None:
        """Stop, but wait for nobody: pieces under way end later."""
        if self._stager is not None:
            self._stager.end()
            self._stager = None
        if self._election is not None:
            self._election.resign()
            self._election = None
        if self._need is not None:
            self._need.close()
            self._need = None
