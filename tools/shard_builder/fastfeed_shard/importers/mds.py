"""MosaicML's MDS shards: their index, their samples, and the values in them.

A shard is read whole, checked against its size and its digests, and cut by the offsets at its
begin. Columns of pickles are refused: nothing in a shard is code.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import xxhash

from fastfeed.errors import ChecksumError, FastfeedError, OptionError, ShardError, StorageError
from fastfeed.shardfile.names import is_contained
from fastfeed.storage.open import open_storage
from fastfeed_shard.importers.mdsvalues import decoder_of
from fastfeed_shard.importers.rows import Row
from fastfeed_shard.importers.whole import join, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    Column = tuple[str, int | None, Callable[[bytes], Any]]

INDEX_NAME = "index.json"
# Offsets have 32 bits, so no shard is larger.
_LIMIT = 1 << 32
_MENDED = "Copy the shard again"


@dataclass(frozen=True, slots=True)
class _File:
    """What the index says of one file of a shard."""

    path: str
    nbytes: int
    hashes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard: its file, plain or compressed or both, and how its samples are laid out."""

    raw: _File
    compressed: _File | None
    compression: str
    samples: int
    columns: tuple[Column, ...]


class MdsImporter:
    """Rows of the shards that an `index.json` lists."""

    def __init__(self, folder: str) -> None:
        document = read_json(join(folder, INDEX_NAME))
        self._shards: list[_Shard] = []
        try:
            if document["version"] != 2:
                raise OptionError(f"{folder!r}: version {document['version']!r} is not known")
            self._shards += (_shard(folder, shard) for shard in document["shards"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FastfeedError):
                raise
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ShardError(
                f"{INDEX_NAME!r} of {folder!r} is damaged: {why}", way_out="Copy or write it again"
            ) from error
        self.files = tuple((shard.compressed or shard.raw).path for shard in self._shards)
        self.classes: Mapping[str, Sequence[str]] = {}

    def rows(self) -> Generator[Row]:
        """Yield the rows."""
        for shard in self._shards:
            path = shard.raw.path
            body = _body(shard)
            for number, data in enumerate(_samples(shard, body)):
                where = f"{path!r}, sample {number:,}"
                try:
                    yield Row(where, _values(shard.columns, data))
                except FastfeedError as error:
                    error.fact = f"{where}: {error.fact}"
                    raise
                except (ValueError, struct.error, KeyError, IndexError) as error:
                    raise ShardError(f"{where}: {error}", way_out=_MENDED) from error


def _shard(folder: str, entry: Mapping[str, Any]) -> _Shard:
    """Return one entry of the index, checked."""
    if (entry["format"], entry["version"]) != ("mds", 2):
        raise OptionError(
            f"{folder!r} has shards of the format {entry['format']!r}, not MDS",
            way_out="Convert those with streaming's own tools",
        )
    columns: list[Column] = []
    for name, encoding, size in zip(
        entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True
    ):
        fixed = None if size is None else int(size)
        columns.append((str(name), fixed, decoder_of(str(encoding), column=str(name))))
    packed = entry.get("zip_data")
    return _Shard(
        _file(folder, entry["raw_data"]),
        _file(folder, packed) if packed else None,
        str(entry.get("compression") or "").partition(":")[0],
        int(entry["samples"]),
        tuple(columns),
    )


def _file(folder: str, entry: Mapping[str, Any]) -> _File:
    name, nbytes = entry["basename"], int(entry["bytes"])
    if not is_contained(name):
        raise ShardError(f"the index of {folder!r} names {name!r}, outside of its folder")
    if not 0 <= nbytes < _LIMIT:
        raise ShardError(f"the index of {folder!r} says that {name!r} has {nbytes:,} bytes")
    return _File(join(folder, name), nbytes, dict(entry.get("hashes") or {}))


def _body(shard: _Shard) -> bytes:
    """Return the plain bytes of a shard, whichever of its files is there."""
    if shard.compressed is None:
        return _read(shard.raw)
    try:
        packed = _read(shard.compressed)
    except StorageError as error:
        try:
            return _read(shard.raw)
        except StorageError:
            raise error from None
    body = _decompress(packed, shard)
    _check(shard.raw, body)
    return body


def _read(file: _File) -> bytes:
    with open_storage(file.path) as storage:
        if storage.size != file.nbytes:
            raise ShardError(
                f"{file.path!r} has {storage.size:,} bytes, not {file.nbytes:,} as its index says",
                way_out=_MENDED,
            )
        data = storage.read_at(0, file.nbytes)
    _check(file, data)
    return data


def _check(file: _File, data: bytes) -> None:
    """Compare size and digests with what the index says; digests of unknown kinds are passed."""
    if len(data) != file.nbytes:
        raise ShardError(
            f"{file.path!r} became {len(data):,} bytes, not {file.nbytes:,} as its index says",
            way_out=_MENDED,
        )
    for kind, wanted in file.hashes.items():
        if kind in xxhash.algorithms_available:
            found = getattr(xxhash, kind)(data).hexdigest()
        elif kind in hashlib.algorithms_guaranteed and not kind.startswith("shake"):
            found = hashlib.new(kind, data, usedforsecurity=False).hexdigest()
        else:
            continue
        if found != wanted:
            raise ChecksumError(
                f"{file.path!r}: its {kind} is not the one of the index", way_out=_MENDED
            )


def _decompress(packed: bytes, shard: _Shard) -> bytes:
    """Return what a compressed shard becomes, at most one byte more than its index says."""
    limit = shard.raw.nbytes + 1
    try:
        if shard.compression == "zstd":
            import zstandard

            reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
            with reader:
                return bytes(reader.read(limit))
        if shard.compression == "gz":
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
                return file.read(limit)
        if shard.compression == "bz2":
            with bz2.BZ2File(io.BytesIO(packed)) as file:
                return file.read(limit)
    except Exception as error:
        fact = f"{shard.raw.path!r} cannot be decompressed: {error}"
        raise ShardError(fact, way_out=_MENDED) from error
    raise OptionError(
        f"{shard.raw.path!r} is compressed with {shard.compression!r}, which is not read here",
        way_out="Decompress the shards, or write them with zstd",
    )


def _samples(shard: _Shard, body: bytes) -> Iterator[bytes]:
    """Yield the bytes of each sample."""
    path = shard.raw.path
    count = int.from_bytes(body[:4], "little")
    begin = 4 + 4 * (count + 1)
    if count != shard.samples or begin > len(body):
        raise ShardError(
            f"{path!r} says that it holds {count:,} samples, its index {shard.samples:,}",
            way_out=_MENDED,
        )
    offsets = struct.unpack_from(f"<{count + 1}I", body, 4)
    if offsets[0] < begin or offsets[-1] != len(body):
        raise ShardError(f"the offsets in {path!r} do not fit its size", way_out=_MENDED)
    for start, stop in pairwise(offsets):
        if stop < start:
            raise ShardError(f"the offsets in {path!r} do not rise", way_out=_MENDED)
        yield body[start:stop]


def _values(columns: Sequence[Column], data: bytes) -> dict[str, Any]:
    """Cut a sample into its columns and decode each."""
    variable = sum(not size for _, size, _ in columns)
    sizes = iter(struct.unpack_from(f"<{variable}I", data))
    position = 4 * variable
    values: dict[str, Any] = {}
    for name, fixed, decode in columns:
        size = fixed or next(sizes)
        piece = data[position : position + size]
        if len(piece) != size:
            raise ShardError(f"the column {name!r} goes beyond its sample", way_out=_MENDED)
        values[name] = decode(piece)
        position += size
    if position != len(data):
        raise ShardError("the sample is longer than its columns", way_out=_MENDED)
    return values
