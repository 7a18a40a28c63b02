"""Staged copies that go bad on the disk: fetched again, and blamed on the shard only if it is."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest

import fastfeed as ff
from fastfeed.errors import ShardError
from fastfeed.options import Cache
from fastfeed.reading.read import read
from fastfeed.reading.shards import ShardSet
from fastfeed.staging.staged import Staged

SAMPLES = [np.random.default_rng(n).bytes(5000) for n in range(40)]


@pytest.fixture
def make_shards(tmp_path, settle):
    """Return shards in fsspec's memory, all of them staged, and the only copy on the shelf."""
    memory = fsspec.filesystem("memory")
    made = []

    def make(compress):
        with ff.ShardWriter(tmp_path / "built", compress=compress) as writer:
            for number, content in enumerate(SAMPLES):
                writer.write({"__key__": f"{number:03d}", "bin": content})
        for path in (tmp_path / "built").iterdir():
            if path.is_file():
                memory.pipe_file(f"/healing/{path.name}", path.read_bytes())
        made.append(Staged(Cache(tmp_path / "cache", "1GB")))
        shards = ShardSet("memory://healing", staged=made[-1])
        made[-1].expect([shards.name(0)] * 2)
        made[-1].reached(0, window=1, zone=1)
        settle(made[-1])
        (copy,) = (tmp_path / "cache").glob("*.shard")
        return shards, made[-1], copy

    yield make
    for staged in made:
        staged.close()
    memory.rm("/healing", recursive=True)


def damage(path):
    """Change bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)


def contents(shards):
    """Read all samples, with checksums compared."""
    records = read(
        shards,
        np.arange(len(SAMPLES)),
        fields=["bin"],
        allocate=lambda nbytes: np.empty(nbytes, np.uint8),
        verify=True,
    )
    return [bytes(records.data(n, 0)) for n in range(len(SAMPLES))]


@pytest.mark.parametrize("compress", [None, "zstd"])
def test_a_bad_copy_is_fetched_again(make_shards, caplog, settle, compress):
    """Samples or frames that fail their checksum in a copy come from afar, then from a new one."""
    shards, staged, copy = make_shards(compress)
    damage(copy)
    assert contents(shards) == SAMPLES
    assert caplog.text.count("fetched again") == 1
    for place in (1, 0):
        staged.reached(place, window=1, zone=1)
    settle(staged)
    assert copy.exists()
    far = staged.counts().far_bytes
    assert shards.open(0).is_near()
    assert contents(shards) == SAMPLES
    assert staged.counts().far_bytes == far


def test_a_bad_shard_is_blamed(make_shards, caplog):
    """Where the bytes from afar are as wrong, the error is of the shard, and is raised at once."""
    shards, _, copy = make_shards(None)
    damage(copy)
    memory = fsspec.filesystem("memory")
    (url,) = memory.glob("/healing/*.tar")
    memory.pipe_file(url, copy.read_bytes())
    for _ in range(2):
        with pytest.raises(ShardError, match=r"other bytes than were written.*memory://healing"):
            contents(shards)
    assert caplog.text.count("fetched again") == 1


def test_a_copy_as_it_was_written_is_kept(make_shards, caplog):
    """An error of the shard itself costs no second copy: the digest of the first one is right."""
    shards, staged, copy = make_shards(None)
    assert not staged.doubt(shards.name(0), ShardError("of the index, say"))
    assert copy.exists()
    assert not caplog.text


def test_somebody_elses_good_copy_is_kept(make_shards):
    """Who finds that its open copy is bad, and another one in its place, takes that one."""
    shards, staged, copy = make_shards(None)
    contents(shards)
    right = copy.read_bytes()
    damage(copy)
    copy.rename(copy.with_suffix(".bad"))
    copy.with_suffix(".bad").unlink()
    copy.write_bytes(right)
    assert contents(shards) == SAMPLES
    assert copy.exists()
    assert staged.counts().far_bytes == 0
