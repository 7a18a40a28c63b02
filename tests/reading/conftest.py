"""Data sets of shards on disk, small enough to be made for each test."""

from __future__ import annotations

import io
import tarfile
from collections import Counter

import numpy as np
import pytest
import xxhash

from fastfeed.reading.read import read
from fastfeed.shardfile.index import group, save_index
from fastfeed.shardfile.manifest import Manifest, ShardEntry, save_manifest
from fastfeed.shardfile.names import index_name
from fastfeed.shardfile.tar import walk


class Folder:
    """A folder of shards; every field of sample i of shard s says so."""

    def __init__(self, path):
        self.path = path

    def shard(self, number, samples=5, *, fields=("cls", "jpg"), format=tarfile.USTAR_FORMAT):  # noqa: A002
        """Write one shard and return its path."""
        path = self.path / f"s-{number:03d}.tar"
        with tarfile.open(path, "w", format=format) as tar:
            for i in range(samples):
                for field in fields:
                    content = self.content(number, i, field)
                    info = tarfile.TarInfo(f"k{number}/{i:04d}.{field}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        return path

    @staticmethod
    def content(shard, row, field):
        """Return the bytes of a field."""
        return f"{shard},{row},{field};".encode() * (1 + 40 * row * (field == "jpg"))

    def index(self, path):
        """Write the index of a shard, with checksums, and return it."""
        data = path.read_bytes()
        index = group(
            walk(lambda o, n: data[o : o + n], len(data), shard=str(path)),
            shard=str(path),
            shard_bytes=len(data),
            checksum_of=lambda o, n: xxhash.xxh3_64_intdigest(data[o : o + n]),
        )
        (self.path / index_name(path.name)).write_bytes(save_index(index))
        return index

    def manifest(self, paths, **changes):
        """Write indexes and the manifest of some shards."""
        indexes = [self.index(path) for path in paths]
        entries = [
            ShardEntry(path.name, path.stat().st_size, len(index))
            for path, index in zip(paths, indexes, strict=True)
        ]
        counts = Counter()
        for index in indexes:
            counts.update(index.counts())
        manifest = Manifest(fields=dict(counts), shards=tuple(entries))
        for name, content in save_manifest(manifest).items():
            (self.path / name).write_bytes(content)


@pytest.fixture
def folder(tmp_path):
    """An empty folder for shards."""
    path = tmp_path / "data"
    path.mkdir()
    return Folder(path)


@pytest.fixture
def read_all():
    """Read samples into memory of their own and return their fields as bytes."""

    def read_now(shards, indices, *, fields=("cls", "jpg"), verify=True):
        records = read(
            shards,
            np.asarray(indices, np.int64),
            fields=fields,
            allocate=lambda size: np.empty(size, np.uint8),
            verify=verify,
        )
        found = [[records.data(i, j) for j in range(len(fields))] for i in range(len(indices))]
        return [[None if d is None else bytes(d) for d in row] for row in found]

    return read_now
