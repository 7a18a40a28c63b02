"""Compressed shards without a table: every frame of them is read, and they are inflated once."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
import lzma
import os
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compressed_files as files
from fastfeed.errors import FastfeedError, ShardError, StorageError, TarError
from fastfeed.shardfile.tar import walk
from fastfeed.storage.compressed import CompressedShard, open_shard, wrap
from fastfeed.storage.inflated import forget_damage
from fastfeed.storage.streams import inflate

HALF = len(files.TAR) // 2
STREAMS = {
    "one frame": files.seekable(files.TAR, table=False),
    "four frames": files.seekable(*files.pieces(files.TAR, 100, 700, HALF), table=False),
    "seekable": files.seekable(*files.pieces(files.TAR, 512, 5000, HALF)),
    "skippable first": files.skippable(0, 0) + files.seekable(files.TAR, table=False),
    "skippable last": files.seekable(files.TAR, table=False) + files.skippable(15, 1 << 20),
    "skippable middle": files.seekable(files.TAR[:700], table=False)
    + files.skippable(7, 0)
    + files.skippable(8, 1 << 20)
    + files.seekable(files.TAR[700:], table=False),
    "empty frame": files.seekable(files.TAR[:700], b"", files.TAR[700:], table=False),
    "empty frame in the table": files.seekable(files.TAR[:700], b"", files.TAR[700:]),
    "without sizes": files.seekable(
        files.TAR[:700], files.TAR[700:], table=False, size=False, checksum=False
    ),
    "gzip": gzip.compress(files.TAR),
    "two gzip members": gzip.compress(files.TAR[:700]) + gzip.compress(files.TAR[700:]),
    "gzip and padding": gzip.compress(files.TAR) + bytes(512),
    "bzip2": bz2.compress(files.TAR[:700]) + bz2.compress(files.TAR[700:]),
    "xz": lzma.compress(files.TAR),
}


@pytest.mark.parametrize("name", STREAMS)
def test_c12_every_frame_is_read(opened, name, caplog):
    """However it is compressed, and wherever frames end, the shard holds the same tar."""
    with caplog.at_level(logging.WARNING, "fastfeed"):
        shard = opened(STREAMS[name])
    assert files.whole(shard) == files.TAR
    assert files.names(shard) == [f"{n:03d}.txt" for n in range(12)]
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
    assert b"".join(found) == files.TAR


def cuts():
    """Three frames cut near every boundary and anywhere, or followed by something."""
    file = files.seekable(*files.pieces(files.TAR, 700, HALF), table=False)
    first, second = (
        len(files.seekable(part, table=False)) for part in files.pieces(files.TAR, 700, HALF)[:2]
    )
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
    yield "a table cut short", files.seekable(*files.pieces(files.TAR, 700))[:-1]
    zipped = gzip.compress(files.TAR)
    yield "gzip cut", zipped[:-1]
    yield "gzip and rubbish", zipped + b"x"
    yield "gzip, padding and rubbish", zipped + bytes(100) + b"x"
    yield "bzip2 cut", bz2.compress(files.TAR)[:-1]
    yield "bzip2 and rubbish", bz2.compress(files.TAR) + b"x"
    yield "xz cut", lzma.compress(files.TAR)[:-1]


@pytest.mark.parametrize(("name", "data"), list(cuts()))
def test_c13_cut_damaged_or_followed(opened, tmp_path, name, data):
    """An error that names the shard, at the latest from the tar's own end; nothing is left over."""
    with pytest.raises((ShardError, StorageError)) as caught:
        files.names(opened(data))
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
        assert files.whole(opened(data)) == files.TAR
    inflated = list((tmp_path / "cache" / "inflated").iterdir())
    assert {path.read_bytes() for path in inflated} == {files.TAR}
    before = len(inflated)
    with caplog.at_level(logging.WARNING, "fastfeed"):
        caplog.clear()
        open_shard(tmp_path / "a.tar.zst", folder=tmp_path / "cache").close()
    assert caplog.text == ""
    assert len(list((tmp_path / "cache" / "inflated").iterdir())) == before


def test_a_damaged_one_is_found_out_once(opened, tmp_path, monkeypatch, caplog):
    """Each batch meets the same error and one warning is enough; another file is tried anew."""
    tried = []

    def counting(*arguments, **options):
        tried.append(options["shard"])
        return inflate(*arguments, **options)

    monkeypatch.setattr("fastfeed.storage.inflated.inflate", counting)
    path = tmp_path / "a.tar.zst"
    path.write_bytes(STREAMS["one frame"][:-9])
    with caplog.at_level(logging.WARNING, "fastfeed"):
        for _ in range(3):
            with pytest.raises(ShardError, match="is cut"):
                open_shard(path, folder=tmp_path / "cache")
        assert len(tried) == 1
        forget_damage(str(path))
        with pytest.raises(ShardError, match="is cut"):
            open_shard(path, folder=tmp_path / "cache")
        assert len(tried) == 2
        assert files.whole(opened(STREAMS["one frame"])) == files.TAR
    assert caplog.text.count("is inflated once") == 1


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
        inner = files.Memory(files.tar_of((name, b"x")))
        assert wrap(inner, "s", folder=tmp_path) is inner
    inner = files.Memory(b"")
    assert wrap(inner, "s", folder=tmp_path) is inner


def test_a_shard_that_fails_is_closed(tmp_path, leak_gauge):
    """An error at opening leaves no descriptor behind."""
    path = tmp_path / "a.tar.zst"
    path.write_bytes(STREAMS["one frame"][:-9])
    with pytest.raises(ShardError):
        open_shard(path, folder=tmp_path / "cache")
    path.write_bytes(STREAMS["gzip"])
    with open_shard(path, folder=tmp_path / "cache") as shard:
        assert files.whole(shard) == files.TAR


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
            files.names(shard)
            assert isinstance(files.whole(shard), bytes)
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
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/compressed/a.tar.zst", STREAMS[kind])
    try:
        with caplog.at_level(logging.WARNING, "fastfeed"):
            for _ in range(2):
                with open_shard("memory://compressed/a.tar.zst", folder=tmp_path) as shard:
                    assert isinstance(shard, CompressedShard) is (kind == "seekable")
                    assert files.whole(shard) == files.TAR
    finally:
        memory.rm("/compressed", recursive=True)
    assert caplog.text.count("is inflated once") == (kind == "gzip")
    data = STREAMS["gzip"]
    for signature in ("one", "two"):
        wrap(
            files.Memory(data),
            f"https://user:pw@host/a.tgz?X-Amz-Signature={signature}",
            folder=tmp_path,
        )
    assert "X-Amz" not in caplog.text
    assert "pw" not in caplog.text
    assert len(list((tmp_path / "inflated").iterdir())) == (2 if kind == "gzip" else 1)
