"""`ff.ShardWriter`: what it stores, what it refuses, and how it ends (C05, C06, C07)."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastfeed as ff
from fastfeed.errors import OptionError, StorageError
from fastfeed_shard.main import main
from fastfeed_shard.plan import packed_size
from fastfeed_shard.writer import ShardWriter, _KeySet


def test_kinds_of_values(tmp_path, samples_of, leak_gauge):
    """Bytes, text, numbers, JSON and arrays become the fields that readers expect."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    with ff.ShardWriter(tmp_path / "out", name="val") as writer:
        writer.write(
            {
                "__key__": "0001",
                "__url__": "left out",
                "jpg": memoryview(b"jpg"),
                "txt": "größer",
                "cls": np.int64(3),
                "json": {"a": [1, None, "é"]},
                "npy": array,
                "meta.json": [1],
            }
        )
    assert main(["verify", str(tmp_path / "out")]) == 0
    sample = samples_of(tmp_path / "out")["0001"]
    assert np.array_equal(np.load(io.BytesIO(sample.pop("npy"))), array)
    assert sample == {
        "jpg": b"jpg",
        "txt": "größer".encode(),
        "cls": b"3",
        "json": '{"a": [1, null, "é"]}'.encode(),
        "meta.json": b"[1]",
    }


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"jpg": b""}, ["no key"]),
        ({"__key__": 7, "jpg": b""}, ["no key"]),
        (5, ["5 is no sample", "__key__"]),
        ({"__key__": "a"}, ["no field"]),
        ({"__key__": "a b", "jpg": b""}, ["a b"]),
        ({"__key__": "../a", "jpg": b""}, ["../a"]),
        ({"__key__": "a.b", "jpg": b""}, ["a.b"]),
        ({"__key__": "a", "jpg": "path.jpg"}, ["jpg", "str"]),
        ({"__key__": "a", "cls": 1.5}, ["cls"]),
        ({"__key__": "a", "cls": True}, ["cls", "bool"]),
        ({"__key__": "a", "json": object()}, ["json"]),
        ({"__key__": "a", "json": float("nan")}, ["json"]),
        ({"__key__": "a", "npy": np.array([object()])}, ["npy"]),
        ({"__key__": "a", "npy": [1, 2]}, ["npy"]),
        ({"__key__": "a", "jpg": None}, ["jpg", "NoneType"]),
        ({"__key__": "a", "05.png": b""}, ["05.png"]),
        ({"__key__": "a", "jpg": b"", "JPG": b""}, ["twice"]),
    ],
)
def test_refused_samples_name_key_and_field(tmp_path, sample, words):
    """What can't be stored is refused before a byte is written, and the writer goes on."""
    with ShardWriter(tmp_path / "out") as writer:
        with pytest.raises(OptionError) as caught:
            writer.write(sample)
        for word in words:
            assert word in str(caught.value)
        writer.write({"__key__": "a", "txt": "fine"})
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_c06_keys_are_unique_over_all_shards(tmp_path):
    """Also where the first of the two is in a shard long finished."""
    with ShardWriter(tmp_path / "out", shard_size=2048) as writer:
        for number in range(5):
            writer.write({"__key__": str(number), "txt": "x"})
        with pytest.raises(OptionError, match="written before"):
            writer.write({"__key__": "0", "txt": "y"})
    assert len(list((tmp_path / "out").glob("*.tar"))) == 5


def test_c07_sample_larger_than_a_shard(tmp_path, samples_of):
    """It is a shard of its own."""
    with ShardWriter(tmp_path / "out", shard_size="10KiB") as writer:
        for number, size in enumerate((10, 50_000, 10, 10)):
            writer.write({"__key__": str(number), "bin": bytes(size)})
    shards = sorted((tmp_path / "out").glob("*.tar"))
    assert [list(samples_of(shard)) for shard in shards] == [["0"], ["1"], ["2", "3"]]


def test_c07_beyond_4_gib(tmp_path, monkeypatch):
    """Offsets of a shard of more than 4 GiB are right; the data is a hole that takes no disk."""
    import os

    from fastfeed.shardfile.index import load_index
    from fastfeed_shard.packing import ShardFile

    size = 2**32 + 10
    monkeypatch.setattr("fastfeed_shard.packing._BUFFER", 64 << 20)
    monkeypatch.setattr("fastfeed_shard.packing.xxhash", FastHash)
    write = os.write

    def skip_zeros(file, data):
        if len(data) < 64 << 20:
            return write(file, data)
        os.lseek(file, len(data), os.SEEK_CUR)
        return len(data)

    monkeypatch.setattr("fastfeed_shard.packing.os.write", skip_zeros)
    with ShardFile(tmp_path / "t-000000.tar", sync=False) as shard:
        shard.add("0.bin", size, len)
        shard.add("1.txt", 5, io.BytesIO(b"after").readinto)
        packed = shard.finish()
    cells = load_index(tmp_path / "t-000000.ffx").cells
    header, offset, length, _ = cells[1, 1].tolist()
    assert header == packed_size([size]) > 2**32
    with (tmp_path / "t-000000.tar").open("rb") as file:
        file.seek(offset)
        assert file.read(length) == b"after"
        assert file.seek(0, 2) == packed.entry.bytes


class FastHash:
    """Stands for xxhash where four gigabytes of zeros would be hashed for nothing."""

    def __init__(self):
        self.update = len
        self.hexdigest = lambda: "00"
        self.intdigest = lambda: 1

    xxh3_64 = classmethod(lambda cls: cls())
    xxh3_64_intdigest = staticmethod(lambda _: 1)


def test_error_in_the_block_leaves_no_half_shard(tmp_path, leak_gauge):
    """Finished shards stay, the one being written goes, and there is no manifest."""
    with (
        pytest.raises(RuntimeError, match="mine"),
        ShardWriter(tmp_path / "out", shard_size=3000) as writer,
    ):
        for number in range(4):
            writer.write({"__key__": str(number), "txt": "x"})
        raise RuntimeError("mine")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "train-000002.tar" in names
    assert "train-000003.tar" not in names
    assert "dataset.json" not in names
    assert not [name for name in names if name.endswith(".tmp")]
    with pytest.raises(OptionError, match="unfinished"):
        ShardWriter(tmp_path / "out")


def test_disk_full_stops_the_writer(tmp_path, monkeypatch):
    """After a failed write nothing can pretend to be complete."""

    def full(_file, _data):
        raise OSError(28, "No space left on device")

    writer = ShardWriter(tmp_path / "out", shard_size=4096)
    monkeypatch.setattr("fastfeed_shard.packing.os.write", full)
    with pytest.raises(StorageError, match="No space left"):
        for number in range(20):
            writer.write({"__key__": str(number), "bin": bytes(2000)})
    monkeypatch.undo()
    with pytest.raises(OptionError, match="closed"):
        writer.write({"__key__": "x", "txt": ""})
    writer.close()
    assert not (tmp_path / "out").exists()


def test_writer_without_samples(tmp_path):
    """A data set of nothing is refused when it is made, not when it is read."""
    with pytest.raises(OptionError, match="no sample was written"), ShardWriter(tmp_path / "out"):
        pass
    assert not (tmp_path / "out").exists()


def test_c05_writer_that_is_never_closed(tmp_path):
    """It warns and removes what it had begun."""
    writer = ShardWriter(tmp_path / "out")
    writer.write({"__key__": "0", "txt": "x"})
    owners = [writer]
    del writer
    with pytest.warns(ResourceWarning, match="never closed"):
        owners.clear()
    assert not (tmp_path / "out").exists()


def test_c05_script_that_forgets_to_close(tmp_path):
    """At the end of a script that doesn't close its writer, an error is printed."""
    script = (
        "import fastfeed as ff\n"
        f"writer = ff.ShardWriter({str(tmp_path / 'out')!r})\n"
        "writer.write({'__key__': '0', 'txt': 'x'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "never closed" in done.stderr
    assert not list(tmp_path.rglob("*.tar"))
    assert not list(tmp_path.rglob("*.tmp"))


def test_writer_refuses_what_is_there(tmp_path):
    """A folder with files, a name with dots, a size that is none."""
    (tmp_path / "file").write_text("mine")
    for options in ({}, {"name": "a.b"}, {"shard_size": "many"}):
        with pytest.raises(OptionError):
            ShardWriter(tmp_path, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_keys_by_the_million_stay_small():
    """The set of keys finds each again, and takes 16 to 32 bytes a key."""
    keys = _KeySet()
    assert all(keys.add(f"{number:08d}") for number in range(20_000))
    assert not any(keys.add(f"{number:08d}") for number in range(20_000))
    assert len(keys._table) * 8 <= 20_000 * 32 * 2


KEY = st.text("abcXYZ019-_/", min_size=1, max_size=40).filter(
    lambda key: all(part and not part.startswith("_") for part in key.split("/"))
)
FIELD = st.sampled_from(["jpg", "seg.png", "bin", "txt", "x_1.json"])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(
    samples=st.dictionaries(
        KEY, st.dictionaries(FIELD, st.binary(max_size=2000), min_size=1), min_size=1, max_size=12
    ),
    shard_size=st.integers(1, 20_000),
)
def test_round_trip(tmp_path_factory, samples_of, samples, shard_size):
    """Whatever is written is read again, in order, and proven whole."""
    out = tmp_path_factory.mktemp("round") / "out"
    with ShardWriter(out, shard_size=shard_size) as writer:
        for key, fields in samples.items():
            writer.write({"__key__": key, **fields})
    assert main(["verify", "--quiet", "--jobs", "1", str(out)]) == 0
    read = samples_of(out)
    assert read == samples
    document = json.loads((out / "dataset.json").read_text())
    assert document["samples"] == len(samples)
