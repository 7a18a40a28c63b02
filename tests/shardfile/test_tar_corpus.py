"""Tars of other projects' test suites: what is right is in the manifest of the test data."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from contextlib import suppress

import pytest

from fastfeed.errors import ShardError, TarError
from fastfeed.shardfile.index import group
from fastfeed.shardfile.tar import walk

COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".pzstd", ".lz", ".lz4", ".tbz2")
PLAIN_DESPITE_ITS_NAME = "ptd__101_ObjectCategories.tar.gz"
# Tars that stock readers accept although nothing proves that they are complete (case C01).
INCOMPLETE = {
    "tsplit__gnu-incremental.tar": "no end blocks",
    "tsplit__pax-bad-mtime-file.tar": "no end blocks",
    "tsplit__pax-multi-hdrs.tar": "no end blocks",
    "tsplit__pax-pos-size-file.tar": "no end blocks",
    "test_compat_tar_hardlink_1.tar": "no end blocks",
    "test_read_format_gtar_sparse_length.tar": "only one of its two end blocks",
    "rat__concatenated.tar": "data follows a block of zeros",
}


@pytest.fixture(scope="module")
def corpus(large_data):
    """All tars of the test data: (file name, bytes, what the manifest says)."""
    lines = (large_data / "manifest.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    tars = [r for r in records if r["file"].startswith("tars/")]
    assert len(tars) > 100
    return [(r["file"].rpartition("/")[2], (large_data / r["file"]).read_bytes(), r) for r in tars]


def is_compressed(name):
    return name.endswith(COMPRESSED) and name != PLAIN_DESPITE_ITS_NAME


def walk_until_error(data):
    """Return the members before the first error, and the error or None."""
    members = []
    try:
        for member in walk(lambda o, n: data[o : o + n], len(data), shard="s"):
            members.append(member)  # noqa: PERF402 - keeps what came before the error
    except TarError as error:
        return members, error
    return members, None


def test_plain_tars_are_read_as_the_manifest_says(corpus):
    """Members, kinds and data agree with tarfile; what must be an error is one."""
    checked = 0
    for name, data, says in corpus:
        if is_compressed(name) or says["expect"] == "any":
            continue
        members, error = walk_until_error(data)
        if says["expect"] == "error":
            assert error is not None, name
            continue
        assert says["expect"] == "ok", name
        if name in INCOMPLETE:
            assert INCOMPLETE[name] in str(error), name
        else:
            assert error is None, (name, error)
        assert len(members) == says["tar"]["members"], name
        compare_with_tarfile(name, data, members)
        checked += 1
    assert checked > 80


def compare_with_tarfile(name, data, members):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for ours, theirs in zip(members, tar, strict=True):
            if name == "tsplit__pax-multi-hdrs.tar":
                # Here tarfile stands alone: GNU tar and Go let the last pax header replace all.
                assert (ours.name, ours.link) == ("bar", "PAX4/PAX4/long-linkpath-name")
                continue
            # tarfile takes the times in an old GNU header for a part of the name.
            assert theirs.name.rstrip("/").endswith(ours.name.rstrip("/")), name
            assert (ours.kind == "sparse") == theirs.issparse(), name
            if ours.kind == "file":
                right = tar.extractfile(theirs).read()
                assert data[ours.offset : ours.offset + ours.size] == right, (name, ours)
            if ours.kind in {"symlink", "hardlink"}:
                assert ours.link == theirs.linkname, name


def test_compressed_tars_are_named_as_such(corpus):
    """Every compressed tar gives an error that names its compression."""
    names = Counter()
    for name, data, _ in corpus:
        if is_compressed(name):
            _, error = walk_until_error(data)
            assert error is not None
            assert "compressed with" in str(error), (name, error)
            names[str(error).split("compressed with ")[1].split(",")[0]] += 1
    assert names.keys() >= {"gzip", "zstd", "xz", "bzip2", "lz4", "lzip"}


def test_the_others_end_in_members_or_one_kind_of_error(corpus):
    """Files on which readers disagree, and every file grouped, raise nothing but ShardError."""
    for _, data, _ in corpus:
        members, _ = walk_until_error(data)
        with suppress(ShardError):
            assert group(members, shard="s", shard_bytes=len(data)).shard_bytes == len(data)
