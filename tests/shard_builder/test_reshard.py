"""The same samples in other shards: what a build of the files would have given."""

from __future__ import annotations

import random
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.storage.compressed import open_shard
from fastfeed_shard.recut import _cut_by, _cut_in


@pytest.fixture
def source(make_tree):
    """Sixty files of up to 9 kB."""
    draw = random.Random(0)
    return make_tree({f"{n:03d}.bin": draw.randbytes(draw.randrange(9000)) for n in range(60)})


@pytest.fixture
def shards(source, tmp_path, built):
    """A data set of these files in many small shards."""
    built(
        *("build", source, tmp_path / "in", "--layout", "files"),
        *("--shard-size", "16KiB", "--quiet"),
    )
    return tmp_path / "in"


@pytest.mark.parametrize(
    "options",
    [
        ("--shard-size", "100KiB"),
        ("--shard-size", "1"),
        ("--shuffle", "7"),
        ("--shuffle", "7", "--shard-size", "50KiB", "--compress", "zstd"),
    ],
)
def test_as_a_build_would(source, shards, tmp_path, built, contents_of, options):
    """Size, order by chance and compression: byte for byte what `build` makes of the files."""
    built("build", source, tmp_path / "right", "--layout", "files", "--quiet", *options)
    built("reshard", shards, tmp_path / "out", "--quiet", *options)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "right")


def test_a_number_of_shards(shards, tmp_path, run, built, samples_of):
    """So many shards come out, of about one size, with all samples in their order."""
    built("reshard", shards, tmp_path / "out", "--shards", "4", "--quiet")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.tar"))]
    assert len(sizes) == 4
    assert max(sizes) < 1.5 * min(sizes)
    assert list(samples_of(tmp_path / "out").items()) == list(samples_of(shards).items())
    code, _, err = run("reshard", shards, tmp_path / "more", "--shards", "61")
    assert code == 2
    assert "60 samples" in err


def test_a_shuffle_of_many_shards_keeps_few_open(source, tmp_path, built, monkeypatch):
    """Shards that were closed are let go, and all share one cache of frames."""
    built(
        *("build", source, tmp_path / "in", "--layout", "files", "--compress", "zstd"),
        *("--shard-size", "16KiB", "--quiet"),
    )
    alive, caches, most = weakref.WeakSet(), [], [0]

    def opened(path, *, cache=None):
        shard = open_shard(path, cache=cache)
        alive.add(shard)
        caches.append(cache)
        most.append(len(alive))
        return shard

    monkeypatch.setattr("fastfeed_shard.copying.open_shard", opened)
    monkeypatch.setattr("fastfeed_shard.copying._OPEN_AT_ONCE", 3)
    built("reshard", tmp_path / "in", tmp_path / "out", "--shuffle", "7", "--jobs", "1", "--quiet")
    assert len(caches) > 10
    assert max(most) == 3
    assert caches[0] is not None
    assert len(set(map(id, caches))) == 1


def test_shuffled_interrupted_and_resumed(shards, tmp_path, run, built, contents_of, monkeypatch):
    """A shuffle that was interrupted goes on to what one run gives."""
    options = ("--shuffle", "3", "--shard-size", "40KiB", "--quiet", "--jobs", "1")
    built("reshard", shards, tmp_path / "right", *options)
    from fastfeed_shard.packing import ShardFile

    finish, seen = ShardFile.finish, []

    def interrupted(self):
        seen.append(self)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return finish(self)

    with monkeypatch.context() as patched:
        patched.setattr(ShardFile, "finish", interrupted)
        assert run("reshard", shards, tmp_path / "out", *options)[0] == 130
    assert len(list((tmp_path / "out").glob("*.tar"))) == 2
    code, _, err = run("reshard", shards, tmp_path / "out", *options, "--resume", "--shuffle", "4")
    assert code == 2
    assert "other files or options" in err
    built("reshard", shards, tmp_path / "out", *options, "--resume")
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "right")


@given(st.lists(st.integers(512, 1 << 30), min_size=1, max_size=60), st.data())
def test_cuts_in_a_number(sizes, data):
    """Every cut is in order and no shard is empty, however sizes lie."""
    count = data.draw(st.integers(1, len(sizes)))
    cuts = _cut_in(np.array(sizes, np.int64), count)
    assert len(cuts) == count + 1
    assert (cuts[0], cuts[-1]) == (0, len(sizes))
    assert (np.diff(cuts) >= 1).all()


@given(st.lists(st.integers(512, 5000), min_size=1, max_size=60), st.integers(1, 20_000))
def test_cuts_by_size(sizes, shard_size):
    """No shard is larger than asked for unless it holds one sample, and none could hold more."""
    cuts = _cut_by(np.array(sizes, np.int64), shard_size).tolist()
    totals = [sum(sizes[a:b]) + 1024 for a, b in pairwise(cuts)]
    for (start, stop), total in zip(pairwise(cuts), totals, strict=True):
        assert stop > start
        assert total <= shard_size or stop == start + 1
        assert stop == len(sizes) or total + sizes[stop] > shard_size
