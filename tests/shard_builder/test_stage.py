"""What the command stages is what a data set then reads: under the same names in the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fastfeed as ff
from fastfeed.shardfile.manifest import load_manifest, save_manifest
from fastfeed.storage.answers import HEAD
from fastfeed_bench.link import Link


def without_digests(folder):
    """Let the manifest tell less, as one of another tool may."""
    manifest = load_manifest(lambda name: (folder / name).read_bytes(), shard="manifest")
    shards = tuple(replace(entry, digest=None) for entry in manifest.shards)
    for name, content in save_manifest(replace(manifest, shards=shards)).items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("known_by", ["digest", "size", "tag"])
def test_what_was_staged_is_not_asked_for_again(source, tmp_path, built, monkeypatch, known_by):
    """Whether a manifest tells of shards or the server alone, no byte of data comes twice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "indexes"))
    folder, cache = tmp_path / "built", tmp_path / "cache"
    built("build", source, folder, "--shard-size", "100KiB", "--quiet")
    count = len(list(folder.glob("*.tar")))
    if known_by == "size":
        without_digests(folder)
    elif known_by == "tag":
        (folder / "dataset.json").unlink()
    with Link(str(folder)) as link:
        what = link.url
        if known_by == "tag":
            what += f"/train-{{000000..{count - 1:06d}}}.tar"
        assert f"{count} of {count} shards" in built("stage", what, cache, "--size", "1GB")
        link.take_log()
        data = ff.ShardDataset(what, {"bin": ff.Bytes("bin")}, cache=ff.Cache(cache, "1GB"))
        loader = ff.DataLoader(data, batch_size=7, shuffle=True)
        read = sorted(bytes(sample) for batch in loader for sample in batch["bin"].to_list())
        asked = [request for request in link.take_log() if request.path.endswith(".tar")]
    assert read == sorted(path.read_bytes() for path in source.rglob("*.bin"))
    assert all(request.nbytes <= HEAD for request in asked)
    assert not asked or known_by != "digest"


def test_a_cache_smaller_than_a_shard(source, tmp_path, built, run, monkeypatch):
    """The command says which option is too small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "indexes"))
    built("build", source, tmp_path / "built", "--quiet")
    with Link(str(tmp_path / "built")) as link:
        code, _, err = run("stage", link.url, tmp_path / "cache", "--size", "1KB")
    assert code == 1
    assert "--size is too small" in err
