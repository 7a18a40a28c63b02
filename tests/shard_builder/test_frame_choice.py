"""The size of a shard's frames: chosen by what its first bytes take, and by nothing else."""

from __future__ import annotations

import io
import random
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastfeed as ff
from fastfeed.shardfile.manifest import load_manifest
from fastfeed.storage.compressed import open_shard
from fastfeed_shard.frames import FRAME, Compression, cut_frames
from fastfeed_shard.packing import ShardFile
from fastfeed_shard.plan import packed_size

COUNT = 12 << 10


def words(count):
    """Return samples of 1 kB of words that every frame has to spell out again."""
    draw = np.random.default_rng(0)
    known = draw.integers(97, 123, (1 << 14, 8), np.uint8)
    known[:, -1] = 32
    return [known[draw.zipf(1.2, 128) % len(known)].tobytes() for _ in range(count)]


def pack(path, samples, *, frame=None):
    """Write a shard of samples, each some fields; returns its line of the manifest."""
    with ShardFile(path, sync=False, compress=Compression(frame=frame)) as shard:
        for number, fields in enumerate(samples):
            shard.begin(packed_size([len(data) for data in fields]))
            for place, data in enumerate(fields):
                name = f"{number:06d}.{place}"
                shard.add(name, len(data), io.BytesIO(data).readinto)
        return shard.finish().entry


def over_whole(path):
    """Return how large a shard is beside its tar in one frame."""
    with open_shard(path) as shard:
        tar = shard.read_at(0, shard.size)
    return path.stat().st_size / len(zstandard.ZstdCompressor(3).compress(tar))


def test_frames_are_as_large_as_the_data_ask_for(tmp_path):
    """Words that come again from far away make them larger, and the shard stays small."""
    path = tmp_path / "a-000000.tar.zst"
    samples = [[data] for data in words(COUNT)]
    entry = pack(path, samples)
    assert FRAME < entry.frame_bytes <= 4 << 20
    assert over_whole(path) < 1.05
    pack(tmp_path / "b-000000.tar.zst", samples, frame=FRAME)
    assert over_whole(tmp_path / "b-000000.tar.zst") > 1.08


@pytest.mark.parametrize("shrinks", [True, False])
def test_frames_stay_small_where_that_costs_nothing(tmp_path, shrinks):
    """Data without any repetition, compressed or stored."""
    draw = random.Random(1)
    samples = [draw.randbytes(500) * 2 for _ in range(COUNT)]
    if not shrinks:
        samples = [draw.randbytes(1000) for _ in range(COUNT)]
    entry = pack(tmp_path / "a-000000.tar.zst", [[data] for data in samples])
    assert FRAME - 2048 < entry.frame_bytes <= FRAME
    assert (entry.stored_bytes < 0.9 * entry.bytes) is True


def test_a_small_shard_has_frames_of_the_smallest_size(tmp_path):
    """There is nothing to choose below one frame, nor does a trial take longer than the shard."""
    samples = [[data] for data in words(100)]
    one = pack(tmp_path / "a-000000.tar.zst", samples)
    other = pack(tmp_path / "b-000000.tar.zst", samples, frame=FRAME)
    assert (one.digest, one.frame_bytes) == (other.digest, one.bytes)


@pytest.fixture
def small_trials(monkeypatch):
    """Choose among 4 to 32 KiB, from 64 KiB."""
    monkeypatch.setattr("fastfeed_shard.frames.FRAME", 4 << 10)
    monkeypatch.setattr("fastfeed_shard.frames._LARGEST_CHOSEN", 32 << 10)
    monkeypatch.setattr("fastfeed_shard.packing.TRIAL", 64 << 10)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(
        st.lists(st.one_of(st.integers(0, 3000), st.integers(0, 90_000)), min_size=1, max_size=3),
        min_size=1,
        max_size=20,
    ),
    seed=st.integers(0, 5),
)
def test_a_trial_leaves_no_trace(small_trials, tmp_path, sizes, seed):
    """A shard with a trial is the one that its size of frames, asked for, would have made."""
    text = words(1)[0] * 100
    draw = random.Random(seed)
    samples = [[text[draw.randrange(1000) :][:size] for size in fields] for fields in sizes]
    path = tmp_path / "a-000000.tar.zst"
    entry = pack(path, samples)
    asked = [pack(path, samples, frame=size << 10).digest for size in (4, 8, 16, 32)]
    assert entry.digest in asked


@given(
    sizes=st.lists(st.integers(1, 300), max_size=30), size=st.integers(1, 100), more=st.integers(0)
)
def test_cuts_part_nothing_that_fits(sizes, size, more):
    """No frame is empty or too large, and what fits is whole, up to where the open one begins."""
    starts = [0]
    for one in sizes:
        starts.append(starts[-1] + one)
    end = starts[-1]
    marks = [*zip(starts, sizes, strict=False), (end, more)]
    cuts = [0, *cut_frames(marks, end, size)]
    assert all(0 < after - before <= size for before, after in pairwise(cuts))
    assert cuts[-1] <= end <= cuts[-1] + size
    for start, one in zip(starts, sizes, strict=False):
        inside = [cut for cut in cuts if start < cut < start + one]
        assert not inside or one > size


def test_all_ways_choose_alike(tmp_path, run):
    """A shard written by Python, converted, and cut anew has the frames of the same data."""
    with (
        ff.ShardWriter(tmp_path / "plain") as writer,
        ff.ShardWriter(tmp_path / "zstd", compress="zstd") as packed,
    ):
        for number, data in enumerate(words(COUNT)):
            writer.write({"__key__": f"{number:06d}", "bin": data})
            packed.write({"__key__": f"{number:06d}", "bin": data})
    expected = entry_of(tmp_path / "zstd")
    assert expected.frame_bytes > FRAME
    zstd = ("--compress", "zstd", "--quiet")
    ways = {
        "convert": ("convert", tmp_path / "plain"),
        "reshard": ("reshard", tmp_path / "plain", "--shards", 1),
        "merge": ("merge", tmp_path / "plain"),
    }
    for name, (verb, source, *options) in ways.items():
        code = run(verb, source, tmp_path / name, *options, *zstd)[0]
        assert code == 0
        assert entry_of(tmp_path / name) == expected


def entry_of(folder):
    """Return the line of a data set's only shard."""
    (entry,) = load_manifest(lambda name: (folder / name).read_bytes()).shards
    return entry
