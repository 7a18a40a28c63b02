"""Compressed shards over http: what an epoch fetches of them, counted by the server."""

from __future__ import annotations

import random
import re

import pytest

import fastfeed as ff

COUNT = 2000
FIELDS = {"number": ff.Int("cls"), "raw": ff.Bytes("bin")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Shards of 2 MiB with some frames each, in which hundreds of samples lie."""
    folder = tmp_path_factory.mktemp("frames")
    with ff.ShardWriter(folder, shard_size="2MiB", compress="zstd") as writer:
        for n in range(COUNT):
            data = random.Random(n).randbytes(1000).hex().encode()
            writer.write({"__key__": f"{n:05d}", "cls": n, "bin": data})
    return folder


@pytest.fixture
def loader(built, server, tmp_path, monkeypatch):
    """Make loaders of the shards on the server, which has counted nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path in built.rglob("*"):
        if path.is_file():
            server.put(f"set/{path.relative_to(built)}", path.read_bytes())

    def make(*, shuffle, **options):
        dataset = ff.ShardDataset(server.url("set"), FIELDS, shuffle_window="4MB")
        return ff.DataLoader(dataset, batch_size=100, shuffle=shuffle, **options)

    return make


def fetched(server, built):
    """Return how often the bytes of all shards were sent, leaving out their heads and tables."""
    sent = 0
    for request in server.requests:
        if request.path.endswith(".zst") and request.range:
            first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", request.range).groups())
            size = len(server.objects[request.path])
            if last > 511 and last < size - 1:
                sent += last + 1 - first
    return sent / sum(path.stat().st_size for path in built.glob("*.zst"))


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_fetches_its_frames_once(loader, server, built, shuffle):
    """Whatever batches and ranges a frame is wanted for, one process asks for it once."""
    found = [n for batch in loader(shuffle=shuffle) for n in batch["number"].tolist()]
    assert sorted(found) == list(range(COUNT))
    assert 0.9 < fetched(server, built) <= 1.0


def test_each_worker_fetches_its_own(loader, server, built):
    """Workers keep frames for themselves: each asks once for what it draws samples from."""
    found = [n for batch in loader(shuffle=True, num_workers=2) for n in batch["number"].tolist()]
    assert sorted(found) == list(range(COUNT))
    assert fetched(server, built) <= 2.0
