"""C01, C02, C05, C06, C11: what `verify` proves, and that every fault is named."""

from __future__ import annotations

import json
import shutil

import pytest

from fastfeed.shardfile.index import load_index


@pytest.fixture
def dataset(animals, tmp_path, built):
    """Three shards and their documents."""
    built("build", animals, tmp_path / "out", "--shard-size", "16KiB", "--energon", "--jobs", 1)
    assert (tmp_path / "out/train-000002.tar").exists()
    return tmp_path / "out"


def test_whole(dataset, run, leak_gauge):
    """A data set as it was built is proven whole, with several jobs as well."""
    for jobs in (1, 2):
        code, out, err = run("verify", dataset, "--jobs", jobs)
        assert (code, err) == (0, "")
        assert "10 samples in" in out
        assert "whole" in out


@pytest.fixture
def eight(pack_tar):
    """A foreign shard of eight members of 700 bytes: each takes 1,536 bytes."""
    return pack_tar("eight.tar", *((f"{n}.bin", bytes([65 + n]) * 700) for n in range(8)))


MANGLED = {
    "cut at a member": (lambda data: data[: 4 * 1536], 4 * 1536),
    "cut a byte into a header": (lambda data: data[: 4 * 1536 + 1], 4 * 1536),
    "cut inside a header": (lambda data: data[: 4 * 1536 + 300], 4 * 1536),
    "header zeroed": (lambda data: data[: 4 * 1536] + bytes(512) + data[4 * 1536 + 512 :], None),
    "checksum changed": (
        lambda data: data[: 4 * 1536 + 150] + b"9" + data[4 * 1536 + 151 :],
        4 * 1536,
    ),
    "cut inside data": (lambda data: data[: 4 * 1536 + 900], 4 * 1536),
    "no end blocks": (lambda data: data[: 8 * 1536], 8 * 1536),
    "one end block": (lambda data: data[: 8 * 1536 + 512], 8 * 1536),
    "junk after the end": (lambda data: data[:-1] + b"x", None),
}


@pytest.mark.parametrize("how", MANGLED)
def test_c01_damage_is_found(eight, run, how):
    """Every way to cut or break a tar fails, with shard, offset and the last good member."""
    mangle, offset = MANGLED[how]
    eight.write_bytes(mangle(eight.read_bytes()))
    code, out, err = run("verify", eight)
    assert code == 1
    assert "eight.tar" in err
    assert "1 problems" in out
    if offset is not None:
        assert f"offset {offset:,}" in err
        assert f"last good: '{offset // 1536 - 1}.bin'" in err


def test_foreign_shard_says_what_is_not_proven(eight, run, built):
    """Without an index only the structure is checked, and a warning says it; then all is."""
    code, _, err = run("verify", eight)
    assert code == 0
    assert "only the structure" in err
    built("index", eight)
    assert run("verify", eight)[2] == ""
    data = bytearray(eight.read_bytes())
    data[3 * 1536 + 600] ^= 1
    eight.write_bytes(data)
    code, _, err = run("verify", eight)
    assert code == 1
    for word in ("not those that were written", "key '3'", "field 'bin'", f"offset {5120:,}"):
        assert word in err


@pytest.mark.parametrize("at", [0, 600, -2000])
def test_flipped_bit(dataset, run, at):
    """One bit anywhere in a shard is found."""
    shard = dataset / "train-000001.tar"
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "train-000001.tar" in err
    assert "train-000000" not in err


def test_shard_missing_extra_or_replaced(dataset, run):
    """The manifest must name just what is there."""
    shutil.copy(dataset / "train-000000.tar", dataset / "extra-000000.tar")
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "not in the manifest" in err
    assert "extra-000000.tar" in err
    (dataset / "extra-000000.tar").unlink()
    (dataset / "train-000001.tar").rename(dataset / "away")
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "train-000001.tar" in err
    shutil.copy(dataset / "train-000000.tar", dataset / "train-000001.tar")
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "digest" in err


@pytest.mark.parametrize(
    "name",
    [
        "train-000001.ffx",
        "train-000001.idx",
        "train-000001.tar.idx",
        "shardindex.json",
        ".nv-meta/.info.json",
        "dataset.json",
    ],
)
def test_side_files_are_checked(dataset, run, name):
    """Each index and document is compared with what it must be."""
    data = (dataset / name).read_bytes()
    (dataset / name).write_bytes(data.replace(b"train-000001", b"train-000007") + b" ")
    code, _, err = run("verify", dataset)
    assert code == 1
    # A manifest that names another shard shows by that shard, which isn't there.
    expected = "train-000007.tar" if name == "dataset.json" else name.removesuffix(".ffx")
    assert expected in err


def test_index_of_another_shard(dataset, run):
    """A valid index beside the wrong shard is found; a missing one as well."""
    shutil.copy(dataset / "train-000000.ffx", dataset / "train-000001.ffx")
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "index" in err
    (dataset / "train-000001.ffx").unlink()
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "the index is missing" in err


def test_wrong_counts_in_the_manifest(dataset, run):
    """Counts are compared, never believed."""
    document = json.loads((dataset / "dataset.json").read_text())
    document["fields"]["jpg"] -= 1
    (dataset / "dataset.json").write_text(json.dumps(document))
    code, _, err = run("verify", dataset)
    assert code == 1
    assert "counts fields differently" in err


def test_c02_halves_of_a_sample(pack_tar, run, built):
    """Members out of order are an error that names the key; repacked they are two samples."""
    parts = (("0.a", b"0a"), ("1.a", b"1a"), ("0.b", b"0b"), ("1.b", b"1b"))
    shard = pack_tar("bad/s.tar", *parts)
    for command in ("verify", "index"):
        code, _, err = run(command, shard)
        assert code == 1
        assert "key '0'" in err
    source = shard.parent / "files"
    source.mkdir()
    for name, data in parts:
        (source / name).write_bytes(data)
    built("build", source, shard.parent / "out", "--layout", "files")
    assert built("ls", shard.parent / "out").splitlines() == [
        "train-000000.tar\t0\ta:2 b:2",
        "train-000000.tar\t1\ta:2 b:2",
    ]


def test_c06_duplicates(pack_tar, run):
    """A field twice in a sample is an error; the same name in two shards is two samples."""
    twice = pack_tar("twice.tar", ("a.jpg", b"1"), ("a.json", b"2"), ("a.jpg", b"3"))
    code, _, err = run("verify", twice)
    assert code == 1
    assert "twice" in err
    case = pack_tar("case.tar", ("A.jpg", b"1"), ("A.JPG", b"2"))
    assert run("verify", case)[0] == 1
    for name in ("two/x.tar", "two/y.tar"):
        folder = pack_tar(name, ("img.jpg", b"1")).parent
    code, out, _ = run("verify", folder)
    assert code == 0
    assert "2 samples in 2 shards" in out


def test_c11_fields_that_are_missing(dataset, run):
    """The message says how many samples have the field, and which fields there are."""
    code, _, err = run("verify", dataset, "--fields", "jpg,jpeg")
    assert code == 1
    assert "0 of 10 samples have the field 'jpeg'" in err
    assert "jpg (10)" in err
    assert "json (10)" in err


def test_c03_telltale_of_dots_in_keys(pack_tar, run):
    """Many samples with a single field are warned of."""
    members = [(f"{n}.jpg", b"1") for n in range(10)] + [("x.jpg", b"1"), ("x.json", b"{}")]
    code, _, err = run("verify", pack_tar("s.tar", *members))
    assert code == 0
    assert "10 of 11 samples have one field only" in err


def test_decode(make_tree, photos, tmp_path, run, built):
    """Pictures, JSON and numbers are decoded on demand; the bad ones are named."""
    whole = photos[0].read_bytes()
    cut = whole[: len(whole) // 2]
    ended = cut + b"\xff\xd9"  # Pillow fills this one up and says nothing
    tree = make_tree(
        {"a/good.jpg": whole, "a/cut.jpg": cut, "a/ended.jpg": ended, "a/text.png": b"no picture"}
    )
    (tree / "a/cut.json").write_text("{")
    built("build", tree, tmp_path / "out")
    assert run("verify", tmp_path / "out")[0] == 0
    code, out, err = run("verify", tmp_path / "out", "--decode")
    assert code == 1
    assert "4 problems" in out
    assert "this is no picture of a kind that Pillow knows" in err
    assert "0x" not in err
    assert "key 'a/cut', field 'jpg'" in err
    assert "key 'a/ended', field 'jpg'" in err
    assert "key 'a/cut', field 'json'" in err


def test_verify_nothing(tmp_path, run):
    """An empty folder, and one that isn't there, prove nothing."""
    assert run("verify", tmp_path)[0] == 2
    assert run("verify", tmp_path / "gone.tar")[0] == 1


def test_index_of_a_folder_writes_the_manifest(pack_tar, run, built):
    """Foreign shards become a data set; naming one of its shards alone is then refused."""
    folder = pack_tar("set/a.tar", ("1.jpg", b"1"), ("1.cls", b"2")).parent
    pack_tar("set/b.tar", ("./2.jpg", b"1"), ("./2.cls", b"2"))
    built("index", folder, "--jobs", 2)
    assert (folder / "dataset.json").exists()
    assert load_index(folder / "a.ffx").cells[..., 3].all()
    assert run("verify", folder)[0] == 0
    assert run("index", folder / "a.tar")[0] == 2
    pack_tar("set/c.tar", ("3.jpg", b"1"))
    assert run("verify", folder)[0] == 1
    built("index", folder)
    assert run("verify", folder)[0] == 0


def test_shards_of_the_test_data(large_data, tmp_path, run):
    """Every shard of the corpus is proven whole, or refused with an error of ours."""
    for tar in sorted((large_data / "tars").rglob("*.tar")):
        copy = tmp_path / tar.name
        shutil.copy(tar, copy)
        code, _, err = run("verify", copy)
        assert code in {0, 1}
        assert code == 0 or tar.name in err
