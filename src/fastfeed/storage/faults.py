"""What can go wrong with remote storage, told apart: gone, refused, busy, broken, changed.

Each library has exceptions of its own for the same answer of a server. They become a `Fault` here,
by the status that they carry, so that nothing else needs to know whose exception it was.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from fastfeed.storage.urls import scrubbed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Kind = Literal["missing", "forbidden", "expired", "busy", "broken", "changed", "ranges", "refused"]

_PASSING = frozenset(("busy", "broken"))
_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529))
_BUSY_CODES = frozenset(("SlowDown", "RequestLimitExceeded", "ThrottlingException", "ServerBusy"))
_EXPIRED = frozenset(
    ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
)
_STATUSES: dict[int, Kind] = {
    401: "forbidden",
    403: "forbidden",
    407: "forbidden",
    404: "missing",
    410: "missing",
    412: "changed",
    416: "changed",
}
_FACTS: dict[Kind, str] = {
    "missing": "there is no such object",
    "forbidden": "the server refuses access",
    "expired": "the credentials have expired",
    "busy": "the server is busy or failing",
    "changed": "the object is not the one that was opened",
    "refused": "the server does not do as asked",
}
# Libraries whose exceptions without a status tell of a connection that failed.
_NETWORK = frozenset(
    ("aiohttp", "aiobotocore", "botocore", "urllib3", "requests", "httpx", "httpcore", "azure")
)
_NETWORK_OF_RUST = ("GenericError",)
_SHOWN = 300

WAYS_OUT: dict[Kind, str] = {
    "missing": "Check its name, and whether it was moved or deleted",
    "forbidden": "Check the credentials and that they may read it; they are passed the way fsspec "
    "takes them. S3 gives this answer for a missing object too, to who may not list the bucket",
    "expired": "Renew the credentials",
    "busy": "Read with fewer workers, or try again later",
    "broken": "Check the network and the server, and start again",
    "changed": "It was replaced while it was read: start again",
    "ranges": "Serve it from a server that honours Range (nginx, any S3), which a cache needs too, "
    "or copy whole files to a local disk first (curl, wget)",
    "refused": "Check the URL and the options of its file system",
}


class Fault(Exception):  # noqa: N818 - it never leaves this folder
    """One attempt that failed, why, and whether another may succeed."""

    def __init__(
        self,
        kind: Kind,
        fact: str,
        *,
        retry_after: float | None = None,
        way_out: str | None = None,
    ) -> None:
        super().__init__(fact)
        self.kind = kind
        self.fact = fact
        self.retry_after = retry_after
        self.way_out = way_out or WAYS_OUT[kind]

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in _PASSING


def fault_of_status(
    status: int, *, headers: Mapping[str, str] | None = None, code: str = "", reason: str = ""
) -> Fault:
    """Return what a status other than success means; `code` is the server's own word for it."""
    name = " ".join(filter(None, (str(status), code or reason)))
    if code in _EXPIRED:
        kind: Kind = "expired"
    elif status in _BUSY or code in _BUSY_CODES:
        kind = "busy"
    else:
        kind = _STATUSES.get(status, "refused")
    given = headers or {}
    after = given.get("Retry-After") or given.get("retry-after")
    return Fault(kind, f"{_FACTS[kind]} ({name})", retry_after=_seconds(after))


def fault_of(error: BaseException, *, secrets: tuple[str, ...] = ()) -> Fault:
    """Return what an exception of a storage library means; nothing secret is left in it."""
    if isinstance(error, Fault):
        return error
    chain = list(_chain(error))
    for link in chain:
        status, code, headers = _answer(link)
        if status is not None and status >= 300:
            return fault_of_status(status, headers=headers, code=scrubbed(code, secrets))
    text = scrubbed(str(error), secrets)[:_SHOWN]
    fact = f"{type(error).__name__}: {text}" if text else type(error).__name__
    kind = _kind_of(error, chain)
    if kind == "missing":  # the text of such an error is the name alone
        fact = _FACTS[kind]
    elif isinstance(error, TimeoutError):
        fact = "nothing arrived in time"
    return Fault(kind, fact)


def _kind_of(error: BaseException, chain: list[BaseException]) -> Kind:
    """Return what an exception means that carries no status."""
    names = " ".join(type(link).__name__ for link in chain)
    if "Certificate" in names:
        return "refused"
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return "missing"
    if isinstance(error, PermissionError) or "Credential" in names:
        return "forbidden"
    if isinstance(error, OSError | EOFError) or any(map(_is_of_network, chain)):
        return "broken"
    return "refused"


def _is_of_network(error: BaseException) -> bool:
    kind = type(error)
    return kind.__module__.split(".")[0] in _NETWORK or kind.__name__ in _NETWORK_OF_RUST


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _answer(error: BaseException) -> tuple[int | None, str, Mapping[str, str] | None]:
    """Return status, code and headers that an exception carries, whichever library made it."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        about = response.get("ResponseMetadata", {})
        status = _number(about.get("HTTPStatusCode"))
        return status, str(response.get("Error", {}).get("Code", "")), about.get("HTTPHeaders")
    for owner in (error, response):  # aiohttp, azure, gcsfs, requests and httpx
        # What aiohttp's parser calls a code is its own opinion of a body that was cut.
        of_parser = type(owner).__module__ == "aiohttp.http_exceptions"
        for name in () if of_parser else ("status", "status_code", "code"):
            status = _number(getattr(owner, name, None))
            if status is not None and 100 <= status < 600:
                code = getattr(error, "error_code", None) or ""
                return status, str(code), getattr(owner, "headers", None)
    return None, "", None


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _seconds(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as such or as a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
