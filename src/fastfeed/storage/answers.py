"""What a server's answer to a request for a range is worth. Pure: headers in, a verdict out.

A server that ignores Range sends the whole object with status 200, and a proxy may send another
range than the one asked for: either way the bytes are right, and not those that were wanted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastfeed.storage.faults import Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

HEAD = 512
"""Bytes from the start that are asked for with the facts: they say whether a tar is compressed."""

_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED = re.compile(r"bytes\s+\*/(\d+)")


@dataclass(frozen=True, slots=True)
class Facts:
    """What storage says of an object; None where it says nothing."""

    size: int | None
    tag: str | None
    """ETag, generation or time of change: another tag means other bytes."""


class Sink:
    """The memory that one read fills, from its start, with whatever arrives in time.

    Once released it takes nothing more: a request that was given up may still receive bytes, and
    by then the memory belongs to somebody else.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._view = buffer[:]
        self.size = len(buffer)
        self.done = 0

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return self.size - self.done

    def take(self, chunk: bytes | memoryview) -> None:
        """Append bytes; Fault if there are more of them than were asked for."""
        end = self.done + len(chunk)
        if end > self.size:
            raise Fault("ranges", "the answer is longer than the range asked for")
        self._view[self.done : end] = chunk
        self.done = end

    def take_start(self, chunk: bytes) -> bool:
        """Append bytes of an answer that may be longer; return whether this was the last."""
        self.take(memoryview(chunk)[: self.missing])
        return not self.missing

    def restart(self) -> None:
        """Forget what arrived."""
        self.done = 0

    def expect_full(self) -> None:
        """Fault if an answer ended early."""
        if self.missing:
            fact = f"the answer ended after {self.done:,} of {self.size:,} bytes"
            raise Fault("broken", fact)

    def release(self) -> None:
        """Take nothing more."""
        self._view.release()


def check_part(headers: Mapping[str, str], *, offset: int, size: int) -> Facts:
    """Return what an answer with status 206 says of the object; Fault if it is another range."""
    check_plain(headers)
    given = headers.get("Content-Range", "")
    match = _RANGE.fullmatch(given.strip())
    if match is None:
        raise Fault("ranges", f"the answer does not say which range it is ({given!r})")
    first, last = int(match[1]), int(match[2])
    if first != offset:
        asked = f"{offset}-{offset + size - 1}"
        raise Fault("ranges", f"bytes {asked} were asked for, and {first}-{last} came")
    total = None if match[3] == "*" else int(match[3])
    if last - first + 1 < size:
        if total is not None and total < offset + size:
            raise Fault("changed", f"the object ends at {total:,}, within the range asked for")
        # A server may send less at a time than it was asked for; the rest is asked for again.
    elif last - first + 1 > size:
        raise Fault("ranges", "the answer is longer than the range asked for")
    return Facts(total, tag_in(headers))


def check_whole(headers: Mapping[str, str]) -> Facts:
    """Return what an answer with status 200 says of the object."""
    check_plain(headers)
    length = headers.get("Content-Length", "")
    return Facts(int(length) if length.isdecimal() else None, tag_in(headers))


def facts_in(status: int, headers: Mapping[str, str]) -> tuple[Facts, int]:
    """Return what an answer to a request for the head says of the object, and the head's size."""
    if status == 206:
        match = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        size = min(HEAD, int(match[2]) + 1) if match else HEAD
        return check_part(headers, offset=0, size=size), size
    if status == 416:  # an empty object has no first byte
        match = _UNSATISFIED.fullmatch(headers.get("Content-Range", "").strip())
        return Facts(int(match[1]) if match else None, tag_in(headers)), 0
    return check_whole(headers), 0


def check_plain(headers: Mapping[str, str]) -> None:
    """Fault if the body is not the object's own bytes."""
    encoding = headers.get("Content-Encoding", "identity").lower()
    if encoding not in {"identity", "", "aws-chunked"}:
        raise Fault(
            "refused",
            f"the server sends the object encoded as {encoding}, though it was asked not to",
            way_out="Switch compression off for shards at the server, or take the "
            "Content-Encoding off the object",
        )


def tag_in(headers: Mapping[str, str]) -> str | None:
    """Return what tells this version of an object from others."""
    return headers.get("ETag") or headers.get("Last-Modified")


def same_tag(known: str | None, found: str | None) -> bool:
    """Say whether two tags may be of the same bytes; a tag that nobody knows tells nothing."""
    return known is None or found is None or known == found


def expect_tag(tag: str | None, facts: Facts) -> None:
    """Fault if an answer is of another version than the one with this tag."""
    if not same_tag(tag, facts.tag):
        raise Fault("changed", f"the object has changed: its tag was {tag}, and is {facts.tag}")


def too_large(limit: int) -> Fault:
    """Return the fault of a file that is larger than it may be."""
    return Fault("refused", f"it has more than {limit:,} bytes", way_out="Check what it is")


async def collect(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    """Return all of a body; Fault if that is more than `limit` bytes."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > limit:
            raise too_large(limit)
    return bytes(content)
