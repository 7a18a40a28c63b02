"""The manifest: what is written is what is read, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import ShardError
from fastfeed.shardfile.manifest import Manifest, ShardEntry, load_manifest, save_manifest

MANIFEST = Manifest(
    fields={"cls": 5, "jpg": 7},
    shards=(ShardEntry("a.tar", 2048, 3, "xxh3_64:00ff"), ShardEntry("d/b.tar", 2**40, 4)),
)


def reload(files, **changes):
    """Read a manifest back, after changing the top of its last document."""
    document = {**json.loads(files["dataset.json"]), **changes}
    return load_manifest({**files, "dataset.json": json.dumps(document).encode()}.__getitem__)


def test_round_trip():
    """Fields, counts, sizes and digests come back, and the text has one shard a line."""
    files = save_manifest(MANIFEST)
    assert list(files) == ["dataset.json"]
    assert load_manifest(files.__getitem__) == MANIFEST
    assert MANIFEST.samples == 7
    assert sum(b".tar" in line for line in files["dataset.json"].splitlines()) == 2
    assert save_manifest(load_manifest(files.__getitem__)) == files


def test_chunks():
    """A long list goes to files of its own, and `dataset.json` comes last."""
    shards = tuple(ShardEntry(f"{i}.tar", i, i) for i in range(25))
    manifest = Manifest(fields={}, shards=shards)
    files = save_manifest(manifest, chunk=10)
    assert list(files) == [*(f"dataset-{i:06d}.json" for i in range(3)), "dataset.json"]
    assert load_manifest(files.__getitem__) == manifest


def test_no_shards():
    """A data set may be empty."""
    manifest = Manifest(fields={}, shards=())
    assert load_manifest(save_manifest(manifest).__getitem__) == manifest


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "../a.tar"}, {"name": "/a.tar"}, {"name": "s3://b/a.tar"}, {"name": ""},
        {"name": 5}, {"bytes": -1}, {"bytes": 2**63}, {"bytes": "5"}, {"samples": 1.5},
        {"samples": True}, {"digest": "sha"}, {"digest": 5}, {"digest": "a:../"},
    ],
)  # fmt: skip
def test_bad_entries(entry):
    """Names that leave the folder, and counts that are none, are refused."""
    good = {"name": "a.tar", "bytes": 1, "samples": 7, "digest": None, "compression": None}
    with pytest.raises(ShardError, match="damaged"):
        reload(save_manifest(MANIFEST), shards=[{**good, **entry}])
    assert len(reload(save_manifest(MANIFEST), shards=[good]).shards) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"}, {"samples": 8}, {"fields": ["jpg"]}, {"fields": {"jpg": -1}},
        {"shards": None}, {"shards": [None]}, {"shards": {}}, {"shards": [{"name": "a.tar"}]},
        {"shards": "abc"},
    ],
)  # fmt: skip
def test_bad_documents(changes):
    """A document of the wrong form is one ShardError with a way out."""
    with pytest.raises(ShardError, match="damaged") as caught:
        reload(save_manifest(MANIFEST), **changes)
    assert caught.value.way_out


def test_a_shard_listed_twice():
    """The same shard cannot be in a data set twice."""
    entry = {"name": "a.tar", "bytes": 1, "samples": 1}
    with pytest.raises(ShardError, match="twice"):
        reload(save_manifest(MANIFEST), shards=[entry, entry], samples=2)


def test_newer_versions_and_compression_say_what_to_do():
    """What this version cannot read is named as that, not as damage."""
    with pytest.raises(ShardError, match=r"version 2.*Upgrade"):
        reload(save_manifest(MANIFEST), version=2)
    entry = {"name": "a.tar.lz4", "bytes": 1, "samples": 7, "compression": "lz4"}
    with pytest.raises(ShardError, match="compressed with 'lz4'"):
        reload(save_manifest(MANIFEST), shards=[entry])


def test_compressed_shards_have_two_sizes():
    """That of the tar, which the index is of, and that of the file; one without is damaged."""
    shard = ShardEntry("a.tar.zst", 5000, 7, "xxh3_64:ab", "zstd", 900)
    plain = ShardEntry("b.tar", 5000, 7)
    again = reload(save_manifest(Manifest({"jpg": 14}, (shard, plain))))
    assert again.shards == (shard, plain)
    assert [entry.file_bytes for entry in again.shards] == [900, 5000]
    assert b"frame_bytes" not in save_manifest(again)["dataset.json"]
    entry = {"name": "a.tar.zst", "bytes": 1, "samples": 7, "compression": "zstd"}
    with pytest.raises(ShardError, match="stored_bytes"):
        reload(save_manifest(MANIFEST), shards=[entry])


def test_the_largest_frame_is_told_where_it_is_known():
    """What is no number of bytes is refused; of other shards than zstd's it says nothing."""
    shard = ShardEntry("a.tar.zst", 5000, 7, "xxh3_64:ab", "zstd", 900, 4096)
    assert reload(save_manifest(Manifest({}, (shard,)))).shards == (shard,)
    entry = {"name": "a.tar.gz", "bytes": 1, "samples": 7, "frame_bytes": "x"}
    entry.update(stored_bytes=1, compression="gzip")
    assert reload(save_manifest(MANIFEST), shards=[entry]).shards[0].frame_bytes is None
    with pytest.raises(ShardError, match="no count"):
        reload(save_manifest(MANIFEST), shards=[{**entry, "compression": "zstd"}])


def test_chunk_names_are_contained():
    """A chunk is never read from elsewhere."""
    document = {"format": "fastfeed", "version": 1, "samples": 0, "fields": {}, "chunks": ["../x"]}
    files = {"dataset.json": json.dumps(document).encode()}
    with pytest.raises(ShardError, match="outside"):
        load_manifest(files.__getitem__)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_junk_is_one_error(junk):
    """Whatever the bytes are, the error is a ShardError."""
    with pytest.raises(ShardError):
        load_manifest(lambda _: junk)


def test_deep_nesting_is_one_error():
    """A document nested beyond Python's depth is damaged, not a crash."""
    with pytest.raises(ShardError):
        load_manifest(lambda _: b"[" * 200_000)
