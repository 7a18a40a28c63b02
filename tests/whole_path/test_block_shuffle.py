"""Compressed shards are shuffled in blocks: a frame is decoded for many samples, not for one."""

from __future__ import annotations

import json
import random
import shutil

import pytest

import fastfeed as ff
from fastfeed.options import SHUFFLE_BLOCK, SHUFFLE_GROUP
from fastfeed.plan import Blocks
from fastfeed.storage.compressed import read_table
from fastfeed.storage.frames import FRAME_CACHE, FrameCache
from fastfeed.storage.local import LocalFile
from fastfeed_shard.main import main

COUNT = 2000
NBYTES = 20_000
GROUP = 8 << 20
FIELDS = {"number": ff.Int("cls"), "raw": ff.Bytes("bin")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """40 MB of samples in compressed shards of 4 MiB, and in plain ones."""
    root = tmp_path_factory.mktemp("shards")
    for name, compress in (("plain", None), ("zstd", "zstd")):
        with ff.ShardWriter(root / name, shard_size="4MiB", compress=compress) as writer:
            for n in range(COUNT):
                # Of no use to one another, so that larger frames would gain nothing.
                data = f"{n:05d} {random.Random(n).randbytes(NBYTES // 2).hex()}".encode()
                writer.write({"__key__": f"{n:05d}", "cls": n, "bin": data})
    return root


@pytest.fixture
def decoded(monkeypatch):
    """Groups of 8 MiB and a cache for one of them; counts the frames that are decoded."""
    frames = []

    class Counting(FrameCache):
        def __init__(self):
            super().__init__(2 * GROUP)

        def put(self, key, frame):
            frames.append(key)
            super().put(key, frame)

    monkeypatch.setattr("fastfeed.dataset.SHUFFLE_GROUP", GROUP)
    monkeypatch.setattr("fastfeed.reading.shards.FrameCache", Counting)
    return frames


def frames_of(folder):
    """Return how many frames the shards of a folder have."""
    total = 0
    for path in folder.glob("*.tar.zst"):
        with LocalFile(str(path)) as file:
            total += len(read_table(file, path.name).places)
    return total


def numbers_of(loader):
    """Return the numbers of all samples in the order in which they come."""
    found = []
    for batch in loader:
        numbers = batch["number"].tolist()
        assert [int(raw[:5]) for raw in batch["raw"].to_list()] == numbers
        found += numbers
    return found


def test_frames_are_decoded_for_many_samples(folders, decoded):
    """A whole epoch decodes each frame for the blocks that it reaches into, not for each sample."""
    loader = ff.DataLoader(
        ff.ShardDataset(folders / "zstd", FIELDS, seed=1), batch_size=50, shuffle=True
    )
    found = numbers_of(loader)
    assert sorted(found) == list(range(COUNT))
    frames = frames_of(folders / "zstd")
    assert frames > 50
    assert frames <= len(decoded) < 1.8 * frames
    # A group has four blocks of 100 samples, and a batch comes from all of them.
    batches = [found[first : first + 50] for first in range(0, COUNT, 50)]
    assert sum(len({n // 100 for n in batch}) for batch in batches) / len(batches) > 3


def test_workers_see_the_same_order(folders, decoded):
    """The order knows nothing of workers, ranks or the manifest."""
    orders = []
    for workers in (0, 2):
        dataset = ff.ShardDataset(folders / "zstd", FIELDS, seed=1)
        loader = ff.DataLoader(dataset, batch_size=50, shuffle=True, num_workers=workers)
        orders.append(numbers_of(loader))
    assert orders[0] == orders[1]


def test_the_manifest_does_not_change_the_order(folders, tmp_path):
    """Shards that are opened to be counted are found compressed as well."""
    shutil.copytree(folders / "zstd", tmp_path / "zstd")
    whole = ff.ShardDataset(tmp_path / "zstd", FIELDS)
    (tmp_path / "zstd" / "dataset.json").unlink()
    shards = sorted(map(str, (tmp_path / "zstd").glob("*.tar.zst")))
    alone = ff.ShardDataset(shards, FIELDS)
    assert whole.plan(3).blocks == alone.plan(3).blocks == Blocks(SHUFFLE_BLOCK, SHUFFLE_GROUP)
    for one, other in zip(whole.plan(3).order(), alone.plan(3).order(), strict=True):
        assert one.tolist() == other.tolist()
    assert whole.fingerprint() == alone.fingerprint()


def test_blocks_are_at_least_two_frames(tmp_path):
    """Larger frames are known from the manifest, or from the shards; old manifests say nothing."""
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / "a").mkdir(parents=True)
    for n in range(40):
        data = random.Random(n).randbytes(50_000).hex().encode()
        (tree / "a" / f"{n:02d}.bin").write_bytes(data)
    options = ("--compress", "zstd", "--frame", "2MiB", "--quiet")
    assert main(["build", str(tree), str(out), *options]) == 0
    manifest = json.loads((out / "dataset.json").read_text())
    frame = manifest["shards"][0]["frame_bytes"]
    assert 1.9 * 2**20 < frame <= 2 * 2**20
    fields = {"raw": ff.Bytes("bin")}
    told = ff.ShardDataset(out, fields)
    seen = ff.ShardDataset(out / "train-000000.tar.zst", fields)
    assert told.plan(0).blocks == seen.plan(0).blocks == Blocks(2 * frame, SHUFFLE_GROUP)
    assert told.fingerprint() == seen.fingerprint()
    del manifest["shards"][0]["frame_bytes"]
    (out / "dataset.json").write_text(json.dumps(manifest))
    old = ff.ShardDataset(out, fields)
    assert old.plan(0).blocks == Blocks(SHUFFLE_BLOCK, SHUFFLE_GROUP)


def test_plain_shards_have_no_blocks(folders):
    """They keep the order that they had, and the digest that checkpoints compare."""
    plain = ff.ShardDataset(folders / "plain", FIELDS)
    assert plain.plan(0).blocks is None
    assert plain.fingerprint() != ff.ShardDataset(folders / "zstd", FIELDS).fingerprint()


def test_an_epoch_goes_on_after_its_middle(folders, decoded):
    """A state from the middle of a group gives the rest of the epoch, with other workers too."""

    def loader(workers):
        dataset = ff.ShardDataset(folders / "zstd", FIELDS, seed=1)
        return ff.DataLoader(dataset, batch_size=50, shuffle=True, num_workers=workers)

    whole = numbers_of(loader(0))
    begun = loader(0)
    batches = iter(begun)
    seen = [n for _ in range(13) for n in next(batches)["number"].tolist()]
    state = begun.state_dict()
    resumed = loader(2)
    resumed.load_state_dict(state)
    assert seen + numbers_of(resumed) == whole


@pytest.mark.parametrize("frame", [768 << 10, 1 << 20, 3 << 19, 3 << 20, 4 << 20])
def test_what_is_kept_is_enough_for_a_group(frame):
    """The frames of all blocks of a group, cut ones included, stay even when the cache is swept."""
    block = max(SHUFFLE_BLOCK, 2 * frame)
    needed = SHUFFLE_GROUP + block + (SHUFFLE_GROUP // block + 1) * frame
    assert needed <= FRAME_CACHE - FRAME_CACHE // 8
