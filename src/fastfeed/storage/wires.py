"""One request each: the ways to ask http, S3, and any other file system for a range of bytes.

http and S3 are asked request by request, so that their answers can be judged by what they say of
themselves; of other file systems only the number of bytes can be. Each request has a deadline,
resumes what an earlier one left in the sink, and fails with a `Fault`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from fastfeed.storage.answers import (
    Facts,
    Sink,
    check_part,
    check_plain,
    check_whole,
    facts_in,
    same_tag,
)
from fastfeed.storage.connection import has_s3_calls
from fastfeed.storage.faults import Fault, fault_of_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastfeed.storage.connection import Connection

_CHUNK = 1 << 20
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

    def facts(self, *, seconds: float, idle: float) -> Facts:
        """Return what the storage says of the object."""
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


class HttpWire:
    """Requests of http; the session, with its headers and authentication, is fsspec's."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection = connection
        self._url = url

    def facts(self, *, seconds: float, idle: float) -> Facts:
        """Ask for the first byte: a URL signed for GET answers no HEAD."""

        async def ask() -> Facts:
            async with await self._get("bytes=0-0", idle) as answer:
                if answer.status not in {200, 206, 416}:
                    raise _fault(answer)
                return facts_in(answer.status, answer.headers)

        return self._connection.wait(ask, seconds=seconds)

    def fill(
        self, offset: int, sink: Sink, *, tag: str | None, seconds: float, idle: float
    ) -> Facts:
        """Accept 206 with the right range; 200 only for a read from the start."""

        async def ask() -> Facts:
            begin = offset + sink.done
            wanted = f"bytes={begin}-{begin + sink.missing - 1}"
            async with await self._get(wanted, idle) as answer:
                if answer.status == 206:
                    facts = check_part(answer.headers, offset=begin, size=sink.missing)
                    _expect_tag(tag, facts)
                    async for chunk in answer.content.iter_any():
                        sink.take(chunk)
                elif answer.status == 200:
                    if offset:
                        raise Fault("ranges", "the server ignores Range and sends all of it")
                    facts = check_whole(answer.headers)
                    _expect_tag(tag, facts)
                    sink.restart()
                    async for chunk in answer.content.iter_any():
                        if sink.take_start(chunk):
                            break
                else:
                    raise _fault(answer)
            sink.expect_full()
            return facts

        return self._connection.wait(ask, seconds=seconds)

    def whole(self, limit: int, *, seconds: float, idle: float) -> bytes:
        """Read one answer to its end, of known length or not."""

        async def ask() -> bytes:
            async with await self._get(None, idle) as answer:
                if answer.status != 200:
                    raise _fault(answer)
                check_plain(answer.headers)
                return await _collect(answer.content.iter_any(), limit)

        return self._connection.wait(ask, seconds=seconds)

    async def _get(self, wanted: str | None, idle: float) -> Any:
        import aiohttp

        filesystem = self._connection.filesystem
        session = await filesystem.set_session()
        keywords = dict(filesystem.kwargs)
        headers = {**keywords.pop("headers", {}), "Accept-Encoding": "identity"}
        if wanted is not None:
            headers["Range"] = wanted
        keywords["timeout"] = aiohttp.ClientTimeout(total=None, sock_connect=idle, sock_read=idle)
        return session.get(filesystem.encode_url(self._url), headers=headers, **keywords)


class S3Wire:
    """Requests of S3 through s3fs, which signs them."""

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def facts(self, *, seconds: float, idle: float) -> Facts:
        """Ask for the head of the object."""

        async def ask() -> Facts:
            async with asyncio.timeout(idle):
                answer = await self._call("head_object")
            return Facts(answer.get("ContentLength"), answer.get("ETag"))

        return self._connection.wait(ask, seconds=seconds)

    def fill(
        self, offset: int, sink: Sink, *, tag: str | None, seconds: float, idle: float
    ) -> Facts:
        """Ask for the range of the version with this tag; the answer says what it is."""

        async def ask() -> Facts:
            begin, size = offset + sink.done, sink.missing
            condition = {"IfMatch": tag} if tag else {}
            async with asyncio.timeout(idle):
                answer = await self._call(
                    "get_object", Range=f"bytes={begin}-{begin + size - 1}", **condition
                )
            headers = {
                "Content-Range": answer.get("ContentRange", ""),
                "ETag": answer.get("ETag", ""),
            }
            with _closing(answer["Body"]) as body:
                facts = check_part(headers, offset=begin, size=size)
                _expect_tag(tag, facts)
                async for chunk in _chunks(body, idle):
                    sink.take(chunk)
            sink.expect_full()
            return facts

        return self._connection.wait(ask, seconds=seconds)

    def whole(self, limit: int, *, seconds: float, idle: float) -> bytes:
        """Read one answer to its end."""

        async def ask() -> bytes:
            async with asyncio.timeout(idle):
                answer = await self._call("get_object")
            with _closing(answer["Body"]) as body:
                content = await _collect(_chunks(body, idle), limit)
            if len(content) != answer.get("ContentLength", len(content)):
                raise Fault("broken", f"the answer ended after {len(content):,} bytes")
            return content

        return self._connection.wait(ask, seconds=seconds)

    async def _call(self, name: str, **keywords: Any) -> Any:
        filesystem = self._connection.filesystem
        bucket, key, version = filesystem.split_path(self._path)
        if version:
            keywords["VersionId"] = version
        return await filesystem._call_s3(name, Bucket=bucket, Key=key, **keywords)  # noqa: SLF001


class PlainWire:
    """Requests of any other file system of fsspec: exactly the bytes asked for, or a fault."""

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def facts(self, *, seconds: float, idle: float) -> Facts:  # noqa: ARG002 - no bytes to wait for
        """Ask for what the file system tells of a file, and not for what it remembers."""
        connection = self._connection
        connection.filesystem.invalidate_cache()
        about = connection.call("info", self._path, seconds=seconds)
        if about.get("type") == "directory":
            raise Fault("missing", "it is a folder")
        tag = next((about[name] for name in _TAGS if about.get(name) is not None), None)
        return Facts(about.get("size"), None if tag is None else str(tag))

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
        size = self.facts(seconds=seconds, idle=idle).size
        if size is not None and size > limit:
            raise _too_large(limit)
        data = bytes(self._connection.call("cat_file", self._path, seconds=seconds))
        if size is not None and len(data) != size:
            raise Fault("broken", f"{len(data):,} of {size:,} bytes came")
        if len(data) > limit:
            raise _too_large(limit)
        return data


async def _chunks(body: Any, idle: float) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(idle):
            chunk = await body.read(_CHUNK)
        if not chunk:
            return
        yield chunk


class _closing:  # noqa: N801 - reads as contextlib's
    """Drops the connection of a body that was not read to its end."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __enter__(self) -> Any:
        return self._body

    def __exit__(self, *_error: object) -> None:
        self._body.close()


async def _collect(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > limit:
            raise _too_large(limit)
    return bytes(content)


def _too_large(limit: int) -> Fault:
    return Fault("refused", f"it has more than {limit:,} bytes", way_out="Check what it is")


def _expect_tag(tag: str | None, facts: Facts) -> None:
    if not same_tag(tag, facts.tag):
        raise Fault("changed", f"the object has changed: its tag was {tag}, and is {facts.tag}")


def _fault(answer: Any) -> Fault:
    return fault_of_status(answer.status, headers=answer.headers, reason=answer.reason or "")
