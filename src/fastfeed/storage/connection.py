"""The file systems of fsspec, one for each place and process: the door to that library.

An event loop has a thread, and a fork has not. So nothing that a process made is used by another:
a file system is built when a process first needs it, past fsspec's own cache of instances, and a
forked child keeps its parent's alone, neither using nor closing it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from fastfeed.errors import OptionError
from fastfeed.storage.faults import fault_of
from fastfeed.storage.urls import scheme_of, secrets_in, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")

# Scheme -> the extra of this package that brings what it needs.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az"}
_EXTRAS.update({"abfss": "az", "http": "http", "https": "http", "hf": "hf"})
# These name this machine, or wrap another URL; shards are read where they lie.
_REFUSED = frozenset(("local", "pipe", "data", "simplecache", "filecache", "blockcache", "cached"))
_CONNECTIONS = 100
"""To one server; as many as aiohttp allows by itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which file system: a scheme, and the options that fsspec takes for it."""

    scheme: str
    options: Mapping[str, Any] = field(repr=False)
    """Compared, and never shown: credentials are among them."""

    def __hash__(self) -> int:
        return hash((self.scheme, *sorted(self.options)))


def locate(url: str, options: Mapping[str, Any] | None) -> tuple[Place, str]:
    """Return the place of a URL and the path there; OptionError if there is no such place."""
    _mend_forks()
    scheme = scheme_of(url) or ""
    try:
        kind = _class_of(scheme)
    except ImportError as error:
        raise OptionError(
            f"{shown(url)!r}: reading {scheme}:// needs a package that is not there: {error}",
            way_out=_install(scheme),
        ) from error
    except ValueError as error:
        raise OptionError(
            f"{shown(url)!r}: {scheme}:// is no storage that fsspec knows",
            way_out="Write a path or a URL of s3, gs, az, https, hf or file",
        ) from error
    try:
        own = {} if scheme in {"http", "https"} else kind._get_kwargs_from_urls(url)  # noqa: SLF001
        path = kind._strip_protocol(url)  # noqa: SLF001 - how fsspec's own front splits a URL
    except Exception as error:  # noqa: BLE001 - each library has its own
        fact = fault_of(error, secrets=secrets_in(url, options)).fact
    else:
        return Place(scheme, {**own, **(options or {})}), path
    raise OptionError(
        f"{shown(url)!r} is no URL that the file system of {scheme}:// takes: {fact}",
        way_out="Check its host and its path",
    )


def _class_of(scheme: str) -> Any:
    """Return fsspec's class for a scheme; ValueError if there is none, ImportError if not here."""
    import fsspec  # slow to import, and of no use to who reads local files

    if scheme in _REFUSED:
        raise ValueError(f"{scheme}:// names no storage of shards")
    return fsspec.get_filesystem_class(scheme)


def _install(scheme: str) -> str:
    extra = _EXTRAS.get(scheme)
    return f"pip install 'fastfeed[{extra}]'" if extra else "Install the package that it names"


class Connection:
    """The file system of one place in one process; threads share it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.secrets = secrets_in("", dict(place.options))
        """Texts that no message may hold."""
        self.filesystem: Any = self._build()
        """fsspec's object; replaced when its credentials have expired."""

    def renew(self, worn: object) -> None:
        """Build the file system anew, unless another thread did so since `worn` was in use."""
        if self.filesystem is worn:
            self.filesystem = self._build()

    def call(self, name: str, *arguments: Any, seconds: float, **keywords: Any) -> Any:
        """Call a method of the file system, for at most so many seconds where it is async.

        Any other waits as its library does. A thread that could be left behind would be one for
        each request, and libraries keep connections, or files, for each thread.
        """
        filesystem = self.filesystem
        if getattr(filesystem, "async_impl", False):
            method = getattr(filesystem, f"_{name}")
            return self.wait(lambda: method(*arguments, **keywords), seconds=seconds)
        try:
            return getattr(filesystem, name)(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - each library has its own
            fault = fault_of(error, secrets=self.secrets)
        raise fault

    def wait(self, ask: Callable[[], Awaitable[T]], *, seconds: float) -> T:
        """Run a coroutine on the loop of the file system and return its result.

        Its exceptions become a `Fault`, raised apart from them: what they hold may be secret.
        """
        from fsspec.asyn import sync

        try:
            result: T = sync(self.filesystem.loop, ask, timeout=seconds)
        except Exception as error:  # noqa: BLE001 - each library has its own
            fault = fault_of(error, secrets=self.secrets)
        else:
            return result
        raise fault

    def _build(self) -> Any:
        options = dict(self._place.options)
        try:
            kind = _class_of(self._place.scheme)
            if has_s3_calls(kind):
                # Attempts are counted and paced in one place, `persist`; and a batch has many
                # requests, of which botocore would let ten go at a time.
                own = {"retries": {"max_attempts": 0}, "max_pool_connections": _CONNECTIONS}
                options["config_kwargs"] = {**own, **options.get("config_kwargs", {})}
            built = kind(**options, skip_instance_cache=True)
            if has_s3_calls(kind):
                built.retries = 1
        except Exception as error:  # noqa: BLE001 - each library has its own
            fact = fault_of(error, secrets=self.secrets).fact
        else:
            return built
        raise OptionError(
            f"the file system of {self._place.scheme}:// cannot be set up: {fact}",
            way_out="Check storage_options and the credentials",
        )


def has_s3_calls(filesystem: object) -> bool:
    """Say whether a file system, or its class, is s3fs' own, which takes single S3 requests."""
    return hasattr(filesystem, "_call_s3")


@cache
def _mend_forks() -> None:
    import fsspec.asyn

    # fsspec forgets its loop in a child, but not the lock around it, which may have been held.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)


@cache
def _connection(_process: int, place: Place) -> Connection:
    # A child keeps its parent's connections here. To drop them would close sockets and take
    # descriptors from a poll that both processes share.
    return Connection(place)


def connect(place: Place) -> Connection:
    """Return the connection of this process to a place."""
    return _connection(os.getpid(), place)
