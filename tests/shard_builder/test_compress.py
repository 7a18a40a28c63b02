"""Zstd shards: what is written, that other programs read it, and that nothing depends on chance."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import tarfile
import warnings
from itertools import pairwise

import numpy as np
import pytest
import zstandard

import fastfeed as ff
from fastfeed.errors import OptionError
from fastfeed.reading.indexing import find_index
from fastfeed.shardfile.header import padded
from fastfeed.shardfile.manifest import load_manifest
from fastfeed.storage.compressed import CompressedShard, open_shard, read_table
from fastfeed.storage.local import LocalFile
from fastfeed_shard.frames import Compression, parse_compression
from fastfeed_shard.packing import ShardFile

SMALL = ("--shard-size", "200KiB", "--frame", "16KiB", "--quiet")
ZSTD = ("--compress", "zstd", *SMALL)


@pytest.fixture
def source(make_tree):
    """Files that shrink, files that do not, and one larger than a frame: three shards."""
    draw = random.Random(0)
    files = {}
    for n in range(60):
        files[f"{'ab'[n % 2]}/{n:03d}.txt"] = b"the quick brown fox %d " % n * (40 * n + 1)
        files[f"{'ab'[n % 2]}/{n:03d}.bin"] = draw.randbytes(300 * (n % 7))
    files["a/large.bin"] = draw.randbytes(40_000)
    return make_tree(files)


@pytest.fixture
def shards(source, tmp_path, built):
    """The compressed data set."""
    built("build", source, tmp_path / "out", *ZSTD)
    return tmp_path / "out"


def manifest_of(folder):
    return load_manifest(lambda name: (folder / name).read_bytes())


def frames_of(path):
    """Return the table of a shard's frames."""
    with LocalFile(str(path)) as file:
        return read_table(file, path.name)


def program(name, *arguments, data=None):
    """Run another program, or skip without it; returns its output."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [name, *map(str, arguments)], capture_output=True, input=data, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tar_inside_is_the_plain_shard(source, shards, tmp_path, built, contents_of):
    """Decompressed, shards and their indexes are byte for byte those of a plain build."""
    built("build", source, tmp_path / "plain", *SMALL[:2], "--quiet")
    plain, packed = contents_of(tmp_path / "plain"), contents_of(shards)
    tars = [name for name in plain if name.endswith(".tar")]
    assert len(tars) > 2
    for name in tars:
        stem = name.removesuffix(".tar")
        tar = zstandard.ZstdDecompressor().stream_reader(
            packed[f"{name}.zst"], read_across_frames=True
        )
        assert tar.read() == plain[name]
        assert packed[f"{name}.zst.ffx"] == plain[f"{stem}.ffx"]
        assert packed[f"{stem}.idx"] == plain[f"{stem}.idx"]
        assert packed[f"{name}.idx"] == plain[f"{name}.idx"]
    assert "shardindex.json" not in packed  # wids reads plain tars only
    for entry, other in zip(
        manifest_of(shards).shards, manifest_of(tmp_path / "plain").shards, strict=True
    ):
        assert (entry.bytes, entry.samples) == (other.bytes, other.samples)
        assert (entry.compression, entry.name) == ("zstd", f"{other.name}.zst")
        assert entry.file_bytes == len(packed[entry.name])


def test_a_sample_that_fits_is_in_one_frame(shards):
    """Frames end where samples end; one that is larger than a frame has frames of its own."""
    for entry in manifest_of(shards).shards:
        path = shards / entry.name
        starts = frames_of(path).starts
        with open_shard(path) as storage:
            assert isinstance(storage, CompressedShard)
            assert storage.size == starts[-1] == entry.bytes
            index = find_index(str(path), storage, cache=None)
        sizes = [b - a for a, b in pairwise(starts)]
        assert max(sizes) <= 16 << 10
        for cells in index.cells:
            there = cells[cells[:, 0] != 2**64 - 1].astype(int)
            first = there[:, 0].min()
            last = max(int(offset) + padded(int(size)) for _, offset, size, _ in there.tolist())
            number = np.searchsorted(starts, first, side="right") - 1
            if last - first > 16 << 10:
                assert starts[number] == first
            else:
                assert last <= starts[number + 1]


def test_same_bytes_whatever_the_jobs(source, shards, tmp_path, built, contents_of):
    """One process or three; and a shard once more, by the writer of Python."""
    built("build", source, tmp_path / "again", *ZSTD, "--jobs", 3)
    assert contents_of(tmp_path / "again") == contents_of(shards)
    built("build", source, tmp_path / "other", *ZSTD, "--level", 19)
    assert contents_of(tmp_path / "other") != contents_of(shards)


def test_what_does_not_shrink_is_stored_as_it_is(tmp_path):
    """Reading it is then copying: the frame holds the very bytes, and a few around them."""
    data = random.Random(1).randbytes(500_000)
    with ShardFile(tmp_path / "t-000000.tar.zst", sync=False, compress=Compression()) as shard:
        shard.begin(len(data) + 512)
        shard.add("a.jpg", len(data), io.BytesIO(data).readinto)
        packed = shard.finish()
    stored = (tmp_path / "t-000000.tar.zst").read_bytes()
    assert data[140_000:250_000] in stored
    assert packed.entry.file_bytes < packed.entry.bytes + 100


def test_verify_and_index(shards, run, built, contents_of, tmp_path):
    """The data set is proven whole, and an index made anew is the one that was written."""
    assert run("verify", shards)[0] == 0
    before = contents_of(shards)
    for path in (*shards.glob("*.ffx"), shards / "dataset.json"):
        path.unlink()
    built("index", shards)
    assert contents_of(shards) == before
    copy = tmp_path / "foreign"
    copy.mkdir()
    with tarfile.open(copy / "a.tar", "w") as tar:
        tar.add(__file__, "a.py")
    packed = zstandard.ZstdCompressor().compress((copy / "a.tar").read_bytes())
    (copy / "a.tar.zst").write_bytes(packed)
    (copy / "a.tar").unlink()
    built("index", copy)
    assert manifest_of(copy).shards[0].file_bytes == len(packed)
    assert run("verify", copy)[0] == 0


def test_c13_verify_finds_any_damage(shards, run):
    """A flipped byte anywhere, a cut at any place, and a byte too many, all fail."""
    path = min(shards.glob("*.tar.zst"))
    whole = path.read_bytes()
    draw = random.Random(2)
    places = [draw.randrange(len(whole)) for _ in range(6)]
    damaged = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in places]
    damaged += [whole[:at] for at in (*places[:3], len(whole) - 1)]
    damaged += [whole + b"\0"]
    for data in damaged:
        path.write_bytes(data)
        code, _, err = run("verify", shards, "--jobs", 1)
        assert code == 1
        assert path.name in err
    path.write_bytes(whole)
    assert run("verify", shards)[0] == 0


def test_a_shard_too_many_is_noticed(shards, run):
    """Compressed ones are looked for as well."""
    shutil.copy(min(shards.glob("*.tar.zst")), shards / "train-000099.tar.zst")
    code, _, err = run("verify", shards)
    assert code == 1
    assert "train-000099.tar.zst" in err


def test_looking_into_them(shards, source, built, tmp_path):
    """`ls`, `cat` and `extract` take them like plain ones."""
    lines = built("ls", shards).splitlines()
    assert len(lines) == 61
    built("extract", shards, tmp_path / "files")
    for path in source.rglob("*.*"):
        assert (tmp_path / "files" / path.relative_to(source)).read_bytes() == path.read_bytes()
    assert built("cat", shards, "b/001.txt").encode() == (source / "b/001.txt").read_bytes()


def test_resume_wants_the_same_compression(source, shards, run, tmp_path, contents_of):
    """A build goes on with what is whole, and never mixes levels or kinds."""
    before = contents_of(shards)
    code, out, _ = run("build", source, shards, *ZSTD, "--resume")
    assert (code, "complete already" in out) == (0, True)
    assert run("build", source, shards, *SMALL, "--resume")[0] == 2
    assert run("build", source, tmp_path / "x", *ZSTD, "--energon")[0] == 2
    assert contents_of(shards) == before


@pytest.mark.parametrize("attempt", range(5))
def test_c05_killed_at_any_point(  # noqa: PLR0917 - fixtures
    source, shards, run, run_killed, tmp_path, contents_of, attempt
):
    """No half shard has its name after SIGKILL, and --resume gives the bytes of a whole build."""
    out = tmp_path / "killed"
    at = random.Random(attempt).randrange(1, 60)
    done = run_killed(at, "build", source, out, *ZSTD, "--jobs", "1")
    assert done.returncode in {0, -signal.SIGKILL}
    if out.exists():
        for path in out.glob("*.tar.zst"):
            assert path.read_bytes() == (shards / path.name).read_bytes()
    assert run("build", source, out, *ZSTD, "--resume")[0] == 0
    assert contents_of(out) == contents_of(shards)


# Written from Python


def test_the_writer_of_python(tmp_path, run):
    """Samples in, a compressed data set out, whose size is bounded before compression."""
    samples = {f"{n:04d}": b"text %d " % n * 200 for n in range(50)}
    with ff.ShardWriter(tmp_path / "out", shard_size="20KiB", compress="zstd:5") as writer:
        for key, data in samples.items():
            writer.write({"__key__": key, "txt": data})
    assert run("verify", tmp_path / "out")[0] == 0
    manifest = manifest_of(tmp_path / "out")
    assert all(entry.file_bytes < entry.bytes <= 20 << 10 for entry in manifest.shards)
    found = {}
    for entry in manifest.shards:
        with open_shard(tmp_path / "out" / entry.name) as storage:
            data = storage.read_at(0, storage.size)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found |= {m.name.removesuffix(".txt"): tar.extractfile(m).read() for m in tar}
    assert found == samples


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "gzip"}, {"kind": "zstd:fast"}, {"kind": "zstd:99"}, {"kind": ""},
        {"kind": "zstd", "level": 23}, {"kind": "zstd", "frame": "1KiB"},
        {"kind": "zstd", "frame": "1GiB"}, {"kind": None, "level": 3},
    ],
)  # fmt: skip
def test_compressions_that_are_none(options):
    """What cannot be done is said before anything is written."""
    with pytest.raises(OptionError):
        parse_compression(**options)


def test_energon_is_refused(tmp_path):
    """It reads plain tars only."""
    with pytest.raises(OptionError, match="Energon"):
        ff.ShardWriter(tmp_path / "out", compress="zstd", energon=True)


# Other programs


def test_zstd_reads_them(shards, tmp_path):
    """The command tests and decompresses them, and what it makes is the tar."""
    path = min(shards.glob("*.tar.zst"))
    program("zstd", "-q", "-t", path)
    with open_shard(path) as storage:
        assert program("zstd", "-d", "-c", path) == storage.read_at(0, storage.size)


def test_tar_reads_them(shards, source, tmp_path):
    """GNU tar lists and extracts them."""
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    (tmp_path / "files").mkdir()
    names = []
    for path in sorted(shards.glob("*.tar.zst")):
        names += program("tar", "--zstd", "-tf", path).split()
        program("tar", "--zstd", "-xf", path, "-C", tmp_path / "files")
    assert len(names) == 61 + 60 + 61  # bin, txt, cls
    for path in source.rglob("*.*"):
        assert (tmp_path / "files" / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_pyzstd_reads_them_by_position(shards):
    """Another reader of the seekable format finds the same bytes at the same places."""
    pyzstd = pytest.importorskip("pyzstd")
    path = min(shards.glob("*.tar.zst"))
    draw = random.Random(3)
    with open_shard(path) as storage, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pyzstd.SeekableZstdFile(str(path), "r") as other:
            for _ in range(50):
                offset, size = draw.randrange(storage.size), draw.randrange(40_000)
                other.seek(offset)
                assert other.read(size) == storage.read_at(offset, size)


def test_webdataset_reads_them(shards, source):
    """Through `zstd -d` in a pipe, which is how it reads any compressed shard."""
    webdataset = pytest.importorskip("webdataset")
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    urls = [f"pipe:zstd -dcq {path}" for path in sorted(shards.glob("*.tar.zst"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {s["__key__"]: s for s in webdataset.WebDataset(urls, shardshuffle=False)}
    assert len(found) == 61
    assert found["a/large"]["bin"] == (source / "a/large.bin").read_bytes()
    assert found["b/001"]["txt"] == (source / "b/001.txt").read_bytes()


def test_pyzstd_files_are_read(tmp_path):
    """What another writer of the seekable format makes is read by position here."""
    pyzstd = pytest.importorskip("pyzstd")
    data = os.urandom(1000) * 50
    path = tmp_path / "a.tar.zst"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pyzstd.SeekableZstdFile(str(path), "w", max_frame_content_size=7000) as file:
            file.write(data)
    with open_shard(path) as storage:
        assert isinstance(storage, CompressedShard)
        assert storage.read_at(6990, 20_000) == data[6990:26_990]
