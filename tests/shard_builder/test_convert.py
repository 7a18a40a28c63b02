"""Shards into shards: plain to zstd and back, tars of other tools, and what is checked then."""

from __future__ import annotations

import gzip
import os
import random
import signal
import tarfile

import pytest
import webdataset

from fastfeed_shard.main import main

SMALL = ("--shard-size", "20KiB", "--quiet")


@pytest.fixture
def plain(make_tree, tmp_path, built):
    """A data set of forty samples in two classes, in plain tars: several shards."""
    words = [b"lorem", b"ipsum", b"dolor", b"sit", b"amet"]
    draw = random.Random(0)
    files = {
        f"{'ab'[n % 2]}/{n:03d}.txt": b" ".join(draw.choices(words, k=500 + 20 * n))
        for n in range(40)
    }
    built("build", make_tree(files), tmp_path / "plain", *SMALL)
    return tmp_path / "plain"


def test_plain_to_zstd_and_back(plain, tmp_path, built, contents_of, leak_gauge):
    """The way back gives the same bytes, documents and class names included."""
    built("convert", plain, tmp_path / "zstd", "--compress", "zstd", "--quiet")
    names = set(contents_of(tmp_path / "zstd"))
    assert "train-000000.tar.zst" in names
    assert "classes.txt" in names
    assert not any(name.endswith(".tar") for name in names)
    packed = sum(path.stat().st_size for path in (tmp_path / "zstd").glob("*.zst"))
    assert packed < 0.7 * sum(path.stat().st_size for path in plain.glob("*.tar"))
    assert main(["verify", str(tmp_path / "zstd"), "--quiet"]) == 0
    built("convert", tmp_path / "zstd", tmp_path / "back", "--quiet")
    assert contents_of(tmp_path / "back") == contents_of(plain)


def test_the_number_of_jobs_changes_no_byte(plain, tmp_path, built, contents_of):
    """One process or three, the shards and their documents are the same."""
    for jobs in (1, 3):
        built(
            *("convert", plain, tmp_path / str(jobs), "--jobs", jobs),
            *("--compress", "zstd", "--level", "1", "--frame", "8KiB", *SMALL),
        )
    assert contents_of(tmp_path / "1") == contents_of(tmp_path / "3")


def test_shards_of_webdataset(tmp_path, built, samples_of):
    """What webdataset's writer wrote, without indexes, becomes a data set; its tars stay alone."""
    source = tmp_path / "wds"
    source.mkdir()
    with webdataset.ShardWriter(f"{source}/web-%04d.tar", maxcount=4, verbose=0) as writer:
        for number in range(10):
            writer.write({"__key__": f"s/{number:02d}", "txt": f"text {number}", "cls": number})
    before = sorted(os.listdir(source))
    built("convert", source, tmp_path / "out", "--quiet")
    assert sorted(os.listdir(source)) == before
    samples = samples_of(tmp_path / "out")
    assert samples["s/07"] == {"txt": b"text 7", "cls": b"7"}
    assert len(samples) == 10
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3
    pattern = f"{source}/web-{{0000..0001}}.tar"
    built("convert", pattern, tmp_path / "some", "--quiet")
    assert len(samples_of(tmp_path / "some")) == 8


def test_tars_of_every_kind(pack_tar, tmp_path, built, samples_of, monkeypatch):
    """Long names, hard links and gzip: the same samples, in headers that every reader knows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = "x" * 60 + "/" + "y" * 60
    link = tarfile.TarInfo("b.jpg")
    link.type, link.linkname = tarfile.LNKTYPE, "a.jpg"
    members = (("./a.jpg", b"A"), link, ("c.JPG", b"C"), (f"{key}.jpg", b"L"))
    kinds = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    for number, kind in enumerate(kinds):
        path = pack_tar(f"in{number}.tar", *members, tar_format=kind)
        built("convert", path, tmp_path / f"out{number}", "--quiet")
        packed = tmp_path / f"in{number}.tar.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        built("convert", packed, tmp_path / f"gz{number}", "--quiet")
        for out in (f"out{number}", f"gz{number}"):
            assert samples_of(tmp_path / out) == {
                "a": {"jpg": b"A"},
                "b": {"jpg": b"A"},
                "c": {"jpg": b"C"},
                key: {"jpg": b"L"},
            }


def test_names_that_readers_would_misread(pack_tar, tmp_path, run, built, samples_of):
    """They are refused before anything is written, and --rename rewrites keys."""
    path = pack_tar("in.tar", ("class a/1.jpg", b"A"), ("b.jpg", b"B"))
    code, _, err = run("convert", path, tmp_path / "out")
    assert code == 2
    assert "class a/1.jpg" in err
    assert not (tmp_path / "out").exists()
    built("convert", path, tmp_path / "out", "--rename", "--quiet")
    assert samples_of(tmp_path / "out") == {"class%20a/1": {"jpg": b"A"}, "b": {"jpg": b"B"}}


def test_a_source_that_rotted(plain, tmp_path, run):
    """A byte that changed since it was indexed is not given a new checksum: it ends the copy."""
    shard = plain / "train-000001.tar"
    content = bytearray(shard.read_bytes())
    content[512] ^= 1
    shard.write_bytes(content)
    code, _, err = run("convert", plain, tmp_path / "out", *SMALL)
    assert code == 1
    assert "train-000001.tar" in err
    assert "field 'cls'" in err or "field 'txt'" in err
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_an_index_of_another_shard(plain, tmp_path, run):
    """An index that does not fit its shard is an error, not a reason to do without checksums."""
    (plain / "train-000000.ffx").write_bytes((plain / "train-000001.ffx").read_bytes())
    code, _, err = run("convert", plain, tmp_path / "out", *SMALL)
    assert code == 1
    assert "train-000000.tar" in err
    assert "index" in err


def test_a_source_that_is_cut(plain, tmp_path, run):
    """A shard without its end is an error of the data, whatever follows it."""
    shard = plain / "train-000001.tar"
    shard.write_bytes(shard.read_bytes()[:-1024])
    code, _, err = run("convert", plain, tmp_path / "out", *SMALL)
    assert code == 1
    assert "train-000001.tar" in err


@pytest.mark.parametrize("attempt", range(5))
def test_c05_killed_at_any_point(plain, tmp_path, built, contents_of, run_killed, attempt):
    """After SIGKILL each shard that has its name is whole; --resume completes it byte for byte."""
    arguments = ["convert", plain, tmp_path / "out", "--compress", "zstd", *SMALL]
    built(*arguments[:2], tmp_path / "right", *arguments[3:])
    wanted = contents_of(tmp_path / "right")
    at = random.Random(attempt).randrange(3, 60)
    killed = run_killed(at, *arguments, "--jobs", "1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for name, content in contents_of(tmp_path / "out").items():
        if not name.startswith("."):
            assert content == wanted[name]
    built(*arguments, "--resume")
    assert contents_of(tmp_path / "out") == wanted
    built(*arguments, "--resume")  # complete already


def test_resume_refuses_other_work(plain, tmp_path, run, built):
    """A complete data set is recognised by its shards, an unfinished one by its plan."""
    built("convert", plain, tmp_path / "out", "--quiet")
    code, out, _ = run("convert", plain, tmp_path / "out", "--quiet", "--resume")
    assert (code, "complete already" in out) == (0, True)
    code, _, err = run("convert", plain, tmp_path / "out", "--resume", "--shard-size", "1MiB")
    assert code == 2
    assert "other shards" in err
    code, _, err = run("convert", plain, tmp_path / "out")
    assert code == 2
    assert "nothing is overwritten" in err


def test_dry_run_tells_the_truth(plain, tmp_path, built):
    """It lists the shards with samples and bytes, as they then become; and it writes nothing."""
    lines = built("convert", plain, tmp_path / "out", "--dry-run", *SMALL).splitlines()
    assert not (tmp_path / "out").exists()
    built("convert", plain, tmp_path / "out", *SMALL)
    assert len(lines) == len(list((tmp_path / "out").glob("*.tar")))
    for line in lines:
        name, _, nbytes = line.split("\t")
        assert (tmp_path / "out" / name).stat().st_size == int(nbytes.split()[0])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--key", "a"), "columns"),
        (("--level", "3"), "zstd"),
        (("--energon", "--compress", "zstd"), "Energon"),
        (("--name", "a.b"), "a.b"),
        (("--from", "mds"), "index.json"),
    ],
)
def test_calls_that_make_no_sense(plain, tmp_path, run, more, words):
    """Each is refused before anything is written."""
    code, _, err = run("convert", plain, tmp_path / "out", *more)
    assert code in {1, 2}
    assert words in err
    assert not (tmp_path / "out").exists()


def test_a_destination_inside_the_source(plain, run):
    """The shards that are written would be among those that are read."""
    code, _, err = run("convert", plain, plain / "out")
    assert code == 2
    assert "inside" in err
