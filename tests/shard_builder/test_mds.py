"""MDS folders of its own writer become shards; what lies or is damaged is refused."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).with_name("golden")
JPEG = b"\xff\xd8\xff\xe0"


def array_of(data):
    """The array in the bytes of an npy field."""
    return np.load(io.BytesIO(data), allow_pickle=False)


@pytest.mark.parametrize("folder", ["mds", "mds_zstd"])
def test_mds_of_its_own_writer(folder, tmp_path, built, samples_of):
    """What streaming's MDSWriter wrote, plain and compressed, is read to the last column."""
    built("convert", GOLDEN / folder, tmp_path / "out")
    samples = samples_of(tmp_path / "out")
    assert len(samples) == 3
    one = samples["000000001"]
    assert array_of(one.pop("emb.npy")).tolist() == [1, 2, 3]
    assert array_of(one.pop("any.npy")).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.array_equal(array_of(one.pop("pil.npy")), np.full((2, 3, 3), 1, np.uint8))
    assert one == {
        "jpg": JPEG + b"jpeg1",
        "txt": "größe 1".encode(),
        "cls": b"1",
        "width.txt": b"641",
        "score.txt": b"0.2",
        "meta.json": b'{"n": [1, null]}',
        "frames_0.jpg": b"\xff\xd8\xff1",
        "frames_1.jpg": b"\xff\xd8\xffz",
        "id.txt": b"100000000000000000001",
    }


def _index_with(tmp_path, change):
    """Copy the golden MDS folder, and change the document of its index."""
    folder = tmp_path / "mds"
    shutil.copytree(GOLDEN / "mds", folder)
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"][0])
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda shard: shard["column_encodings"].__setitem__(0, "pkl"), 2, "pickle may run"),
        (lambda shard: shard["column_encodings"].__setitem__(0, "dream"), 2, "'dream'"),
        (lambda shard: shard["raw_data"].update(basename="../x.mds"), 1, "outside"),
        (lambda shard: shard["raw_data"].update(bytes=17), 1, "17"),
        (lambda shard: shard["raw_data"]["hashes"].update(sha1="00"), 1, "sha1"),
        (lambda shard: shard.update(samples=4), 1, "4"),
        (lambda shard: shard.update(format="csv"), 2, "'csv'"),
        (lambda shard: shard.pop("column_sizes"), 1, "damaged"),
        (lambda shard: shard.update(compression="br", zip_data=shard["raw_data"]), 2, "'br'"),
    ],
)
def test_mds_that_cannot_be_taken(tmp_path, run, change, code, words):
    """Pickles, names outside of the folder, and sizes and digests that don't fit are refused."""
    found, _, err = run("convert", _index_with(tmp_path, change), tmp_path / "out")
    assert found == code
    assert words in err


def test_an_mds_index_without_shards(tmp_path, run):
    """What the index lacks is said in words."""
    folder = tmp_path / "mds"
    folder.mkdir()
    (folder / "index.json").write_text('{"version": 2}')
    code, _, err = run("convert", folder, tmp_path / "out", "--from", "mds")
    assert code == 1
    assert "is damaged: it has no 'shards'" in err


def test_mds_with_flipped_bytes(tmp_path, run):
    """Without digests too, a damaged shard never escapes as another kind of error."""
    folder = _index_with(tmp_path, lambda shard: shard["raw_data"].update(hashes={}))
    path = folder / "shard.00000.mds"
    right = path.read_bytes()
    for place in range(0, len(right), 7):
        path.write_bytes(right[:place] + bytes([right[place] ^ 0x55]) + right[place + 1 :])
        out = tmp_path / f"out{place}"
        code, _, err = run("convert", folder, out, "--quiet")
        assert code == 0 or "mds" in err
