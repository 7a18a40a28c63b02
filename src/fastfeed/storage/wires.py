"""One request each: the ways to ask http, S3, and any other file system for a range of bytes.

http and S3 are asked request by request, so that their answers can be judged by what they say of
themselves; of other file systems only the number of bytes can be. Each request has a deadline,
resumes what an earlier one left in the sink, and fails with a `Fault`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastfeed.storage.answers import Facts, Sink, too_large
from fastfeed.storage.connection import has_s3_calls
from fastfeed.storage.faults import Fault
from fastfeed.storage.wire_http import HttpWire
from fastfeed.storage.wire_s3 import S3Wire

if TYPE_CHECKING:
    from fastfeed.storage.connection import Connection

# What file systems call that which changes with the bytes, the surest first.
_TAGS = (
    "ETag",
    "etag",
    "e_tag",
    "generation",
    "blob_id",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
)


class Wire(Protocol):
    """Sends single requests for one object. `seconds` is for the request, `idle` between bytes."""

    @property
    def tells_facts(self) -> bool:
        """Whether an answer to `fill` says which object it is of, as far as the server knows."""
        ...

    def facts(self, *, seconds: float, idle: float) -> tuple[Facts, bytes]:
        """Return what the storage says of the object, and its first bytes if they came along."""
        ...

    def fill(
        self, offset: int, sink: Sink, *, tag: str | None, seconds: float, idle: float
    ) -> Facts:
        """Read the bytes at `offset` until the sink is full, of the version with this tag."""
        ...

    def whole(self, limit: int, *, seconds: float, idle: float) -> bytes:
        """Return all of the object; Fault if that is more than `limit` bytes."""
        ...


def wire_to(connection: Connection, scheme: str, path: str) -> Wire:
    """Return the way to ask for the object at `path`."""
    if scheme in {"http", "https"} and hasattr(connection.filesystem, "set_session"):
        return HttpWire(connection, path)
    if has_s3_calls(connection.filesystem):
        return S3Wire(connection, path)
    return PlainWire(connection, path)


class PlainWire:
    """Requests of any other file system of fsspec: exactly the bytes asked for, or a fault."""

    tells_facts = False

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def facts(
        self,
        *,
        seconds: float,
        idle: float,  # noqa: ARG002 - there are no bytes to wait for
    ) -> tuple[Facts, bytes]:
        """Ask for what the file system tells of a file, and not for what it remembers."""
        connection = self._connection
        connection.filesystem.invalidate_cache()
        about = connection.call("info", self._path, seconds=seconds)
        if about.get("type") == "directory":
            raise Fault("missing", "it is a folder")
        tag = next((about[name] for name in _TAGS if about.get(name) is not None), None)
        return Facts(about.get("size"), None if tag is None else str(tag)), b""

    def fill(
        self,
        offset: int,
        sink: Sink,
        *,
        tag: str | None,  # noqa: ARG002 - its answers are bytes and nothing else
        seconds: float,
        idle: float,  # noqa: ARG002 - and come whole
    ) -> Facts:
        """Ask for the range in one request."""
        begin, size = offset + sink.done, sink.missing
        data = self._connection.call(
            "cat_file", self._path, start=begin, end=begin + size, seconds=seconds
        )
        sink.take(memoryview(data))
        sink.expect_full()
        return Facts(None, None)

    def whole(self, limit: int, *, seconds: float, idle: float) -> bytes:
        """Ask for its size, then for all of it."""
        size = self.facts(seconds=seconds, idle=idle)[0].size
        if size is not None and size > limit:
            raise too_large(limit)
        data = bytes(self._connection.call("cat_file", self._path, seconds=seconds))
        if size is not None and len(data) != size:
            raise Fault("broken", f"{len(data):,} of {size:,} bytes came")
        if len(data) > limit:
            raise too_large(limit)
        return data
