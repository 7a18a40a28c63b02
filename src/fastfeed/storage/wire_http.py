"""Requests of http; the session, with its headers and authentication, is fsspec's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed.storage.answers import (
    HEAD,
    Facts,
    Sink,
    check_part,
    check_plain,
    check_whole,
    collect,
    expect_tag,
    facts_in,
)
from fastfeed.storage.faults import Fault, fault_of_status

if TYPE_CHECKING:
    from fastfeed.storage.connection import Connection


class HttpWire:
    """Requests of http; the session, with its headers and authentication, is fsspec's."""

    tells_facts = True

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection = connection
        self._url = url

    def facts(self, *, seconds: float, idle: float) -> tuple[Facts, bytes]:
        """Ask for the head with GET: a URL signed for that answers nothing else."""

        async def ask() -> tuple[Facts, bytes]:
            async with await self._get(f"bytes=0-{HEAD - 1}", idle) as answer:
                if answer.status not in {200, 206, 416}:
                    raise _fault(answer)
                facts, size = facts_in(answer.status, answer.headers)
                head = await collect(answer.content.iter_any(), size) if size else b""
            if len(head) != size:
                raise Fault("broken", f"the answer ended after {len(head)} bytes")
            return facts, head

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
                    expect_tag(tag, facts)
                    async for chunk in answer.content.iter_any():
                        sink.take(chunk)
                elif answer.status == 200:
                    if offset:
                        raise Fault("ranges", "the server ignores Range and sends all of it")
                    facts = check_whole(answer.headers)
                    expect_tag(tag, facts)
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
                return await collect(answer.content.iter_any(), limit)

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


def _fault(answer: Any) -> Fault:
    return fault_of_status(answer.status, headers=answer.headers, reason=answer.reason or "")
