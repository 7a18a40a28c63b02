"""Data sets elsewhere: manifests, and indexes that are fetched or made once."""

from __future__ import annotations

import numpy as np
import pytest

from fastfeed.errors import (
    ChecksumError,
    IndexMismatchError,
    OptionError,
    ShardError,
    StorageError,
    TarError,
)
from fastfeed.reading.indexing import find_index
from fastfeed.reading.read import read
from fastfeed.reading.shards import ShardSet
from fastfeed.reading.sources import list_shards
from fastfeed.shardfile.index import load_index
from fastfeed.storage.open import open_storage


@pytest.fixture
def train(server, data_set):
    """The URL of the folder of a data set."""
    for name, content in data_set.items():
        server.put(f"train/{name}", content)
    return server.url("train")


@pytest.fixture
def cache(tmp_path):
    """A cache folder that is not there yet."""
    return tmp_path / "deep" / "cache"


def texts(shards, indices=range(10)):
    records = read(
        shards,
        np.fromiter(indices, np.int64),
        fields=("txt",),
        allocate=lambda size: np.empty(size, np.uint8),
        verify=True,
    )
    return [bytes(records.data(i, 0)).decode() for i in range(len(indices))]


RIGHT = [f"{shard},{row},txt" for shard in range(2) for row in range(5)]


def test_c28_the_first_batch_takes_three_round_trips(server, train, cache):
    """Manifest, then index and facts at once, then data; later starts validate and read."""
    shards = ShardSet(train, cache=cache)
    assert [request.path for request in server.requests] == ["/train/dataset.json"]
    server.requests.clear()
    assert texts(shards, range(3)) == RIGHT[:3]
    paths = sorted(request.path for request in server.requests)
    assert paths == ["/train/s-000.ffx", "/train/s-000.tar", "/train/s-000.tar"]
    server.requests.clear()
    assert texts(shards, range(3)) == RIGHT[:3]
    assert len(server.requests) == 1, "what is open is asked for its bytes alone"
    server.requests.clear()
    again = ShardSet(train, cache=cache)
    assert texts(again, range(3)) == RIGHT[:3]
    assert server.count("ffx") == 0
    assert len(server.requests) == 3, "the manifest, one validation, the bytes"


@pytest.mark.parametrize("with_cache", [True, False])
def test_all_of_a_remote_data_set(server, train, cache, with_cache):
    """Every sample is right, with a cache folder and without."""
    shards = ShardSet(train, cache=cache if with_cache else None)
    assert texts(shards) == RIGHT
    assert shards.key(1, 2) == "k1/0002"
    assert not cache.exists() or len(list(cache.iterdir())) == 2


def test_shards_without_index(server, cache, data_set):
    """They are indexed by reading their headers, once; nothing is written to the server."""
    for name, content in data_set.items():
        if name.endswith(".tar"):
            server.put(f"x/{name}", content)
    source = server.url("x/s-{000..001}.tar")
    assert texts(ShardSet(source, cache=cache)) == RIGHT
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(kept) == 2
    server.requests.clear()
    assert len(ShardSet(source, cache=cache)) == 10
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == kept
    assert [r.path for r in server.requests if r.path.endswith("tar")] == [
        "/x/s-000.tar",
        "/x/s-001.tar",
    ]
    assert {request.method for request in server.requests} == {"GET"}


def test_indexes_that_we_may_not_see(server, cache, data_set):
    """Where a missing object is answered by 403, manifest and index count as not there."""
    server.put("x/s-000.tar", data_set["s-000.tar"])
    server.fail("status", status=403, only="ffx")
    server.fail("status", status=403, only="json")
    assert texts(ShardSet(server.url("x/s-000.tar"), cache=cache), range(5)) == RIGHT[:5]


def test_a_shard_that_changed_is_another_shard(server, cache, shard_of):
    """A new tag means a new index, and the index of the old shard is not used for it."""
    shard_bytes, index_bytes = shard_of
    for samples in (5, 6, 4):
        content = shard_bytes(0, samples)
        server.put("x/s.tar", content)
        server.put("x/s.ffx", index_bytes(content))
        assert len(ShardSet(server.url("x/s.tar"), cache=cache)) == samples
    assert len(list(cache.iterdir())) == 3


def test_signed_urls_share_an_index(server, cache, data_set):
    """A signature that changes from run to run is no part of the index's name; nor is it shown."""
    server.put("x/s-000.tar", data_set["s-000.tar"])
    for signature in ("one", "two"):
        url = server.url(f"x/s-000.tar?X-Amz-Signature={signature}&v=1")
        assert len(ShardSet(url, cache=cache)) == 5
        assert server.requests[-1].path.endswith(f"Signature={signature}&v=1")
    assert len(list(cache.iterdir())) == 1
    assert len(ShardSet(server.url("x/s-000.tar?v=2"), cache=cache)) == 5
    assert len(list(cache.iterdir())) == 2


def test_storage_without_tags(server, cache, data_set):
    """Where nothing tells versions apart no index is kept, and shards are read all the same."""
    server.put("x/s-000.tar", data_set["s-000.tar"])
    server.fail("no tag")
    assert texts(ShardSet(server.url("x/s-000.tar"), cache=cache), range(5)) == RIGHT[:5]
    assert not cache.exists()


@pytest.mark.parametrize("checksums", [True, False])
def test_an_index_of_another_shard(server, cache, shard_of, checksums):
    """An index of another size, or one whose last member is not there, is refused and not kept."""
    shard_bytes, index_bytes = shard_of
    content = shard_bytes(0, 2)
    server.put("x/s.tar", content + bytes(10240) * checksums)
    server.put("x/s.ffx", index_bytes(shard_bytes(0, 3), checksums=checksums))
    with pytest.raises(IndexMismatchError, match="fastfeed-shard index") as caught:
        ShardSet(server.url("x/s.tar"), cache=cache)
    assert caught.value.shard == server.url("x/s.tar")
    assert not cache.exists()


def test_an_index_with_checksums_proves_itself_by_them(server, cache, shard_of):
    """An index of another shard of the same size is found by the first field that is read."""
    shard_bytes, index_bytes = shard_of
    server.put("x/s.tar", shard_bytes(1, 3))
    server.put("x/s.ffx", index_bytes(shard_bytes(0, 3)))
    shards = ShardSet(server.url("x/s.tar"), cache=cache)
    with pytest.raises(ChecksumError):
        texts(shards, range(3))


@pytest.mark.parametrize("content", [b"<html>sorry, not found</html>", b"", b"\x93NUMPY"])
def test_c23_a_page_is_no_index(server, cache, data_set, content):
    """What a server sends in place of an index is an error that names its URL, and is not kept."""
    server.put("x/s-000.tar", data_set["s-000.tar"])
    server.put("x/s-000.ffx", content)
    with pytest.raises(IndexMismatchError, match=r"http://.*s-000\.ffx.*damaged"):
        ShardSet(server.url("x/s-000.tar"), cache=cache)
    assert not cache.exists()


def test_a_damaged_cache(server, train, cache):
    """An index that was damaged in the cache is fetched again."""
    assert texts(ShardSet(train, cache=cache)) == RIGHT
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-10])
    assert texts(ShardSet(train, cache=cache)) == RIGHT
    for path in cache.iterdir():
        assert len(load_index(path, verify=True)) == 5


def test_c01_a_cut_remote_shard(server, cache, data_set):
    """A shard that is cut is an error where it is walked, and leaves no index."""
    server.put("x/s.tar", data_set["s-000.tar"][:3000])
    with pytest.raises(TarError):
        ShardSet(server.url("x/s.tar"), cache=cache)
    assert not cache.exists()


def test_manifests_elsewhere(server, train, cache):
    """A damaged or missing manifest, and a missing part of one, are told apart."""
    with pytest.raises(OptionError, match=r"no dataset\.json.*name the shards"):
        ShardSet(server.url("elsewhere"), cache=cache)
    server.put("train/dataset.json", b"{")
    with pytest.raises(ShardError, match="damaged"):
        ShardSet(train, cache=cache)
    server.put(
        "train/dataset.json",
        b'{"format": "fastfeed", "version": 1, "samples": 0, "fields": {}, "chunks": ["c.json"]}',
    )
    with pytest.raises(ShardError, match=r"c\.json.*missing"):
        ShardSet(train, cache=cache)
    server.fail("status", status=401, only="json", times=1)
    with pytest.raises(OptionError, match="not for us to read"):
        ShardSet(train, cache=cache)


def test_names_in_urls(server, train):
    """Names from a manifest become URLs, quoted as http wants; a query signs them all."""
    listing = list_shards(f"{train}?sig=abcd")
    assert listing.paths[1] == f"{train}/s-001.tar?sig=abcd"
    assert listing.entries[1].name == "s-001.tar"
    with pytest.raises(OptionError) as caught:
        list_shards(server.url("elsewhere?sig=abcd"))
    assert "abcd" not in str(caught.value)


def test_options_are_passed_along(server, train, cache):
    """The options of the file system reach manifests, indexes and shards."""
    server.need["X-Token"] = "sesame"
    options = {"headers": {"X-Token": "sesame"}}
    with pytest.raises(OptionError):
        list_shards(train)
    name = list_shards(train, storage_options=options).paths[0]
    with open_storage(name, storage_options=options) as storage:
        index = find_index(name, storage, cache=cache, storage_options=options)
        assert len(index) == 5
    with pytest.raises(StorageError, match="403"):
        open_storage(name).read_at(0, 1)


def test_memory(data_set, cache):
    """The file system in memory that fsspec has serves shards like any other."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, content in data_set.items():
        memory.pipe(f"/train/{name}", content)
    try:
        assert texts(ShardSet("memory://train", cache=cache)) == RIGHT
        assert len(list(cache.iterdir())) == 2
    finally:
        memory.rm("/train", recursive=True)
