"""What a URL says, and what of it may be shown. Pure, and without any library of storage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>)\]]+")
_HTTP = frozenset(("http", "https"))
# Settings of a file system that hold no secret, and that help whoever reads an error.
_OPEN = frozenset(
    ("endpoint_url", "region_name", "account_name", "project", "cache_regions", "version_aware")
)
# Parameters that sign a request: they change from one day to the next, and the object does not.
_SIGNING = re.compile(
    r"(x-(amz|goog|ms)-.*|signature|sig|s[eprtv]|st|spr|token|expires|policy|key-pair-id"
    r"|awsaccesskeyid|googleaccessid)",
    re.IGNORECASE,
)
_HIDDEN = "***"


def scheme_of(url: str) -> str | None:
    """Return the scheme of a URL in lower case, or None for a path."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else None


def is_remote(url: str) -> bool:
    """Say whether a URL means something else than a path of this machine."""
    return scheme_of(url) not in {None, "file"}


def shown(url: str) -> str:
    """Return a URL for a message or a log: no password, and no query, for it may be signed."""
    if not is_remote(url):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme_of(url)}://{_HIDDEN}"
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{_HIDDEN}@{host}" if at and user else host
    query = _HIDDEN if parts.query else ""
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


def scrubbed(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return a foreign message without secrets, and with each URL in it as `shown` shows it."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return _URL.sub(lambda match: shown(match[0]), text)


def secrets_in(url: str, options: object) -> tuple[str, ...]:
    """Return the texts in a URL and in the options of its file system that must not be shown."""
    found = set(_texts(options))
    parts = urlsplit(url)
    found.update(value for _, value in parse_qsl(parts.query))
    found.update(filter(None, (parts.password, unquote(parts.password or ""))))
    found.update([piece for text in found for piece in text.split() if len(piece) > 7])
    # A short value such as "us" or "1" is no secret, and would tear holes into every message.
    return tuple(sorted((text for text in found if len(text) > 3), key=len, reverse=True))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in _OPEN:
                yield from _texts(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _texts(inner)


def base_name(url: str) -> str:
    """Return the last part of the path of a remote URL, decoded; empty after a slash."""
    path = _split(url)[0].rpartition("/")[2]
    return unquote(path) if scheme_of(url) in _HTTP else path


def parent(url: str) -> str:
    """Return the folder of a remote URL, without a slash at its end; its query stays."""
    path, query = _split(url)
    return path.rpartition("/")[0] + query


def join(folder: str, name: str) -> str:
    """Return the URL of a file in a remote folder; what signs the folder signs the file."""
    path, query = _split(folder)
    if scheme_of(folder) in _HTTP:
        name = quote(name, safe="/")
    return f"{path.rstrip('/')}/{name}{query}"


def unsigned(url: str) -> str:
    """Return a URL without what changes from one signature of the same object to the next."""
    parts = urlsplit(url)
    query = urlencode(
        [pair for pair in parse_qsl(parts.query, True) if not _SIGNING.fullmatch(pair[0])]
    )
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme.lower(), host, parts.path, query, ""))


def _split(url: str) -> tuple[str, str]:
    """Return what precedes the query, and the query with its question mark.

    Only http has one for sure; in the key of an object a question mark is a letter like others.
    """
    if scheme_of(url) not in _HTTP:
        return url, ""
    path, mark, query = url.partition("?")
    return path, mark + query
