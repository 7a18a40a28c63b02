"""TFRecord files of `tf.train.Example`: the framing with its checksums, then a row a record."""

from __future__ import annotations

import gzip
import io
import zlib
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastfeed.errors import ChecksumError, OptionError, ShardError
from fastfeed_shard.importers.example import parse_example
from fastfeed_shard.importers.kinds import kind_of
from fastfeed_shard.importers.rows import PIECE, Row, StorageFile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    Values = dict[str, list[Any]]

# Protocol buffers end at 2 GiB.
_LIMIT = 2 << 30
# Records that are looked at to tell single values from lists.
_LOOKED_AT = 1000
_MENDED = "Copy the file again, or take it out of the source"


class TfrecordImporter:
    """Rows of TFRecord files, one file after the other; those packed with gzip are seen as such.

    A feature that has one value in each of the first records is a value of its own, any other one
    a list.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.files = tuple(files)
        self.classes: Mapping[str, Sequence[str]] = {}
        self._lists: set[str] = set()
        with closing(self._examples()) as examples:
            for _, values in islice(examples, _LOOKED_AT):
                self._lists.update(name for name, found in values.items() if len(found) > 1)

    def rows(self) -> Generator[Row]:
        """Yield the rows."""
        for where, values in self._examples():
            yield Row(
                where,
                {name: _value(found, name in self._lists) for name, found in values.items()},
            )

    def _examples(self) -> Generator[tuple[str, Values]]:
        for path in self.files:
            for number, record in enumerate(read_records(path)):
                where = f"{path!r}, record {number:,}"
                try:
                    values = parse_example(record)
                except (ValueError, IndexError) as error:
                    raise ShardError(
                        f"{where} is no tf.train.Example: {error}",
                        way_out="Other messages are not read here",
                    ) from error
                yield where, values


def read_records(path: str) -> Iterator[bytes]:
    """Yield the records of a file; ShardError if it is cut or damaged."""
    checksum = _checksum()
    with StorageFile(path) as storage, io.BufferedReader(storage, PIECE) as raw:
        start, limit = raw.peek(12)[:12], min(storage.size, _LIMIT)
        file: io.BufferedIOBase = raw
        if start[:2] == b"\x1f\x8b" and not _is_frame(start, checksum):
            file, limit = gzip.GzipFile(fileobj=raw), _LIMIT
        number = 0
        try:
            while head := file.read(12):
                where = f"{path!r}, record {number:,}"
                yield _record(file, head, where, checksum=checksum, limit=limit)
                number += 1
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ShardError(f"{path!r}: {error}", way_out=_MENDED) from error


def _record(
    file: io.BufferedIOBase,
    head: bytes,
    where: str,
    *,
    checksum: Callable[[bytes], int],
    limit: int,
) -> bytes:
    """Return the data of the record that begins with `head`."""
    if len(head) < 12:
        raise ShardError(f"{where}: the file is cut in a length", way_out=_MENDED)
    if not _is_frame(head, checksum):
        raise ChecksumError(f"{where}: the checksum of its length is wrong", way_out=_MENDED)
    length = int.from_bytes(head[:8], "little")
    # Compared before anything is allocated.
    data, foot = (file.read(length), file.read(4)) if length <= limit else (b"", b"")
    if len(data) < length or len(foot) < 4:
        raise ShardError(f"{where}: the file is cut in its data", way_out=_MENDED)
    if checksum(data) != int.from_bytes(foot, "little"):
        raise ChecksumError(f"{where}: the checksum of its data is wrong", way_out=_MENDED)
    return data


def _is_frame(head: bytes, checksum: Callable[[bytes], int]) -> bool:
    return checksum(head[:8]) == int.from_bytes(head[8:12], "little")


def _checksum() -> Callable[[bytes], int]:
    """Return the function for checksums of this format: CRC-32C, turned and moved."""
    try:
        from google_crc32c import value
    except ImportError as error:
        raise OptionError(
            "reading TFRecord takes google-crc32c, which is not installed",
            way_out="pip install 'fastfeed[tfrecord]'",
        ) from error

    def checksum(data: bytes) -> int:
        crc = int(value(data))
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    return checksum


def _value(found: list[Any], is_list: bool) -> Any:  # noqa: FBT001 - one argument, by its name
    """Return a feature's values as a row has them; bytes that are text as text."""
    if not found:
        return None
    if isinstance(found[0], bytes):
        texts = [_text(one) for one in found]
        found = texts if all(isinstance(one, str) for one in texts) else found
    return found if is_list or len(found) > 1 else found[0]


def _text(data: bytes) -> str | bytes:
    if kind_of(data) != "bin" or b"\0" in data:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
