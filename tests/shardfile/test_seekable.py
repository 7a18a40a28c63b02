"""The table of a seekable zstd file, written and read as pure bytes."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import ShardError
from fastfeed.shardfile.seekable import (
    FOOTER_BYTES,
    Frame,
    content_checksum,
    load_table,
    raw_frame,
    save_table,
    table_bytes,
)

_NUMBER = st.integers(0, 2**32 - 1)


def read(file, size=None):
    """Return the table that ends `file`, whose frames are only counted."""
    size = len(file) if size is None else size
    nbytes = table_bytes(file[-FOOTER_BYTES:], size, shard="s")
    return None if nbytes is None else load_table(file[-nbytes:], size, shard="s")


@given(st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER), max_size=20))
def test_what_is_written_is_read(frames):
    """Offsets are sums of sizes, beyond 4 GiB too, and frames without content are left out."""
    table = save_table([Frame(*frame) for frame in frames])
    stored = sum(frame[0] for frame in frames)
    found = read(table, stored + len(table))
    full = [number for number, frame in enumerate(frames) if frame[1]]
    assert found.size == sum(frame[1] for frame in frames)
    assert found.largest == max((frame[1] for frame in frames), default=0)
    assert found.places == [sum(f[0] for f in frames[:number]) for number in full]
    assert [e - p for p, e in zip(found.places, found.ends, strict=True)] == [
        frames[number][0] for number in full
    ]
    assert found.checksums == [frames[number][2].to_bytes(4, "little") for number in full]


def test_entries_without_checksums():
    """The flag of the footer says how long an entry is."""
    entries = struct.pack("<4I", 10, 100, 20, 200)
    table = struct.pack("<II", 0x184D2A5E, 16 + 9) + entries + struct.pack("<IBI", 2, 3, 0x8F92EAB1)
    found = read(bytes(30) + table)
    assert (list(found.starts), found.places, found.ends) == ([0, 100, 300], [0, 10], [10, 30])
    assert found.checksums is None


@given(st.binary(max_size=100))
def test_other_files_have_no_table(data):
    """Without the magic number at the end there is none, and nothing is raised."""
    assert read(data[:-1] + b"x" if data else data) is None


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (-5, 0x84, "reserved"),
        (-9, 3, "begin"),
        (-6, 0x7F, "cannot hold"),
        (0, 0x5D, "begin"),
        (4, 0, "begin"),
        (8, 11, "are there"),
        (20, 21, "are there"),
    ],
)
def test_a_table_that_lies(offset, value, words):
    """Counts, sizes and flags that do not fit the file are a ShardError with the place."""
    table = bytearray(save_table([Frame(10, 100, 1), Frame(20, 200, 2)]))
    table[offset] = value
    with pytest.raises(ShardError, match=words) as caught:
        read(bytes(30) + table)
    assert caught.value.shard == "s"
    assert caught.value.offset is not None


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=60))
def test_any_footer_is_a_table_or_a_shard_error(count, descriptor, before):
    """Whatever stands before the magic number, nothing else is raised."""
    file = before + struct.pack("<IBI", count, descriptor, 0x8F92EAB1)
    with suppress(ShardError):
        read(file)


@pytest.mark.parametrize("size", [1, 255, 128 << 10, (128 << 10) + 1, 700_000])
def test_raw_frames_are_zstd(size):
    """The library reads them as it reads its own, checksum included; they cost a few bytes."""
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    frame = raw_frame(memoryview(content))
    told = zstandard.get_frame_parameters(frame)
    assert (told.content_size, told.has_checksum) == (size, True)
    assert len(frame) <= size + 3 * (size // (128 << 10) + 1) + 13
    assert zstandard.ZstdDecompressor().decompress(frame) == content
    damaged = bytearray(frame)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(bytes(damaged))


def test_the_checksum_is_that_of_a_frame():
    """What the table holds is what ends a frame with a content checksum."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(b"hello" * 100)
    checksum = content_checksum(memoryview(b"hello" * 100))
    assert checksum.to_bytes(4, "little") == frame[-4:]
