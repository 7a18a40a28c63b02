"""Several data sets into one: keys stay unique, and class numbers are looked at."""

from __future__ import annotations

import pytest


@pytest.fixture
def data_sets(make_tree, tmp_path, built):
    """Two data sets whose keys are the same, `one` plain and `two` compressed."""
    for name in ("one", "two"):
        files = {f"{n:02d}.txt": f"{name} {n}".encode() for n in range(6)}
        more = ("--compress", "zstd") if name == "two" else ()
        built(
            *("build", make_tree(files, f"src-{name}"), tmp_path / name, "--layout", "files"),
            *("--shard-size", "5KiB", "--quiet", *more),
        )
    return tmp_path / "one", tmp_path / "two"


def test_keys_that_both_have(data_sets, tmp_path, run):
    """They are refused before anything is written, with the number, one key and both shards."""
    code, _, err = run("merge", *data_sets, tmp_path / "out")
    assert code == 2
    assert "6 keys are there twice" in err
    assert "one/train-00000" in err
    assert "two/train-00000" in err
    assert "key '0" in err
    assert "--prefix" in err
    assert not (tmp_path / "out").exists()


def test_prefixes(data_sets, tmp_path, run, built, samples_of):
    """A prefix for each source sets keys apart; shards stay cut as they were."""
    built("merge", *data_sets, tmp_path / "out", "--prefix", "one/,", "--quiet")
    samples = samples_of(tmp_path / "out")
    assert samples["one/03"] == {"txt": b"one 3"}
    assert samples["03"] == {"txt": b"two 3"}
    assert len(samples) == 12
    shards = [len(list(source.glob("*.ffx"))) for source in data_sets]
    assert len(list((tmp_path / "out").glob("*.tar"))) == sum(shards)
    code, out, _ = run("verify", tmp_path / "out")
    assert (code, "whole" in out) == (0, True)


def test_prefixes_that_cannot_be(data_sets, tmp_path, run):
    """One for each source, and none that makes keys which readers misread."""
    for prefix, words in (
        ("a/", "1 prefixes for 2"),
        ("../,b/", "misread"),
        ("a.b-,b/", "misread"),
    ):
        code, _, err = run("merge", *data_sets, tmp_path / "out", "--prefix", prefix)
        assert code == 2
        assert words in err
    assert not (tmp_path / "out").exists()


def test_new_cuts_and_a_dry_run(data_sets, tmp_path, built, samples_of):
    """With --shard-size all samples are cut anew, and a dry run says how."""
    options = ("--prefix", "a-,b-", "--shard-size", "1MiB")
    out = built("merge", *data_sets, tmp_path / "out", *options, "--dry-run")
    assert out.startswith("train-000000.tar\t12 samples\t")
    built("merge", *data_sets, tmp_path / "out", *options, "--quiet")
    assert len(samples_of(tmp_path / "out" / "train-000000.tar")) == 12


@pytest.mark.parametrize("same", [True, False])
def test_names_of_classes(make_tree, tmp_path, built, same):
    """They are kept where the sources agree; where not, the summary warns of `cls`."""
    for name, classes in (("one", "ab"), ("two", "ab" if same else "ac")):
        files = {f"{kind}/{name}.txt": b"x" for kind in classes}
        built("build", make_tree(files, f"src-{name}"), tmp_path / name, "--quiet")
    out = built("merge", tmp_path / "one", tmp_path / "two", tmp_path / "out")
    assert ("number classes differently" in out) is not same
    assert (tmp_path / "out" / "classes.txt").exists() is same
