"""Every error that fastfeed raises itself, and whose fault each one is.

    FastfeedError
    ├── OptionError         the call: an argument or a combination of arguments (also a ValueError)
    ├── ShardError          the data: a shard, an index or a manifest is damaged, short or hostile
    │   ├── TarError        the tar structure itself, with the offset in the shard
    │   ├── IndexMismatchError  the index does not fit its shard
    │   │   └── IndexDamagedError   the index itself is damaged; no `on_error=` skips it
    │   └── ChecksumError   bytes are there, but not the ones that were written
    ├── SampleError         the data: one sample cannot be used
    │   ├── MissingFieldError   the sample lacks a field that was asked for
    │   ├── DecodeError         the bytes of one field cannot be decoded
    │   └── EmptyBatchError     all samples of a batch were skipped
    ├── StorageError        the machine: a file is missing, unreadable or shorter than it says
    ├── WorkerError         the process: a worker died or failed (also a RuntimeError)
    └── DeviceError         the GPU: no memory, a failed copy or decoder, gone (also a RuntimeError)

A low level states the fact; the level above adds where it happened with `located`. Each message
names the step, the shard, the key and the field as far as they are known, and ends with a way out.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class FastfeedError(Exception):
    """Base of all errors of this library.

    `step`, `shard`, `key`, `field` and `offset` say where; each is None while it is not known.
    """

    step: str | None = None

    def __init__(
        self,
        fact: str,
        *,
        way_out: str | None = None,
        shard: str | None = None,
        key: str | None = None,
        field: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(fact)
        self.fact = fact
        self.way_out = way_out
        self.shard = shard
        self.key = key
        self.field = field
        self.offset = offset

    def __str__(self) -> str:
        places = [
            f"{name} {value!r}" if isinstance(value, str) else f"{name} {value:,}"
            for name, value in (
                ("shard", self.shard),
                ("key", self.key),
                ("field", self.field),
                ("offset", self.offset),
            )
            if value is not None
        ]
        text = self.fact
        if self.step:
            text = f"{self.step}: {text}"
        if places:
            text = f"{text} [{', '.join(places)}]"
        if self.way_out:
            text = f"{text}. {self.way_out}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        """Cross a process boundary whole: keyword arguments and context included."""
        return (_rebuild, (type(self), self.fact, dict(self.__dict__)))


def _rebuild(kind: type[FastfeedError], fact: str, state: dict[str, object]) -> FastfeedError:
    error = kind.__new__(kind, fact)
    Exception.__init__(error, fact)
    error.__dict__.update(state)
    return error


class OptionError(FastfeedError, ValueError):
    """An argument, or a combination of arguments, that cannot be honoured."""


class ShardError(FastfeedError):
    """A shard, its index or its manifest is damaged, short, misordered or hostile."""

    step = "reading"


class TarError(ShardError):
    """The structure of a tar file is broken or not complete; `offset` is where."""


class IndexMismatchError(ShardError):
    """An index is damaged, or does not belong to the shard beside it."""


class IndexDamagedError(IndexMismatchError):
    """An index is damaged: nothing is known of its samples, and it can be made anew."""


class ChecksumError(ShardError):
    """A shard or field holds other bytes than were written."""


class SampleError(FastfeedError):
    """One sample cannot be used. `on_error=` of the dataset decides what follows."""

    step = "decoding"


class MissingFieldError(SampleError):
    """A sample lacks a field that the dataset asks for."""


class DecodeError(SampleError):
    """The bytes of one field cannot be decoded."""


class EmptyBatchError(SampleError):
    """Every sample of a batch was skipped; our loader goes on with the next batch."""


class StorageError(FastfeedError):
    """A file is missing, unreadable or shorter than it should be."""

    step = "storage"


class WorkerError(FastfeedError, RuntimeError):
    """A worker process died or failed; the message names pid, signal and what it worked on."""

    step = "workers"


class DeviceError(FastfeedError, RuntimeError):
    """The GPU has no memory for a batch, failed at a copy or kernel, or is gone."""

    step = "device"


@contextmanager
def located(
    *,
    shard: str | None = None,
    key: str | None = None,
    field: str | None = None,
    offset: int | None = None,
) -> Iterator[None]:
    """Add what this level knows to a fastfeed error on its way up; what is there stays."""
    try:
        yield
    except FastfeedError as error:
        for name, value in (("shard", shard), ("key", key), ("field", field), ("offset", offset)):
            if value is not None and getattr(error, name) is None:
                setattr(error, name, value)
        raise
