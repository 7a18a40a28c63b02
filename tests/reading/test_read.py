"""Reading a batch: the right bytes in one buffer, or an error that says where."""

from __future__ import annotations

import io
import os
import tarfile

import numpy as np
import pytest

from fastfeed.errors import ChecksumError, IndexDamagedError, IndexMismatchError, StorageError
from fastfeed.reading.read import read
from fastfeed.reading.shards import ShardSet
from fastfeed.shardfile.index import save_index
from fastfeed.shardfile.tar import ustar_header


@pytest.fixture
def shards(folder):
    """Three shards of 20 samples."""
    folder.manifest([folder.shard(number, 20) for number in range(3)])
    return ShardSet(folder.path)


class CountedFile:
    """A storage that notes each request."""

    def __init__(self, storage):
        self.storage, self.size, self.requests = storage, storage.size, []

    def read_into(self, offset, buffer):
        self.requests.append((offset, len(buffer)))
        self.storage.read_into(offset, buffer)


def counted(shards, number):
    opened = shards.open(number)
    file = CountedFile(opened.storage)
    object.__setattr__(opened, "storage", file)
    return file


def test_any_batch_has_the_right_bytes(folder, shards, read_all):
    """Samples of any shards in any order, repeated or not, come as they were packed."""
    random = np.random.default_rng(0)
    for _ in range(60):
        indices = random.integers(0, 60, random.integers(0, 40)).tolist()
        right = [
            [folder.content(index // 20, index % 20, field) for field in ("jpg", "cls")]
            for index in indices
        ]
        assert read_all(shards, indices, fields=("jpg", "cls")) == right


def test_sequential_samples_are_one_request(shards, read_all):
    """Neighbours are read at once; samples far apart are not."""
    file = counted(shards, 0)
    read_all(shards, range(20), verify=False)
    assert len(file.requests) == 1


def test_far_samples_are_requests_of_their_own(folder, read_all):
    """What lies between wanted fields is skipped if it is more than a small gap."""
    path = folder.path / "far.tar"
    with tarfile.open(path, "w") as tar:
        for name, size in (("a.cls", 5), ("a.jpg", 100_000), ("b.cls", 6), ("b.jpg", 20_000)):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    shards = ShardSet(path)
    file = counted(shards, 0)
    assert read_all(shards, [0, 1], fields=("cls",)) == [[bytes(5)], [bytes(6)]]
    assert [size for _, size in file.requests] == [5, 6]


def test_one_buffer_of_the_right_size(shards):
    """Memory is asked for once, for all shards of the batch, and filled in place."""
    asked = []

    def allocate(size):
        asked.append(np.full(size, 255, np.uint8))
        return asked[-1]

    records = read(shards, np.arange(60), fields=("jpg",), allocate=allocate, verify=False)
    assert len(asked) == 1
    assert records.buffer is asked[0]
    assert (records.starts + records.sizes).max() <= len(records.buffer)


def test_missing_fields(folder, read_all):
    """A field that a sample, a shard or every shard lacks has size -1 and no data."""
    path = folder.path / "m.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("a.jpg", "b.cls", "b.jpg", "c.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(name[:1].encode()))
    shards = ShardSet(path)
    fields = ("cls", "nowhere", "jpg")
    assert read_all(shards, [0, 1, 2], fields=fields) == [
        [None, None, b"a"], [b"b", None, b"b"], [b"c", None, None],
    ]  # fmt: skip
    assert read_all(shards, [0], fields=("nowhere",)) == [[None]]
    assert read_all(shards, [], fields=fields) == []


def test_empty_fields(folder, read_all):
    """A field of no bytes is there, and empty."""
    path = folder.path / "e.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("a.jpg", "b.jpg"):
            tar.addfile(tarfile.TarInfo(name))
    assert read_all(ShardSet(path), [1, 0], fields=("jpg",)) == [[b""], [b""]]


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_damaged_bytes_are_found_by_their_checksum(folder, shards, read_all):
    """With `verify` the error names shard, key, field and offset; without it nothing is hashed."""
    path = folder.path / "s-001.tar"
    offset = int(shards.index(1).rows["jpg"]["offset"][3])
    flip(path, offset)
    with pytest.raises(ChecksumError) as caught:
        read_all(shards, [2, 23, 50])
    error = caught.value
    assert (error.shard, error.key, error.field, error.offset) == (
        str(path), "k1/0003", "jpg", offset,
    )  # fmt: skip
    assert "verify" in error.way_out
    read_all(shards, [23], verify=False)
    read_all(shards, [23], fields=("cls",))


def test_shards_without_checksums_are_read(folder, read_all):
    """A foreign shard has no checksums to compare with."""
    path = folder.shard(0)
    shards = ShardSet(path)
    flip(path, int(shards.index(0).rows["cls"]["offset"][0]))
    read_all(shards, [0])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", 2**64 - 1),
        ("offset", 10**9),
        ("size", 2**64 - 1),
        ("size", 2**63),
        ("size", 10**6),
    ],
)
def test_an_index_that_points_outside(folder, read_all, column, value):
    """Cells beyond the shard are an error before memory is asked for, whatever their numbers."""
    path = folder.shard(0)
    index = folder.index(path)
    index.rows["jpg"][column][2] = value
    (folder.path / "s-000.ffx").write_bytes(save_index(index))
    shards = ShardSet(path)
    with pytest.raises(IndexMismatchError, match="outside") as caught:
        read_all(shards, [1, 2])
    assert (caught.value.key, caught.value.field) == ("k0/0002", "jpg")
    assert len(read_all(shards, [1])) == 1


def test_rows_of_zeros_are_a_damaged_index(folder, read_all):
    """An index that was cut while it was mapped reads as zeros, which no sample has."""
    path = folder.shard(0)
    index = folder.index(path)
    for field in index.fields:
        index.rows[field][2:4] = 0
    (folder.path / "s-000.ffx").write_bytes(save_index(index))
    shards = ShardSet(path)
    with pytest.raises(IndexDamagedError, match=r"row 2 .* zeros.*fastfeed-shard index"):
        read_all(shards, [1, 2])


def test_a_header_that_points_nowhere_still_gives_an_error(folder, read_all):
    """When even the key cannot be read, the row stands for it."""
    path = folder.shard(0)
    index = folder.index(path)
    for field in index.fields:
        index.rows[field]["header"][2] = 10**12
        index.rows[field]["offset"][2] = 10**12
    (folder.path / "s-000.ffx").write_bytes(save_index(index))
    with pytest.raises(IndexMismatchError) as caught:
        read_all(ShardSet(path), [2])
    assert caught.value.key == "(row 2)"


def test_a_shard_cut_while_it_is_open(folder, shards, read_all):
    """Bytes that vanish under an open shard are a StorageError with the shard's name."""
    shards.open(2)
    os.truncate(folder.path / "s-002.tar", 2000)
    with pytest.raises(StorageError) as caught:
        read_all(shards, [59])
    assert caught.value.shard == str(folder.path / "s-002.tar")


def test_c07_data_beyond_4_gib(folder, read_all):
    """A field behind 4 GiB of another (a sparse file) is read from there."""
    path = folder.path / "big.tar"
    size = 2**32 + 10
    with path.open("wb") as file:
        file.write(ustar_header("a.bin", size))
        file.seek(512 + -(-size // 512) * 512)
        file.write(ustar_header("b.bin", 5) + b"hello" + bytes(507 + 1024))
    shards = ShardSet(path)
    assert int(shards.index(0).rows["bin"]["offset"][1]) > 2**32
    assert read_all(shards, [1], fields=("bin",)) == [[b"hello"]]
