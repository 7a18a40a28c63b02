"""The stager: brings the shards that the plan needs next, one stager on a node for a data set.

Whoever gets the lock of the data set is it; the others ask for the lock as they get on, so that one
takes over when the holder ends, however that happens. It has a few threads: all bring pieces of the
shard whose turn it is, and go on to the next one while its last pieces are under way.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from fastfeed.errors import FastfeedError, StorageError
from fastfeed.staging.locks import lock_now
from fastfeed.staging.shelf import Refusal
from fastfeed.staging.transfer import PIECE, Transfer, make_buffer, ours
from fastfeed.storage.answers import Facts
from fastfeed.storage.remote import RemoteFile
from fastfeed.storage.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastfeed.staging.locks import Lock
    from fastfeed.staging.shelf import Shelf
    from fastfeed.staging.source import Source
    from fastfeed.storage.open import Storage

log = logging.getLogger("fastfeed")

THREADS = 8
"""Ranged reads at a time; their buffers take 32 MiB in all, whatever the size of a shard."""


class Election:
    """The lock of one data set on a shelf: who has it is the stager."""

    def __init__(self, shelf: Shelf, name: str) -> None:
        self._path = str(shelf.folder / f"{name}.stager")
        self._lock: Lock | None = None

    def stand(self) -> bool:
        """Ask to be the stager; True once we are."""
        while self._lock is None:
            try:
                lock = lock_now(self._path, create=True)
            except OSError:
                return False
            if lock is None:
                return False
            # The one before may have removed the file just before we locked it.
            if lock.is_removed():
                lock.close()
            else:
                self._lock = lock
        return True

    def resign(self) -> None:
        """Let another one be the stager; leaves no file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            if lock.descriptor >= 0:  # else it is the parent's that forked us
                with suppress(OSError):
                    os.unlink(self._path)  # noqa: PTH108
            lock.close()


def open_checked(source: Source, opener: Callable[[str], Storage]) -> Storage:
    """Open a shard where it comes from, if it is still the one that is known; or StorageError.

    Where answers tell which object they are of, the first read is what raises it.
    """
    remote = opener(source.url)
    if isinstance(remote, RemoteFile) and remote.believe(Facts(source.size, source.tag)):
        return remote
    with ExitStack() as stack:
        stack.push(remote)
        if remote.size != source.size:
            raise StorageError(
                f"the shard has {remote.size:,} bytes, and had {source.size:,} when it was listed",
                shard=shown(source.url),
            )
        if source.tag is not None and isinstance(remote, RemoteFile):
            tag = remote.facts.tag
            if tag != source.tag:
                raise StorageError(
                    f"the shard was replaced: {tag!r} is there, and {source.tag!r} was listed",
                    shard=shown(source.url),
                )
        stack.pop_all()
    return remote


class Stager:
    """Threads that bring what `want` names, in that order, as far as the shelf has room."""

    def __init__(
        self,
        shelf: Shelf,
        opener: Callable[[str], Storage],
        *,
        threads: int = THREADS,
        piece: int = PIECE,
    ) -> None:
        self._shelf = shelf
        self._open = opener
        self._piece = piece
        self._changed = threading.Condition()
        self._wanted: Sequence[Source] = ()
        self._current: Transfer | None = None
        self._choosing = False
        self._under_way: set[str] = set()
        self._version = 0
        self._idle_at = -1
        self._failed: dict[str, FastfeedError] = {}
        self._closed = False
        self._said: set[Refusal | str] = set()
        self.staged_bytes = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"fastfeed-stage-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def want(self, sources: Sequence[Source]) -> bool:
        """Say what is needed from now on, soonest first; also when only the room has changed.

        Returns whether all of it is on the shelf.
        """
        try:
            has_all = self._shelf.shards().issuperset([source.name for source in sources])
        except StorageError:
            has_all = False  # the thread that goes to bring them tells it
        with self._changed:
            self._wanted = sources
            if not has_all or self._idle_at != self._version:  # else nobody need wake for it
                self._version += 1
                self._changed.notify_all()
        return has_all

    def forgive(self) -> None:
        """Try again what has failed; for a new epoch."""
        self._failed.clear()

    def wait(self, seconds: float) -> bool:
        """Wait until nothing more can be brought; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, seconds)

    def considers(self, source: Source, seconds: float) -> bool:
        """Wait until a shard is begun or is not going to be; False if that was so already."""

        def is_known() -> bool:
            known = source.name in self._under_way or source.name in self._failed
            # Begun and done it is also known, else it would be waited for until all are there.
            return self._closed or known or self._idle_at == self._version or source in self._shelf

        with self._changed:
            return not is_known() and self._changed.wait_for(is_known, seconds)

    def _is_idle(self) -> bool:
        at_rest = not self._choosing and not self._under_way
        return self._closed or (at_rest and self._idle_at == self._version)

    def close(self) -> None:
        """End the threads after the pieces under way; parts not finished leave nothing."""
        with self._changed:
            self.end()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """Ask the threads to end; of use to finalisers, which may run while any lock is held."""
        self._closed = True
        if self._changed.acquire(blocking=False):
            self._changed.notify_all()
            self._changed.release()
        else:  # who has the lock may be about to wait, and a finaliser may wait for nobody
            _thread.start_new_thread(self._wake, ())

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        buffer = make_buffer(self._piece)
        while (taken := self._next()) is not None:
            transfer, offset = taken
            if transfer.carry(offset, buffer):
                self._ended(transfer)
        with self._changed:
            current, self._current = self._current, None
        if current is not None:
            current.abandon(StorageError("the stager was closed"))

    def _next(self) -> tuple[Transfer, int] | None:
        """Return a piece to bring; None at the end. One thread at a time chooses the next shard."""
        while True:
            with self._changed:
                while not self._closed:
                    current = self._current
                    if current is not None and (offset := current.take()) is not None:
                        return current, offset
                    if not self._choosing and self._idle_at != self._version:
                        break
                    self._changed.wait()
                if self._closed:
                    return None
                self._choosing, version = True, self._version
            chosen = None
            try:
                chosen = self._choose()
            finally:
                with self._changed:
                    self._choosing = False
                    self._current = chosen
                    if chosen is None:
                        self._idle_at = version
                    else:
                        self._under_way.add(chosen.source.name)
                    self._changed.notify_all()

    def _choose(self) -> Transfer | None:
        """Begin the first wanted shard that is not on the shelf and gets room there."""
        wanted = self._wanted
        try:
            there = self._shelf.shards()
            for source in wanted:
                # In this order: one that fails is under way until that is noted.
                if source.name in self._under_way or source.name in self._failed:
                    continue
                if source.name in there:
                    continue
                if self._closed:
                    return None
                reserved = self._shelf.reserve(source)
                if reserved is Refusal.TOO_LARGE:
                    self._say(reserved, source)
                elif reserved is Refusal.NO_ROOM or reserved is Refusal.DISK_FULL:
                    # What comes later must not take the room that this one waits for.
                    self._say(reserved, source)
                    return None
                elif not isinstance(reserved, Refusal):
                    try:
                        remote = open_checked(source, self._open)
                    except Exception as error:  # noqa: BLE001 - the thread brings other shards
                        reserved.discard()
                        self._fail(source, ours(error, source))
                        continue
                    except BaseException:
                        reserved.discard()
                        raise
                    return Transfer(remote, reserved, piece=self._piece)
        except FastfeedError as error:
            if str(error) not in self._said:  # it is tried again every second
                self._said.add(str(error))
                log.warning("staging pauses, shards are read from afar: %s", error)
        return None

    def _ended(self, transfer: Transfer) -> None:
        if transfer.error is not None:
            self._fail(transfer.source, transfer.error)
        with self._changed:
            if transfer.error is None:
                self.staged_bytes += transfer.source.size
            self._under_way.remove(transfer.source.name)
            self._version += 1  # there may be room again
            self._changed.notify_all()

    def _fail(self, source: Source, error: FastfeedError) -> None:
        self._failed[source.name] = error
        if not self._closed:
            log.warning("a shard is not staged but read from afar in this epoch: %s", error)

    def _say(self, refusal: Refusal, source: Source) -> None:
        if refusal is Refusal.NO_ROOM or refusal in self._said:
            return
        self._said.add(refusal)
        log.warning(
            "shards are read from afar, not from the cache %s: %s (%s of %s bytes). "
            "Make room, or name a larger cache",
            self._shelf.folder,
            refusal.value,
            shown(source.url),
            f"{source.size:,}",
        )
