"""Objects elsewhere, read by position: exact or an error, large reads in parallel parts."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from fastfeed.errors import StorageError
from fastfeed.storage.answers import Facts, Sink, same_tag
from fastfeed.storage.connection import connect, locate
from fastfeed.storage.faults import WAYS_OUT, Fault
from fastfeed.storage.patience import GaveUp, Patience, persist
from fastfeed.storage.urls import scrubbed, secrets_in, shown
from fastfeed.storage.wires import wire_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Self, TypeVar

    from fastfeed.storage.connection import Connection
    from fastfeed.storage.wires import Wire

    T = TypeVar("T")

PART: Final = 8 << 20
"""Bytes of one request at most; a larger read is split into parts that are read at once."""
PARALLEL: Final = 8
"""Parts of one read on their way at a time."""
WHOLE: Final = 64 << 20
"""Bytes for which the deadline of a file read whole is made, where its size is not known."""


class RemoteFile:
    """One object elsewhere. Nothing is asked of the storage before the first use.

    What the first answer says of size and tag holds from then on, also in a copy that is pickled:
    an object with another tag is an error. Threads may share it, and so may forked processes: each
    has a connection of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
        facts: Facts | None = None,
    ) -> None:
        self._place, self._path = locate(url, options)
        self._url = url
        self._shown = shown(url)
        self._patience = patience or Patience()
        self._facts = facts
        self._head = b""
        self._closed = False

    def believe(self, facts: Facts) -> bool:
        """Take facts for known, if answers tell of themselves, and say whether they do.

        Then nothing is asked for, and the first answer of another object is an error.
        """
        told = self._wire(connect(self._place)).tells_facts
        if told:
            self._facts = facts
        return told

    @property
    def facts(self) -> Facts:
        """Size and tag of the object, asked for when first wanted."""
        known = self._facts
        if known is not None and known.size is not None:
            return known
        try:
            found = self._ask()
            self._learn(found)
        except GaveUp as error:
            gave_up = error
        else:
            self._facts = found
            return found
        raise self._failed(gave_up)

    @property
    def size(self) -> int:
        """Bytes in the object."""
        size = self.facts.size
        if size is None:
            raise StorageError(
                f"{self._shown!r}: the server does not say how large it is",
                way_out="Copy it to a local disk first",
            )
        return size

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`; fewer only if the object ends before."""
        nbytes = max(0, min(size, self.size - offset))
        if offset >= 0 and offset + nbytes <= len(self._head):
            return self._head[offset : offset + nbytes]
        buffer = bytearray(nbytes)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview, /) -> None:
        """Fill all of `buffer` with the bytes at `offset`, or raise StorageError."""
        known = None if self._facts is None else self._facts.size
        if offset < 0 or (known is not None and offset + len(buffer) > known):
            raise StorageError(
                f"{self._shown!r} has {known:,} bytes, not the {len(buffer):,} asked for"
                if known is not None
                else f"{self._shown!r}: there are no bytes before the first",
                way_out="Its index or manifest is of another object: make them anew",
                offset=offset,
            )
        try:
            if len(buffer) <= PART:
                self._fill(offset, Sink(buffer))
            else:
                self._fill_parts(offset, buffer)
        except GaveUp as error:
            gave_up = error
        else:
            return
        raise self._failed(gave_up, offset)

    def read_all(self, limit: int) -> bytes:
        """Return all of an object of at most `limit` bytes, in one request."""
        try:
            return self._all(limit)
        except GaveUp as error:
            gave_up = error
        raise self._failed(gave_up)

    def read_if_there(self, limit: int) -> bytes | None:
        """Return all of it, or None if it is not there, or not for us to see."""
        try:
            return self._all(limit)
        except GaveUp as error:
            gave_up = error
        if gave_up.fault.kind in {"missing", "forbidden"}:
            return None
        raise self._failed(gave_up)

    def exists(self) -> bool:
        """Say whether the object is there; StorageError if that cannot be known."""
        try:
            self._facts = self._ask()
        except GaveUp as error:
            gave_up = error
        else:
            return True
        if gave_up.fault.kind == "missing":
            return False
        raise self._failed(gave_up)

    def advise(self, offset: int, size: int) -> None:
        """Do nothing: no server reads ahead for us."""

    def close(self) -> None:
        """Read no more; the connection stays for others."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteFile({self._shown!r})"

    def _all(self, limit: int) -> bytes:
        return self._try(
            lambda wire, seconds, idle: wire.whole(limit, seconds=seconds, idle=idle),
            size=min(limit, WHOLE),
        )

    def _fill_parts(self, offset: int, buffer: memoryview) -> None:
        """Read the parts of a large range at once, or one after the other if the server must."""
        told = self._wire(connect(self._place)).tells_facts
        known = self._facts if told else self.facts
        tag = None if known is None else known.tag
        parts = {
            offset + start: Sink(buffer[start : start + PART])
            for start in range(0, len(buffer), PART)
        }
        # Its threads live for this read alone: a fork has no use for them, and starting a few
        # costs nothing beside reading parts of this size.
        pool = ThreadPoolExecutor(min(PARALLEL, len(parts)), "fastfeed-parts")
        whole = False
        try:
            reads = [pool.submit(self._fill, start, sink) for start, sink in parts.items()]
            done, _ = wait(reads, return_when=FIRST_EXCEPTION)
            found = [read.result() for read in done]
            whole = True
        except GaveUp as error:
            # Without ranges the start of the object can still be had, in one long answer.
            if error.fault.kind != "ranges" or offset:
                raise
        finally:
            # Parts that are still on their way when one has failed are left to end by themselves.
            for sink in parts.values():
                sink.release()
            pool.shutdown(wait=whole, cancel_futures=True)
        if not whole:
            self._fill(offset, Sink(buffer))
        elif tag is not None and any(answer.tag is None for answer in found):
            # These answers say nothing of themselves, so the object is asked for once more.
            self._learn(self._ask())

    def _fill(self, offset: int, sink: Sink) -> Facts:
        if not sink.size:
            return Facts(None, None)

        def fill(wire: Wire, seconds: float, idle: float) -> Facts:
            tag = None if self._facts is None else self._facts.tag
            return wire.fill(offset, sink, tag=tag, seconds=seconds, idle=idle)

        try:
            found = self._try(fill, size=sink.size)
        finally:
            sink.release()
        self._learn(found)
        return found

    def _learn(self, found: Facts) -> None:
        """Keep what the first answer said, and compare the others with it; parts race for that."""
        known = self._facts or Facts(None, None)
        sizes = {known.size, found.size} - {None}
        if len(sizes) > 1:
            fact = f"the object has {found.size:,} bytes, and had {known.size:,} before"
            raise GaveUp(Fault("changed", fact), 1, 0.0)
        if not same_tag(known.tag, found.tag):
            raise GaveUp(Fault("changed", "the object changed between two requests"), 1, 0.0)
        if sizes or known.tag or found.tag:
            self._facts = Facts(next(iter(sizes), None), known.tag or found.tag)

    def _ask(self) -> Facts:
        found, head = self._try(lambda wire, seconds, idle: wire.facts(seconds=seconds, idle=idle))
        if self._facts is None or self._facts.tag == found.tag:
            self._head = head
        return found

    def _try(self, work: Callable[[Wire, float, float], T], *, size: int = 0) -> T:
        """Send requests until one succeeds; GaveUp if none does."""
        if self._closed:
            raise StorageError(f"{self._shown!r} was closed")
        connection = connect(self._place)
        used = connection.filesystem

        def attempt(seconds: float) -> T:
            return work(self._wire(connection), seconds, self._patience.idle_s)

        return persist(attempt, self._patience, size=size, renew=lambda: connection.renew(used))

    def _wire(self, connection: Connection) -> Wire:
        return wire_to(connection, self._place.scheme, self._path)

    def _failed(self, gave_up: GaveUp, offset: int | None = None) -> StorageError:
        fault = gave_up.fault
        fact = scrubbed(fault.fact, secrets_in(self._url, dict(self._place.options)))
        tries = f" (tried {gave_up.attempts} times in {gave_up.seconds:.0f} s)"
        return StorageError(
            f"cannot read {self._shown!r}: {fact}{tries if gave_up.attempts > 1 else ''}",
            way_out=fault.way_out or WAYS_OUT[fault.kind],
            offset=offset,
        )
