"""Compressed shards with a table of their frames, read by position."""

from __future__ import annotations

import os
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import compressed_files as files
from fastfeed.errors import ShardError, StorageError
from fastfeed.shardfile.seekable import Frame, content_checksum, raw_frame, save_table
from fastfeed.storage.compressed import CompressedShard, read_table
from fastfeed.storage.frames import FrameCache
from fastfeed.storage.local import LocalFile
from fastfeed.storage.streams import inflate


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_range_is_what_the_tar_holds(data):
    """Whatever frames there are, checksums or not, every range reads as from the tar itself."""
    contents = data.draw(
        st.lists(st.binary(max_size=300).map(lambda b: b * 3), min_size=1, max_size=8)
    )
    checksum, size = data.draw(st.booleans()), data.draw(st.booleans())
    inner = files.Memory(files.seekable(*contents, checksum=checksum, size=size))
    cache = FrameCache(data.draw(st.sampled_from([0, 500, 10_000])))
    shard = CompressedShard(inner, read_table(inner, "s"), name="s", cache=cache)
    expected = b"".join(contents)
    assert shard.size == len(expected)
    for _ in range(5):
        start = data.draw(st.integers(0, len(expected)))
        stop = data.draw(st.integers(start, len(expected)))
        buffer = memoryview(bytearray(stop - start))
        shard.read_into(start, buffer)
        assert bytes(buffer) == expected[start:stop] == shard.read_at(start, stop - start)


def test_a_request_costs_the_frames_that_it_touches():
    """Neighbours are one read, nothing else is read, and a frame that is kept is not read again."""
    contents = [bytes([n]) * 1000 for n in range(6)]
    inner = files.Memory(files.seekable(*contents))
    table = read_table(inner, "s")
    shard = CompressedShard(inner, table, name="s")
    inner.reads.clear()
    assert shard.read_at(1500, 10) == b"\1" * 10
    assert inner.reads == [(table.places[1], table.ends[1] - table.places[1])]
    inner.reads.clear()
    assert shard.read_at(1990, 3020) == (
        b"\1" * 10 + b"\2" * 1000 + b"\3" * 1000 + b"\4" * 1000
    ) + (b"\5" * 10)
    assert inner.reads == [(table.places[2], table.ends[5] - table.places[2])]
    inner.reads.clear()
    shard.read_at(5000, 1000)
    shard.read_at(1000, 1000)
    assert inner.reads == []
    shard.advise(1500, 1000)
    assert inner.advised == [(table.places[1], table.ends[2] - table.places[1])]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_ranges_that_share_frames_read_them_once(data):
    """Ranges are split where no frame is shared; then no frame is read twice, if there is room."""
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=12))
    contents = [bytes([n]) * size for n, size in enumerate(sizes)]
    expected = b"".join(contents)
    edges = data.draw(st.lists(st.integers(0, len(expected)), min_size=2, max_size=12, unique=True))
    edges = sorted(edges)[: len(edges) // 2 * 2]
    places = list(zip(edges[::2], edges[1::2], strict=True))
    ranges = [(start, memoryview(bytearray(stop - start))) for start, stop in places]
    room = data.draw(st.sampled_from([0, 100, 10_000]))
    inner = files.Memory(files.seekable(*contents))
    table = read_table(inner, "s")
    inner.reads.clear()
    shard = CompressedShard(inner, table, name="s", cache=FrameCache(room))
    groups = shard.connected(ranges)
    assert [one for group in groups for one in group] == ranges
    for group in groups:
        shard.read_ranges(group)
    for (start, stop), (_, buffer) in zip(places, ranges, strict=True):
        assert bytes(buffer) == expected[start:stop]
    if room == 10_000:
        wanted = {
            n
            for n in range(len(contents))
            if any(a < table.starts[n + 1] and b > table.starts[n] for a, b in places)
        }
        stored = sum(table.ends[n] - table.places[n] for n in wanted)
        assert sum(size for _, size in inner.reads) == stored


@pytest.mark.parametrize("fails", [False, True])
def test_threads_wait_for_a_frame_that_one_of_them_brings(fails):
    """It is read once; if that fails, the others have it from the next one that tries."""
    file = files.seekable(*[bytes([n]) * 1000 for n in range(6)])
    table = read_table(files.Memory(file), "s")
    waiting = threading.Semaphore(0)

    class Slow(files.Memory):
        def read_at(self, offset, size, /):
            first = not self.reads
            data = super().read_at(offset, size)
            for _ in range(3 if first else 0):
                assert waiting.acquire(timeout=30)
            if first and fails:
                raise StorageError("no answer")
            return data

    class Frames(FrameCache):
        def claim(self, key):
            coming = super().claim(key)
            if coming is not None:
                waiting.release()
            return coming

    inner = Slow(file)
    shard = CompressedShard(inner, table, name="s", cache=Frames())
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(shard.read_at, 2500, 10) for _ in range(4)]
        errors = [one for one in found if one.exception() is not None]
    assert len(errors) == fails
    assert {one.result() for one in found if one not in errors} == {b"\2" * 10}
    assert len(inner.reads) == 1 + fails


@pytest.mark.parametrize("ranges", [1, 2])
def test_a_frame_that_another_thread_has_just_put_is_not_read_again(ranges):
    """Between the look for a frame and the word that it is ours to bring, it may have come."""
    inner = files.Memory(files.seekable(*[bytes([n]) * 1000 for n in range(6)]))
    table = read_table(inner, "s")
    inner.reads.clear()
    others = [1]

    class Frames(FrameCache):
        def claim(self, key):
            if others and others.pop():
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(shard.read_at, 2500, 10).result()
            return super().claim(key)

    shard = CompressedShard(inner, table, name="s", cache=Frames())
    buffers = [memoryview(bytearray(10)) for _ in range(ranges)]
    shard.read_ranges([(2200 + 100 * n, buffer) for n, buffer in enumerate(buffers)])
    assert {bytes(buffer) for buffer in buffers} == {b"\2" * 10}
    assert len(inner.reads) == 1


def test_a_thread_that_was_interrupted_before_it_could_bring_a_frame(monkeypatch):
    """Others wait for it no longer than a read may take, and have the frame all the same."""
    monkeypatch.setattr("fastfeed.storage.compressed._PATIENCE_S", 0.05)
    inner = files.Memory(files.seekable(*[bytes([n]) * 1000 for n in range(6)]))
    shard = CompressedShard(inner, read_table(inner, "s"), name="s")
    claim = FrameCache.claim

    def interrupted(cache, key):
        claim(cache, key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FrameCache, "claim", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shard.read_at(2500, 10)
    assert shard.read_at(2500, 10) == b"\2" * 10
    assert not shard._cache._coming


def test_a_frame_that_others_go_on_with_is_decoded_as_far_as_it_is_read():
    """Who reads every other batch decodes no rests for nothing, and who reads all nothing twice."""
    contents = [bytes([n]) * 200_000 + os.urandom(200_000) for n in range(8)]
    expected, file = b"".join(contents), files.seekable(*contents)
    inner = files.Memory(file)
    table = read_table(inner, "s")
    inner.reads.clear()
    shard = CompressedShard(inner, table, name="s")
    step = 900_000
    assert b"".join(shard.read_at(n, step) for n in range(0, len(expected), step)) == expected
    assert sum(size for _, size in inner.reads) == table.ends[-1]

    damaged = bytearray(file)
    damaged[table.ends[6] - 100] ^= 1  # in the rest of a frame that the second request begins
    shard = CompressedShard(files.Memory(damaged), table, name="s")
    for start in (0, 2 * step - 200_000):
        found = bytearray(step)
        shard.read_into(start, memoryview(found), verified=True)
        assert found == expected[start : start + step]
    with pytest.raises(ShardError, match="damaged zstd frame"):
        shard.read_at(2_500_000, 10)
    # Who compares nothing itself gets no byte of a frame that is not whole.
    shard = CompressedShard(files.Memory(damaged), table, name="s")
    with pytest.raises(ShardError, match="damaged zstd frame"):
        shard.read_at(2 * step - 200_000, step)


def test_the_cache_is_bounded_and_keeps_what_was_used_last():
    """Frames of all shards share its bytes; a copy for another process is empty."""
    cache = FrameCache(10_000)
    shards = []
    for letter in b"ab":
        inner = files.Memory(files.seekable(*[bytes([letter]) * 1000] * 8))
        shards.append(CompressedShard(inner, read_table(inner, "s"), name="s", cache=cache))
    for offset in range(0, 8000, 1000):
        for shard, letter in zip(shards, b"ab", strict=True):
            assert shard.read_at(offset, 1) == bytes([letter])
            assert shard.read_at(0, 1) == bytes([letter])
    held = sum(cache.get(base << 32 | n) is not None for base in (0, 1) for n in range(8))
    assert 8 <= held <= 10
    assert cache.get(0) is not None
    assert pickle.loads(pickle.dumps(cache)).get(0) is None


def test_threads_and_forks_share_a_shard(tmp_path):
    """Four threads and a forked child read the same shard at once, each its own ranges."""
    contents = [os.urandom(3000) + bytes(9000) for _ in range(20)]
    expected = b"".join(contents)
    (tmp_path / "a.tar.zst").write_bytes(files.seekable(*contents))
    wrong = []
    with LocalFile(str(tmp_path / "a.tar.zst")) as inner:
        table = read_table(inner, "s")
        shard = CompressedShard(inner, table, name="s", cache=FrameCache(50_000))

        def work(seed):
            draw = random.Random(seed)
            for _ in range(200):
                start = draw.randrange(len(expected) - 20_000)
                size = draw.randrange(1, 20_000)
                if shard.read_at(start, size) != expected[start : start + size]:
                    wrong.append(start)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        child = os.fork()
        if not child:
            work(9)
            os._exit(len(wrong))
        for thread in threads:
            thread.join()
        _, status = os.waitpid(child, 0)
    assert (wrong, os.waitstatus_to_exitcode(status)) == ([], 0)


def test_reads_beyond_the_end():
    """`read_at` gives what there is, `read_into` is all or an error."""
    inner = files.Memory(files.seekable(b"x" * 100))
    shard = CompressedShard(inner, read_table(inner, "s"), name="s")
    assert shard.read_at(90, 100) == b"x" * 10
    assert shard.read_at(200, 100) == b""
    with pytest.raises(StorageError, match="100 bytes"):
        shard.read_into(90, memoryview(bytearray(11)))


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_c13_every_flipped_byte_is_an_error(checksum, wide):
    """Of a frame or of the table, whether all of a frame is asked for or a part of it."""
    contents = [(b"%d " % n) * 60 for n in range(3)]
    expected = b"".join(contents)
    file = files.seekable(*contents, checksum=checksum)
    unplaced = set()
    for place in range(len(file)):
        damaged = bytearray(file)
        damaged[place] ^= 0x10
        inner = files.Memory(damaged)
        try:
            table = read_table(inner, "s")
            if table is None:
                continue  # the footer's magic: then the file is streamed, which needs no table
            shard = CompressedShard(inner, table, name="s")
            step = len(expected) if wide else 7
            found = b"".join(shard.read_at(at, step) for at in range(0, len(expected), step))
        except ShardError as error:
            unplaced.update({place} if error.shard != "s" or error.offset is None else ())
            continue
        # A bit that means nothing, such as one of the descriptors that is not used.
        assert found == expected, place
    assert not unplaced


def test_a_table_of_other_sizes(monkeypatch):
    """A frame that holds more or less than its table says is refused before memory is asked for."""
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    for told in (999, 1001, 2**32 - 1):
        inner = files.Memory(frame + save_table([Frame(len(frame), told, 0)]))
        shard = CompressedShard(inner, read_table(inner, "s"), name="s")
        with pytest.raises(ShardError, match="1,000 bytes"):
            shard.read_at(0, 1)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    for told in (999, 1001):
        inner = files.Memory(unsized + save_table([Frame(len(unsized), told, 0)]))
        shard = CompressedShard(inner, read_table(inner, "s"), name="s")
        with pytest.raises(ShardError):
            shard.read_at(0, 1)


def test_raw_frames_and_frames_that_are_no_data(opened):
    """A skippable frame among the others is listed with nothing in it, and passed over."""
    one, other = files.TAR[:1024], files.TAR[1024:]
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(other)
    frames = [
        (raw_frame(memoryview(one)), len(one), content_checksum(memoryview(one))),
        (files.skippable(3, 50), 0, 0),
        (packed, len(other), content_checksum(memoryview(other))),
    ]
    file = b"".join(frame for frame, _, _ in frames)
    shard = opened(file + save_table([Frame(len(f), size, c) for f, size, c in frames]))
    assert isinstance(shard, CompressedShard)
    assert files.whole(shard) == files.TAR


def test_large_frames_are_inflated(opened, tmp_path):
    """Where one sample would cost 40 MB, a table is of no use."""
    data = files.tar_of(("a.bin", bytes(40 << 20)))
    shard = opened(files.seekable(data))
    assert not isinstance(shard, CompressedShard)
    assert files.names(shard) == ["a.bin"]
    assert len(list((tmp_path / "cache" / "inflated").iterdir())) == 1


def test_every_seekable_file_reads_by_position(large_data):
    """Files of other writers give by position what they give as a stream, or an error of ours."""
    read = 0
    for path in sorted((large_data / "zst" / "seekable").iterdir()):
        data = path.read_bytes()
        inner = files.Memory(data)
        try:
            table = read_table(inner, "s")
            if table is None or not table.size:
                continue
            shard = CompressedShard(inner, table, name="s")
            found = files.whole(shard)
        except ShardError:
            assert path.suffix == ".bin"
            continue
        stream = inflate(lambda o, n, d=data: d[o : o + n], len(data), kind="zstd", shard="s")
        assert found == b"".join(stream), path.name
        read += 1
    assert read
