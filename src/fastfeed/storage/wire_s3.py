"""Requests of S3, through s3fs, which signs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastfeed.storage.answers import HEAD, Facts, Sink, check_part, collect, expect_tag, facts_in
from fastfeed.storage.faults import Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fastfeed.storage.connection import Connection

_CHUNK = 1 << 20


class S3Wire:
    """Requests of S3 through s3fs, which signs them."""

    tells_facts = True

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection = connection
        self._path = path

    def facts(self, *, seconds: float, idle: float) -> tuple[Facts, bytes]:
        """Ask for the head with GET, which also says why it is refused."""

        async def ask() -> tuple[Facts, bytes]:
            try:
                async with asyncio.timeout(idle):
                    answer = await self._call("get_object", Range=f"bytes=0-{HEAD - 1}")
            except Exception as error:
                if fault_of(error).kind != "changed":
                    raise
                # An empty object has no such range.
                answer = await self._call("head_object")
                return Facts(answer.get("ContentLength"), answer.get("ETag")), b""
            with _closing(answer["Body"]) as body:
                facts, size = facts_in(206, _headers(answer))
                head = await collect(_chunks(body, idle), size)
            if len(head) != size:
                raise Fault("broken", f"the answer ended after {len(head)} bytes")
            return facts, head

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
            with _closing(answer["Body"]) as body:
                facts = check_part(_headers(answer), offset=begin, size=size)
                expect_tag(tag, facts)
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
                content = await collect(_chunks(body, idle), limit)
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


def _headers(answer: Mapping[str, Any]) -> dict[str, str]:
    return {"Content-Range": answer.get("ContentRange", ""), "ETag": answer.get("ETag", "")}


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
