"""Compressed shards, read by position where they have a table and inflated where they have none."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import lzma
import os
import pickle
import random
import tarfile
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfeed.errors import FastfeedError, ShardError, StorageError, TarError
from fastfeed.shardfile.seekable import Frame, content_checksum, raw_frame, save_table
from fastfeed.shardfile.tar import walk
from fastfeed.storage.compressed import CompressedShard, open_shard, read_table, wrap
from fastfeed.storage.frames import FrameCache
from fastfeed.storage.local import LocalFile
from fastfeed.storage.streams import inflate


class Memory:
    """A shard in memory that remembers what was read of it."""

    def __init__(self, data):
        self.data = bytes(data)
        self.size = len(data)
        self.reads = []
        self.advised = []
        self.closed = False

    def read_at(self, offset, size, /):
        self.reads.append((offset, size))
        return self.data[offset : offset + size]

    def read_into(self, offset, buffer, /):
        buffer[:] = self.read_at(offset, len(buffer))

    def advise(self, offset, size):
        self.advised.append((offset, size))

    def close(self):
        self.closed = True


def seekable(*contents, checksum=True, table=True, size=True):
    """Return a file of a frame for each content, and its table."""
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size)
    frames, file = [], b""
    for content in contents:
        frame = compressor.compress(content)
        file += frame
        frames.append(Frame(len(frame), len(content), content_checksum(memoryview(content))))
    return file + (save_table(frames) if table else b"")


def tar_of(*members):
    """Return the bytes of a tar."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


TAR = tar_of(*((f"{n:03d}.txt", f"{n} ".encode() * (90 * n)) for n in range(12)))


def pieces(data, *cuts):
    """Cut data at these places."""
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def skippable(nibble, nbytes):
    """Return a frame that decoders skip."""
    return bytes([0x50 | nibble]) + b"\x2a\x4d\x18" + nbytes.to_bytes(4, "little") + bytes(nbytes)


@pytest.fixture
def opened(tmp_path):
    """Write a file and open it as a tar; what is inflated goes to a folder of the test."""
    shards = []

    def open_file(data, name="a.tar.zst"):
        path = tmp_path / name
        path.write_bytes(data)
        shards.append(open_shard(path, folder=tmp_path / "cache"))
        return shards[-1]

    yield open_file
    for shard in shards:
        shard.close()


def names(shard):
    """Walk a tar to its end and return its names."""
    return [member.name for member in walk(shard.read_at, shard.size, shard="s")]


def whole(storage):
    """Return all bytes of a shard."""
    return storage.read_at(0, storage.size + 1)


# By position


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_range_is_what_the_tar_holds(data):
    """Whatever frames there are, checksums or not, every range reads as from the tar itself."""
    contents = data.draw(
        st.lists(st.binary(max_size=300).map(lambda b: b * 3), min_size=1, max_size=8)
    )
    checksum, size = data.draw(st.booleans()), data.draw(st.booleans())
    inner = Memory(seekable(*contents, checksum=checksum, size=size))
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
    inner = Memory(seekable(*contents))
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


def test_the_cache_is_bounded_and_keeps_what_was_used_last():
    """Frames of all shards share its bytes; a copy for another process is empty."""
    cache = FrameCache(10_000)
    shards = []
    for letter in b"ab":
        inner = Memory(seekable(*[bytes([letter]) * 1000] * 8))
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
    (tmp_path / "a.tar.zst").write_bytes(seekable(*contents))
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
    inner = Memory(seekable(b"x" * 100))
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
    file = seekable(*contents, checksum=checksum)
    unplaced = set()
    for place in range(len(file)):
        damaged = bytearray(file)
        damaged[place] ^= 0x10
        inner = Memory(damaged)
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
        inner = Memory(frame + save_table([Frame(len(frame), told, 0)]))
        shard = CompressedShard(inner, read_table(inner, "s"), name="s")
        with pytest.raises(ShardError, match="1,000 bytes"):
            shard.read_at(0, 1)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    for told in (999, 1001):
        inner = Memory(unsized + save_table([Frame(len(unsized), told, 0)]))
        shard = CompressedShard(inner, read_table(inner, "s"), name="s")
        with pytest.raises(ShardError):
            shard.read_at(0, 1)


def test_raw_frames_and_frames_that_are_no_data(opened):
    """A skippable frame among the others is listed with nothing in it, and passed over."""
    one, other = TAR[:1024], TAR[1024:]
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(other)
    frames = [
        (raw_frame(memoryview(one)), len(one), content_checksum(memoryview(one))),
        (skippable(3, 50), 0, 0),
        (packed, len(other), content_checksum(memoryview(other))),
    ]
    file = b"".join(frame for frame, _, _ in frames)
    shard = opened(file + save_table([Frame(len(f), size, c) for f, size, c in frames]))
    assert isinstance(shard, CompressedShard)
    assert whole(shard) == TAR


def test_large_frames_are_inflated(opened, tmp_path):
    """Where one sample would cost 40 MB, a table is of no use."""
    data = tar_of(("a.bin", bytes(40 << 20)))
    shard = opened(seekable(data))
    assert not isinstance(shard, CompressedShard)
    assert names(shard) == ["a.bin"]
    assert len(list((tmp_path / "cache" / "inflated").iterdir())) == 1


# Whatever else is compressed

HALF = len(TAR) // 2
STREAMS = {
    "one frame": seekable(TAR, table=False),
    "four frames": seekable(*pieces(TAR, 100, 700, HALF), table=False),
    "seekable": seekable(*pieces(TAR, 512, 5000, HALF)),
    "skippable first": skippable(0, 0) + seekable(TAR, table=False),
    "skippable last": seekable(TAR, table=False) + skippable(15, 1 << 20),
    "skippable middle": seekable(TAR[:700], table=False)
    + skippable(7, 0)
    + skippable(8, 1 << 20)
    + seekable(TAR[700:], table=False),
    "empty frame": seekable(TAR[:700], b"", TAR[700:], table=False),
    "empty frame in the table": seekable(TAR[:700], b"", TAR[700:]),
    "without sizes": seekable(TAR[:700], TAR[700:], table=False, size=False, checksum=False),
    "gzip": gzip.compress(TAR),
    "two gzip members": gzip.compress(TAR[:700]) + gzip.compress(TAR[700:]),
    "gzip and padding": gzip.compress(TAR) + bytes(512),
    "bzip2": bz2.compress(TAR[:700]) + bz2.compress(TAR[700:]),
    "xz": lzma.compress(TAR),
}


@pytest.mark.parametrize("name", STREAMS)
def test_c12_every_frame_is_read(opened, name, caplog):
    """However it is compressed, and wherever frames end, the shard holds the same tar."""
    with caplog.at_level(logging.WARNING, "fastfeed"):
        shard = opened(STREAMS[name])
    assert whole(shard) == TAR
    assert names(shard) == [f"{n:03d}.txt" for n in range(12)]
    in_place = name in {"seekable", "empty frame in the table"}
    assert ("fastfeed-shard convert" in caplog.text) is not in_place


@pytest.mark.parametrize("size", [1, 7, 511])
@pytest.mark.parametrize("name", STREAMS)
def test_c12_tiny_reads(name, size):
    """A frame may begin and end anywhere between two reads."""
    data = STREAMS[name]
    kind = name.split()[-1] if name in {"gzip", "bzip2", "xz"} else "zstd"
    kind = "gzip" if "gzip" in name else kind
    found = inflate(
        lambda offset, wanted: data[offset : offset + min(wanted, size)],
        len(data),
        kind=kind,
        shard="s",
    )
    assert b"".join(found) == TAR


def cuts():
    """Three frames cut near every boundary and anywhere, or followed by something."""
    file = seekable(*pieces(TAR, 700, HALF), table=False)
    first, second = (len(seekable(part, table=False)) for part in pieces(TAR, 700, HALF)[:2])
    draw = random.Random(13)
    places = {at + near for at in (first, first + second, len(file)) for near in (-1, 0, 1)}
    places |= {draw.randrange(1, len(file)) for _ in range(20)}
    for place in sorted(places):
        if place < len(file):
            yield f"cut at {place:,}", file[:place]
    yield "a zero after it", file + b"\0"
    yield "rubbish after it", file + draw.randbytes(100)
    flipped = bytearray(file)
    flipped[len(file) - 300] ^= 1
    yield "a flipped byte", bytes(flipped)
    yield "a table cut short", seekable(*pieces(TAR, 700))[:-1]
    zipped = gzip.compress(TAR)
    yield "gzip cut", zipped[:-1]
    yield "gzip and rubbish", zipped + b"x"
    yield "gzip, padding and rubbish", zipped + bytes(100) + b"x"
    yield "bzip2 cut", bz2.compress(TAR)[:-1]
    yield "bzip2 and rubbish", bz2.compress(TAR) + b"x"
    yield "xz cut", lzma.compress(TAR)[:-1]


@pytest.mark.parametrize(("name", "data"), list(cuts()))
def test_c13_cut_damaged_or_followed(opened, tmp_path, name, data):
    """An error that names the shard, at the latest from the tar's own end; nothing is left over."""
    with pytest.raises((ShardError, StorageError)) as caught:
        names(opened(data))
    if not isinstance(caught.value, TarError):  # a cut between frames, which zstd cannot know of
        assert "a.tar.zst" in str(caught.value)
        left = tmp_path / "cache" / "inflated"
        assert not left.exists() or not list(left.iterdir())


def test_it_is_inflated_once_and_again_when_the_shard_changes(opened, tmp_path, caplog):
    """The copy is kept under a name that the shard's size, time and ends decide."""
    for data in (STREAMS["gzip"], STREAMS["gzip"], STREAMS["one frame"]):
        path = tmp_path / "a.tar.zst"
        same = path.exists() and path.read_bytes() == data
        if same:
            path.touch()
            os.utime(path, ns=(1, 1))
        assert whole(opened(data)) == TAR
    inflated = list((tmp_path / "cache" / "inflated").iterdir())
    assert {path.read_bytes() for path in inflated} == {TAR}
    before = len(inflated)
    with caplog.at_level(logging.WARNING, "fastfeed"):
        caplog.clear()
        open_shard(tmp_path / "a.tar.zst", folder=tmp_path / "cache").close()
    assert caplog.text == ""
    assert len(list((tmp_path / "cache" / "inflated").iterdir())) == before


def test_it_must_fit_the_disk(opened, tmp_path, monkeypatch):
    """A shard that unpacks to more than is free is refused while it unpacks, and removed."""
    monkeypatch.setattr("fastfeed.storage.inflated._SPARE", 1 << 60)
    with pytest.raises(StorageError, match="unpacks to more"):
        opened(STREAMS["gzip"])
    assert not list((tmp_path / "cache" / "inflated").iterdir())


def test_what_killed_writers_left_is_swept(opened, tmp_path):
    """Temporary files that nobody has locked go; those of a living writer stay."""
    folder = tmp_path / "cache" / "inflated"
    folder.mkdir(parents=True)
    dead = folder / f".{'a' * 32}.tar.0123456789abcdef.tmp"
    dead.write_bytes(b"half")
    living = folder / f".{'b' * 32}.tar.0123456789abcdef.tmp"
    import fcntl

    with living.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        opened(STREAMS["gzip"])
    assert not dead.exists()
    assert living.exists()


def test_bombs_take_bounded_memory(tmp_path):
    """A thousand times its size comes out in pieces, each far smaller than the whole."""
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(1 << 28))
    largest = total = 0
    for piece in inflate(
        lambda offset, size: bomb[offset : offset + size], len(bomb), kind="zstd", shard="s"
    ):
        largest, total = max(largest, len(piece)), total + len(piece)
    assert total == 1 << 28
    assert largest <= 130 << 20


def test_plain_tars_are_left_alone(tmp_path):
    """Whatever a member is called, and whatever follows."""
    for name in ("a.txt", "BZh91AY.txt", "LZIP.txt"):
        inner = Memory(tar_of((name, b"x")))
        assert wrap(inner, "s", folder=tmp_path) is inner
    inner = Memory(b"")
    assert wrap(inner, "s", folder=tmp_path) is inner


def test_a_shard_that_fails_is_closed(tmp_path, leak_gauge):
    """An error at opening leaves no descriptor behind."""
    path = tmp_path / "a.tar.zst"
    path.write_bytes(STREAMS["one frame"][:-9])
    with pytest.raises(ShardError):
        open_shard(path, folder=tmp_path / "cache")
    path.write_bytes(STREAMS["gzip"])
    with open_shard(path, folder=tmp_path / "cache") as shard:
        assert whole(shard) == TAR


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200), st.sampled_from(sorted(STREAMS)), st.integers(0, 3000))
def test_anything_else_is_an_error_of_ours(tmp_path, junk, name, place):
    """Junk in the middle of a shard gives the tar or one of our errors."""
    data = STREAMS[name]
    place %= len(data)
    path = tmp_path / "x.tar"
    path.write_bytes(data[:place] + junk + data[place + len(junk) :])
    try:
        with open_shard(path, folder=tmp_path / "cache") as shard:
            names(shard)
            assert isinstance(whole(shard), bytes)
    except FastfeedError:
        pass


# The large data


def entries(large_data, folder):
    """Return the manifest's entries below a folder."""
    lines = (large_data / "manifest.jsonl").read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["file"].startswith(folder)]


def test_every_zst_file_gives_what_its_manifest_says(large_data):
    """Good files give their content; broken ones, and those that need a dictionary, an error."""
    wrong = []
    for entry in entries(large_data, "zst/"):
        path = large_data / entry["file"]
        if path.suffix not in {".zst", ".bin"} or "zst" not in entry:
            continue
        data = path.read_bytes()
        try:
            found = b"".join(
                inflate(lambda o, n, d=data: d[o : o + n], len(data), kind="zstd", shard="s")
            )
        except ShardError as error:
            if entry["expect"] == "ok":
                wrong.append(f"{entry['file']}: {error}")
            continue
        told = entry["zst"]
        raw = path.with_suffix("")
        if entry["expect"] not in {"ok", "any"}:
            wrong.append(f"{entry['file']}: taken, though it is broken")
        elif entry["expect"] == "ok" and len(found) != told["cli_bytes"]:
            wrong.append(f"{entry['file']}: {len(found):,} bytes")
        elif told.get("raw_ok") and raw.exists() and raw.read_bytes() != found:
            wrong.append(f"{entry['file']}: other bytes")
    assert not wrong, "\n".join(wrong)


def test_every_seekable_file_reads_by_position(large_data):
    """Files of other writers give by position what they give as a stream, or an error of ours."""
    read = 0
    for path in sorted((large_data / "zst" / "seekable").iterdir()):
        data = path.read_bytes()
        inner = Memory(data)
        try:
            table = read_table(inner, "s")
            if table is None or not table.size:
                continue
            shard = CompressedShard(inner, table, name="s")
            found = whole(shard)
        except ShardError:
            assert path.suffix == ".bin"
            continue
        stream = inflate(lambda o, n, d=data: d[o : o + n], len(data), kind="zstd", shard="s")
        assert found == b"".join(stream), path.name
        read += 1
    assert read


def test_every_compressed_tar_gives_what_its_manifest_says(large_data, tmp_path):
    """Those that Python's tarfile reads have as many members here; lz4 and lzip are refused."""
    wrong, read = [], 0
    for entry in entries(large_data, "tars/"):
        path = Path(large_data / entry["file"])
        if path.suffix == ".tar":
            continue
        try:
            with open_shard(path, folder=tmp_path) as shard:
                members = list(walk(shard.read_at, shard.size, shard=path.name))
        except FastfeedError as error:
            # One has no end blocks (C01), which most programs read as if it were whole.
            if entry["expect"] == "ok" and "no end blocks" not in str(error):
                wrong.append(f"{entry['file']}: {error}")
            continue
        read += 1
        if entry["expect"] in {"error", "unsupported"}:
            wrong.append(f"{entry['file']}: taken")
        elif entry["tar"].get("py") == "ok" and len(members) != entry["tar"]["members"]:
            wrong.append(f"{entry['file']}: {len(members)} members")
    assert read > 10
    assert not wrong, "\n".join(wrong)


# Remote shards


@pytest.mark.parametrize("kind", ["seekable", "gzip"])
def test_remote_shards(tmp_path, kind, caplog):
    """By position or inflated, from any storage; what signs a URL is never shown."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    files.pipe_file("/compressed/a.tar.zst", STREAMS[kind])
    try:
        with caplog.at_level(logging.WARNING, "fastfeed"):
            for _ in range(2):
                with open_shard("memory://compressed/a.tar.zst", folder=tmp_path) as shard:
                    assert isinstance(shard, CompressedShard) is (kind == "seekable")
                    assert whole(shard) == TAR
    finally:
        files.rm("/compressed", recursive=True)
    assert caplog.text.count("is inflated once") == (kind == "gzip")
    data = STREAMS["gzip"]
    for signature in ("one", "two"):
        wrap(
            Memory(data), f"https://user:pw@host/a.tgz?X-Amz-Signature={signature}", folder=tmp_path
        )
    assert "X-Amz" not in caplog.text
    assert "pw" not in caplog.text
    assert len(list((tmp_path / "inflated").iterdir())) == (2 if kind == "gzip" else 1)
