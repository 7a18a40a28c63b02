"""A folder of remote storage that a data set is written to: what is there, put, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastfeed.errors import OptionError, StorageError
from fastfeed.storage.connection import connect, locate
from fastfeed.storage.faults import Fault
from fastfeed.storage.open import read_whole
from fastfeed.storage.patience import GaveUp, Patience, persist
from fastfeed.storage.urls import join, scheme_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_DOCUMENT_LIMIT = 1 << 30


class Bucket:
    """The objects below one URL, by their names relative to it.

    An object is there whole or not at all, whatever ends the process: that is what object stores
    promise, and what all of this relies on.
    """

    def __init__(self, url: str, *, patience: Patience | None = None) -> None:
        if scheme_of(url) in {"http", "https"}:
            raise OptionError(
                f"{shown(url)!r} cannot be written to",
                way_out="Name a bucket (s3://, gs://, az://) or a folder",
            )
        self.url = url.rstrip("/")
        self._patience = patience or Patience()
        self._place, self._path = locate(self.url, None)

    def names(self) -> dict[str, int]:
        """Return the name and the size of every object."""
        connect(self._place).filesystem.invalidate_cache()
        try:
            found = self._try(
                lambda seconds: self._call("find", self._path, seconds=seconds, detail=True)
            )
        except GaveUp as error:
            if error.fault.kind == "missing":
                return {}
            raise self._failed("list", "", error) from None
        begin = len(self._path.rstrip("/")) + 1
        sizes = {path[begin:]: int(about["size"] or 0) for path, about in found.items()}
        # Some tools mark a folder by an object without a name of its own.
        return {name: size for name, size in sizes.items() if name and not name.endswith("/")}

    def put(self, path: Path, name: str) -> None:
        """Send a file, in parts if it is large; StorageError unless it has arrived whole."""
        size, target = path.stat().st_size, self._target(name)

        def send(seconds: float) -> None:
            self._call("put_file", str(path), target, seconds=seconds)
            arrived = self._call("info", target, seconds=seconds)["size"]
            if arrived != size:
                raise Fault("broken", f"{arrived:,} of {size:,} bytes have arrived")

        try:
            self._try(send, size=size)
        except GaveUp as error:
            raise self._failed("write", name, error) from None

    def write(self, name: str, data: bytes) -> None:
        """Write a small object."""
        try:
            self._try(
                lambda seconds: self._call("pipe_file", self._target(name), data, seconds=seconds)
            )
        except GaveUp as error:
            raise self._failed("write", name, error) from None

    def read(self, name: str) -> bytes:
        """Return all of a small object."""
        return read_whole(join(self.url, name), limit=_DOCUMENT_LIMIT)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; one that is gone already is fine."""
        for name in names:

            def remove(seconds: float, name: str = name) -> None:
                self._call("rm_file", self._target(name), seconds=seconds)

            try:
                self._try(remove)
            except GaveUp as error:
                if error.fault.kind != "missing":
                    raise self._failed("remove", name, error) from None

    def _target(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _call(self, verb: str, *arguments: Any, seconds: float, **keywords: Any) -> Any:
        # By position, for file systems call these arguments differently.
        return connect(self._place).call(verb, *arguments, seconds=seconds, **keywords)

    def _try(self, work: Callable[[float], Any], *, size: int = 0) -> Any:
        connection = connect(self._place)
        used = connection.filesystem
        return persist(work, self._patience, size=size, renew=lambda: connection.renew(used))

    def _failed(self, verb: str, name: str, gave_up: GaveUp) -> StorageError:
        fault = gave_up.fault
        tries = f" (tried {gave_up.attempts} times)" if gave_up.attempts > 1 else ""
        return StorageError(
            f"cannot {verb} {shown(join(self.url, name) if name else self.url)!r}: "
            f"{fault.fact}{tries}",
            way_out="What has arrived stays: mend the cause and go on with --resume",
        )
