"""Compressed shards in a loader: the same samples as from plain ones, whatever the workers."""

from __future__ import annotations

import io
import logging
import random
import shutil
import warnings

import numpy as np
import pytest
import zstandard

import fastfeed as ff
from fastfeed.errors import IndexMismatchError, ShardError

FIELDS = {"number": ff.Int("cls"), "text": ff.Text("txt"), "raw": ff.Bytes("bin")}
COUNT = 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same samples in plain and in compressed shards, some of them larger than a frame."""
    draw = random.Random(0)
    root = tmp_path_factory.mktemp("shards")
    samples = [
        {
            "__key__": f"{n:05d}",
            "cls": n,
            "txt": f"sample {n} " * (n % 50),
            "bin": draw.randbytes(200 * (n % 30)) if n % 40 else draw.randbytes(1_000_000),
        }
        for n in range(COUNT)
    ]
    for name, compress in (("plain", None), ("zstd", "zstd")):
        with ff.ShardWriter(root / name, shard_size="2MiB", compress=compress) as writer:
            for sample in samples:
                writer.write(sample)
    return root


def batches(source, **options):
    """Return all batches as plain values."""
    dataset = ff.ShardDataset(source, FIELDS, shuffle_window="4MiB", seed=3)
    loader = ff.DataLoader(dataset, batch_size=16, **options)
    return [
        (batch["number"].tolist(), list(batch["text"]), batch["raw"].to_list()) for batch in loader
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_same_samples_as_from_plain_shards(folders, workers, shuffle, leak_gauge):
    """In order or shuffled, in the process or in workers, with the manifest of either."""
    options = {"num_workers": workers, "shuffle": shuffle}
    found = batches(folders / "zstd", **options)
    assert sum(len(numbers) for numbers, _, _ in found) == COUNT
    if not shuffle:
        assert found == batches(folders / "plain", **options)
    assert {n for numbers, _, _ in found for n in numbers} == set(range(COUNT))


def test_threads(folders):
    """Workers that are threads share the decoded frames."""
    found = batches(folders / "zstd", num_workers=2, worker_kind="thread")
    assert found == batches(folders / "plain", num_workers=0)


def test_foreign_shards_are_indexed_and_inflated(folders, tmp_path, monkeypatch):
    """A shard that zstd compressed as one frame needs no conversion; no manifest, no index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = min((folders / "plain").glob("*.tar"))
    foreign = tmp_path / "a.tar.zst"
    foreign.write_bytes(zstandard.compress(plain.read_bytes()))
    found = batches(str(foreign), num_workers=0)
    assert found == batches(str(plain), num_workers=0)
    assert (tmp_path / "a.tar.zst.ffx").exists()


def test_a_damaged_frame_is_a_bad_sample_or_an_error(folders, tmp_path):
    """The error names the shard; with on_error the rest is delivered."""
    shutil.copytree(folders / "zstd", tmp_path / "zstd")
    victim = min((tmp_path / "zstd").glob("*.tar.zst"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(ShardError, match=victim.name):
        batches(tmp_path / "zstd", num_workers=0)
    dataset = ff.ShardDataset(tmp_path / "zstd", FIELDS, on_error="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left = [n for b in ff.DataLoader(dataset, batch_size=16) for n in b["number"].tolist()]
    assert 0 < len(left) < COUNT


@pytest.mark.parametrize("change", ["cut", "longer", "without its table"])
def test_a_compressed_shard_of_another_size_is_no_foreign_one(
    folders, tmp_path, monkeypatch, change, caplog
):
    """What the manifest knows is said with both sizes, left to the policy, and inflated never."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(folders / "zstd", tmp_path / "zstd")
    victim = min((tmp_path / "zstd").glob("*.tar.zst"))
    data = victim.read_bytes()
    changed = {
        "cut": data[: len(data) * 2 // 3],
        "longer": data + bytes(9),
        "without its table": data[:-4] + bytes(4),
    }[change]
    victim.write_bytes(changed)
    with pytest.raises(IndexMismatchError, match="verify") as caught:
        batches(tmp_path / "zstd", num_workers=0)
    assert caught.value.shard == str(victim)
    if change != "without its table":
        assert f"{len(changed):,} bytes, but {len(data):,} in the manifest" in str(caught.value)
    dataset = ff.ShardDataset(tmp_path / "zstd", FIELDS, on_error="skip")
    loader = ff.DataLoader(dataset, batch_size=16, shuffle=True)
    with caplog.at_level(logging.WARNING, "fastfeed"):
        left = [n for batch in loader for n in batch["number"].tolist()]
    assert 0 < len(left) == COUNT - dataset.bad_count < COUNT
    assert len(caplog.records) == 1
    assert "bad sample" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.tar"))


def test_compressed_fields(tmp_path):
    """`seg.npy.zst` in a plain tar is asked for as `seg.npy`, also as the only, raw field."""
    file = io.BytesIO()
    np.save(file, np.arange(12).reshape(3, 4))
    with ff.ShardWriter(tmp_path / "out") as writer:
        for n in range(5):
            data = zstandard.compress(file.getvalue())
            writer.write({"__key__": str(n), "seg.npy.zst": data, "cls": n})
    fields = {"seg": ff.Array("seg.npy", shape=(3, 4), dtype="int64"), "n": ff.Int("cls")}
    for batch in ff.DataLoader(ff.ShardDataset(tmp_path / "out", fields), batch_size=5):
        assert np.array_equal(batch["seg"][2].numpy(), np.arange(12).reshape(3, 4))
    raw = ff.ShardDataset(tmp_path / "out", {"raw": ff.Bytes("seg.npy")})
    for batch in ff.DataLoader(raw, batch_size=5):
        assert batch["raw"].to_list() == [file.getvalue()] * 5
