"""What a URL says, and what of it may be shown. Pure, and without any library of storage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>)\]]+")
_HTTP = frozenset(("http", "https"))
# Settings of a file system that hold no secret, and that help whoever reads an error.
_OPEN = frozenset(
    ("endpoint_url", "region_name", "account_name", "project", "cache_regions", "version_aware")
)
# What signs a request changes from one day to the next, and the object does not. Any of these names
# may choose an object elsewhere: they are of a signature only where all of a scheme's marks are.
_AMZ = "algorithm content-sha256 credential date expires security-token signature signedheaders"
_GOOG = "algorithm credential date expires signature signedheaders"
_SAS = "saoid scid sdd se si sig sip skoid sks skt sktid ske skv sp spr sr srt ss st suoid sv"
_SIGNED = tuple(
    (frozenset(marks.split()), frozenset(names.split()))
    for marks, names in (
        ("x-amz-signature", " ".join(f"x-amz-{name}" for name in _AMZ.split())),
        ("x-goog-signature", " ".join(f"x-goog-{name}" for name in _GOOG.split())),
        ("sig sv", _SAS),  # Azure
        ("signature awsaccesskeyid", "signature awsaccesskeyid expires x-amz-security-token"),
        ("signature googleaccessid", "signature googleaccessid expires"),
        ("signature key-pair-id", "signature key-pair-id expires policy"),  # CloudFront
    )
)
_HIDDEN = "***"


class _Parts(NamedTuple):
    """What a URL consists of; a fragment of http is left out, for no server is told it."""

    scheme: str
    user: str
    """With the password."""
    host: str
    path: str
    """With the slash that it begins with. In the key of an object `#` is a letter like others."""
    query: str


def _parts_of(url: str) -> _Parts:
    """Split a URL, whatever it is; nothing that is wrong with it is an error here."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme in _HTTP:
        rest = rest.partition("#")[0]
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    user, _, host = netloc.rpartition("@")
    return _Parts(scheme, user, host, slash + path, query)


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
    parts = _parts_of(url)
    user = f"{_HIDDEN}@" if parts.user else ""
    query = f"?{_HIDDEN}" if parts.query else ""
    return f"{parts.scheme}://{user}{parts.host}{parts.path}{query}"


def scrubbed(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Return a foreign message without secrets, and with each URL in it as `shown` shows it."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return _URL.sub(lambda match: shown(match[0]), text)


def secrets_in(url: str, options: object) -> tuple[str, ...]:
    """Return the texts in a URL and in the options of its file system that must not be shown."""
    found = set(_texts(options))
    parts = _parts_of(url)
    found.update(value for _, value in parse_qsl(parts.query))
    password = parts.user.partition(":")[2]
    found.update((password, unquote(password)))
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
    """Return a URL without what changes from one signature of the same object to the next.

    It names what is kept of an object, and may hold secrets: for digests, never to be shown.
    """
    parts = _parts_of(url)
    if parts.scheme not in _HTTP:
        # A container of Azure stands where others have a user; a query is part of the key.
        user = parts.user.partition(":")[0]
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{user}{'@' if user else ''}{parts.host}{parts.path}{query}"
    pairs = [
        (unquote_plus(pair.partition("=")[0]).lower(), pair)
        for pair in filter(None, parts.query.split("&"))
    ]
    names = {name for name, _ in pairs}
    signing = {name for marks, of_scheme in _SIGNED if marks <= names for name in of_scheme}
    query = "&".join(pair for name, pair in pairs if name not in signing)
    return f"{parts.scheme}://{parts.host}{parts.path}{'?' if query else ''}{query}"


def _split(url: str) -> tuple[str, str]:
    """Return what precedes the query, and the query with its question mark.

    Only http has one for sure; in the key of an object a question mark is a letter like others.
    """
    if scheme_of(url) not in _HTTP:
        return url, ""
    path, mark, query = url.partition("#")[0].partition("?")
    return path, mark + query
