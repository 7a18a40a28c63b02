"""The manifest `dataset.json`: which shards make the data set, and what is in them.

It is written last, so a folder with a manifest is complete. Beyond `CHUNK` shards the list moves to
files of its own beside it, so that no document grows without bound. Every name in it must stay in
its own folder.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastfeed.errors import ShardError
from fastfeed.shardfile.names import MANIFEST_NAME, is_contained

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
CHUNK = 100_000
_FORMAT = "fastfeed"
_ENTRY = ("name", "bytes", "samples", "digest", "compression")
_COMPRESSIONS = (None, "zstd", "gzip", "bzip2", "xz")
_DIGEST = re.compile(r"[a-z0-9_]+:[0-9a-f]+")
_WAY_OUT = "Run `fastfeed-shard index` on the shards to write the manifest anew"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest says of one shard."""

    name: str
    """Path of the shard relative to the manifest."""
    bytes: int
    """Bytes of the tar, which is what its index is of."""
    samples: int
    digest: str | None = None
    """`<algorithm>:<hex digits>` of the whole file; the builder writes `xxh3_64`."""
    compression: str | None = None
    """None for a plain tar; `zstd`, or what other tools compressed with."""
    stored_bytes: int | None = None
    """Bytes of the file of a compressed shard, None for a plain one."""
    frame_bytes: int | None = None
    """Bytes of the tar in the largest frame of a zstd shard, None where that is not known."""

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.bytes if self.stored_bytes is None else self.stored_bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A data set: its shards in order, and for each field how many samples have it."""

    fields: dict[str, int]
    shards: tuple[ShardEntry, ...]
    version: int = VERSION

    @property
    def samples(self) -> int:
        """Number of samples of all shards."""
        return sum(shard.samples for shard in self.shards)


def save_manifest(manifest: Manifest, *, chunk: int = CHUNK) -> dict[str, bytes]:
    """Return file name -> content, in the order in which to write them: `dataset.json` last."""
    shards = [_line(shard) for shard in manifest.shards]
    files: dict[str, bytes] = {}
    document: dict[str, Any] = {
        "format": _FORMAT,
        "version": manifest.version,
        "samples": manifest.samples,
        "fields": manifest.fields,
    }
    if len(shards) <= chunk:
        document["shards"] = shards
    else:
        for start in range(0, len(shards), chunk):
            name = f"dataset-{start // chunk:06d}.json"
            files[name] = _lines({"format": _FORMAT, "shards": shards[start : start + chunk]})
        document["chunks"] = list(files)
    return {**files, MANIFEST_NAME: _lines(document)}


def _line(shard: ShardEntry) -> dict[str, Any]:
    line = {name: getattr(shard, name) for name in _ENTRY}
    if shard.compression is not None:
        line["stored_bytes"] = shard.stored_bytes
    if shard.frame_bytes is not None:
        line["frame_bytes"] = shard.frame_bytes
    return line


def _lines(document: dict[str, Any]) -> bytes:
    """Return JSON with one shard a line, so that a difference of two manifests can be read."""
    rest = {key: value for key, value in document.items() if key != "shards"}
    text = json.dumps(rest, indent=1, ensure_ascii=True)
    if "shards" in document:
        lines = ",\n  ".join(json.dumps(shard) for shard in document["shards"])
        text = text.removesuffix("\n}") + f',\n "shards": [\n  {lines}\n ]\n}}'
    return f"{text}\n".encode()


def load_manifest(read: Callable[[str], bytes], *, shard: str = MANIFEST_NAME) -> Manifest:
    """Return the manifest whose files `read(name)` returns; `shard` names it in errors.

    Raises ShardError if a document is damaged, of a newer version, or names files outside its
    own folder.
    """
    try:
        document = _document(read(MANIFEST_NAME))
        if document["version"] != VERSION:
            raise ShardError(
                f"the manifest has version {document['version']!r}, not {VERSION}",
                way_out="Upgrade fastfeed",
                shard=shard,
            )
        manifest = Manifest(
            fields={str(name): _count(count) for name, count in document["fields"].items()},
            shards=tuple(_entry(entry) for entry in _entries(document, read)),
        )
        _require(manifest.samples == document["samples"], "the samples do not add up")
        names = {entry.name for entry in manifest.shards}
        _require(len(names) == len(manifest.shards), "a shard is listed twice")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ShardError(
            f"the manifest is damaged: {type(error).__name__}: {error}",
            way_out=_WAY_OUT,
            shard=shard,
        ) from error
    return manifest


def _document(content: bytes) -> dict[str, Any]:
    document = json.loads(content)
    _require(isinstance(document, dict), "it is no JSON object")
    _require(document.get("format") == _FORMAT, f"its format is not {_FORMAT!r}")
    return dict(document)


def _entries(document: dict[str, Any], read: Callable[[str], bytes]) -> list[dict[str, Any]]:
    if "shards" in document:
        return list(document["shards"])
    entries: list[dict[str, Any]] = []
    for name in document["chunks"]:
        _require(isinstance(name, str) and is_contained(name), f"{name!r} is outside")
        entries += _document(read(name))["shards"]
    return entries


def _entry(entry: dict[str, Any]) -> ShardEntry:
    name, digest, compression = entry["name"], entry.get("digest"), entry.get("compression")
    _require(isinstance(name, str) and is_contained(name), f"{name!r} is outside its folder")
    _require(digest is None or _DIGEST.fullmatch(digest), f"{digest!r} is no digest")
    if compression not in _COMPRESSIONS:
        raise ShardError(
            f"the shard is compressed with {compression!r}, which this version does not read",
            way_out="Build the data set as plain tar shards, or upgrade fastfeed",
            shard=name,
        )
    stored = None if compression is None else _count(entry["stored_bytes"])
    nbytes, samples = _count(entry["bytes"]), _count(entry["samples"])
    frame = entry.get("frame_bytes") if compression == "zstd" else None
    frame = None if frame is None else _count(frame)
    return ShardEntry(name, nbytes, samples, digest, compression, stored, frame)


def _count(value: object) -> int:
    # A boolean is an int to Python, but no count.
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no count")
    return value


def _require(truth: object, fact: str) -> None:
    if not truth:
        raise ValueError(fact)
