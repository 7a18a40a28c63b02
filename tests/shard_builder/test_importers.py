"""Parquet, Arrow folders, MDS and TFRecord: their rows as samples, and damage that is named."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import shutil
import struct
from pathlib import Path

import datasets
import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import ShardError
from fastfeed_shard.importers.columns import Columns
from fastfeed_shard.importers.example import parse_example
from fastfeed_shard.importers.rows import Row
from fastfeed_shard.importers.tfrecord import read_records

GOLDEN = Path(__file__).with_name("golden")
JPEG = b"\xff\xd8\xff\xe0"


def array_of(data):
    """The array in the bytes of an npy field."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def test_parquet_of_plain_columns(tmp_path, built, samples_of):
    """Pictures keep their bytes, numbers become text, lists JSON, fixed lists arrays."""
    table = pa.table(
        {
            "image": [JPEG + b"one", JPEG + b"two"],
            "label": [3, 4],
            "caption": ["größer", None],
            "seg.png": [b"\x89PNG\r\n\x1a\nmask", None],
            "Width (px)": pa.array([640, 480], pa.uint16()),
            "score": pa.array([0.1, float("nan")], pa.float32()),
            "boxes": [[[1, 2], [3, 4]], []],
            "embedding": pa.array([[1.5, 2.5], None], pa.list_(pa.float32(), 2)),
            "taken": [dt.datetime(2026, 1, 2, 3, 4, 5), None],  # noqa: DTZ001
            "good": [True, False],
            "about": [{"by": "Ada", "of": None}, None],
            "blob": [b"\0\1", b"\2"],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    out = built("convert", tmp_path / "rows.parquet", tmp_path / "out")
    assert "image=jpg" in out
    first, second = samples_of(tmp_path / "out").values()
    assert np.array_equal(array_of(first.pop("embedding.npy")), np.array([1.5, 2.5], np.float32))
    assert first == {
        "jpg": JPEG + b"one",
        "cls": b"3",
        "txt": "größer".encode(),
        "seg.png": b"\x89PNG\r\n\x1a\nmask",
        "width_px.txt": b"640",
        "score.txt": b"0.1",
        "boxes.json": b"[[1, 2], [3, 4]]",
        "taken.txt": b"2026-01-02 03:04:05",
        "good.json": b"true",
        "about.json": b'{"by": "Ada", "of": null}',
        "blob.bin": b"\0\1",
    }
    assert second == {
        "jpg": JPEG + b"two",
        "cls": b"4",
        "width_px.txt": b"480",
        "score.txt": b"nan",
        "boxes.json": b"[]",
        "good.json": b"false",
        "blob.bin": b"\2",
    }


@pytest.fixture
def pictures():
    """A data set of Hugging Face's with pictures, classes and arrays."""
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "grid": datasets.Array2D((2, 2), "int16"),
            "key": datasets.Value("string"),
        }
    )
    rows = [
        {"img": {"bytes": JPEG + bytes([n]), "path": "/no/such.jpg"}, "label": n % 2,
         "grid": [[n, 1], [2, 3]], "key": f"k{n}"}
        for n in range(5)
    ]  # fmt: skip
    return datasets.Dataset.from_list(rows, features=features)


@pytest.mark.parametrize("kind", ["parquet", "folder"])
def test_hugging_face(pictures, kind, tmp_path, built, samples_of):
    """What `datasets` says of its columns is understood, from Parquet and from its own folders."""
    if kind == "parquet":
        pictures.to_parquet(tmp_path / "in.parquet")
        built("convert", tmp_path / "in.parquet", tmp_path / "out")
    else:
        pictures.save_to_disk(tmp_path / "in", num_shards=2)
        built("convert", tmp_path / "in", tmp_path / "out")
    samples = samples_of(tmp_path / "out")
    assert list(samples) == [f"k{n}" for n in range(5)]
    assert samples["k3"]["jpg"] == JPEG + b"\3"
    assert samples["k3"]["cls"] == b"1"
    grid = array_of(samples["k3"]["grid.npy"])
    assert grid.dtype == np.int16
    assert grid.tolist() == [[3, 1], [2, 3]]
    assert (tmp_path / "out" / "classes.txt").read_text() == "cat\ndog\n"


def test_a_path_in_a_row_is_never_followed(tmp_path, run):
    """A picture that is a name of a file in place of its bytes is refused, with file and row."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": JPEG, "path": None}, {"bytes": None, "path": "/etc/passwd"}]
    pq.write_table(pa.table({"image": pa.array(rows, kind)}), tmp_path / "in.parquet")
    code, _, err = run("convert", tmp_path / "in.parquet", tmp_path / "out")
    assert code == 2
    assert "in.parquet', row 1" in err
    assert "/etc/passwd" in err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_splits(pictures, tmp_path, run):
    """A folder of several splits is no data set; the message names one of them."""
    datasets.DatasetDict(train=pictures, test=pictures).save_to_disk(tmp_path / "in")
    code, _, err = run("convert", tmp_path / "in", tmp_path / "out")
    assert code == 2
    assert f"{tmp_path}/in/train" in err


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


def test_tfrecord_of_another_writer(tmp_path, built, samples_of):
    """A file that the tfrecord package wrote, plain and with gzip around it."""
    packed = tmp_path / "in" / "train-00000-of-00001"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress((GOLDEN / "three.tfrecord").read_bytes()))
    for number, source in enumerate((GOLDEN / "three.tfrecord", packed, packed.parent)):
        built("convert", source, tmp_path / str(number), "--from", "tfrecord")
        samples = samples_of(tmp_path / str(number))
        assert samples["000000002"] == {
            "jpg": JPEG + b"jpeg2",
            "cls": b"2",
            "image_class_text.txt": "größe 2".encode(),
            "image_height.txt": b"-480",
            "score.txt": b"0.3",
            "image_object_bbox_xmin.json": b"[0.25, 0.25]",
            "ids.json": b"[1, -2, 1099511627778]",
        }
        assert samples["000000001"]["image_object_bbox_xmin.json"] == b"[0.25]"
        assert "image_object_bbox_xmin.json" not in samples["000000000"]


def frame(data):
    """A record of a TFRecord file."""

    def masked(part):
        crc = google_crc32c.value(part)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def test_tfrecord_cut_or_flipped_anywhere(tmp_path):
    """A cut is an error unless it lies between two records; any other byte is one always."""
    whole = (GOLDEN / "three.tfrecord").read_bytes()
    path = tmp_path / "x.tfrecord"
    ends = {0}
    for record in read_records(str(GOLDEN / "three.tfrecord")):
        ends.add(max(ends) + 16 + len(record))
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        if cut in ends:
            list(read_records(str(path)))
        else:
            with pytest.raises(ShardError, match="record"):
                list(read_records(str(path)))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ShardError, match="record"):
            list(read_records(str(path)))


def test_tfrecord_of_other_messages(tmp_path, run):
    """A record that is no Example is named by file and number; huge lengths take no memory."""
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(b"\x0a\x02\x0a\x00") + frame(b"hello"))
    code, _, err = run("convert", path, tmp_path / "out")
    assert code == 1
    assert "x.tfrecord', record" in err
    length = struct.pack("<Q", 1 << 30)
    path.write_bytes(length + frame(length)[12 + 8 :] + b"short")
    code, _, err = run("convert", path, tmp_path / "out")
    assert code == 1
    assert "cut" in err


def test_a_feature_that_turns_into_a_list(tmp_path, run, built, samples_of):
    """One value for a thousand records, then two: an error that names the way out, which works."""

    def example(*numbers):
        values = b"".join(b"\x08" + bytes([number]) for number in numbers)
        ints = b"\x1a" + bytes([len(values)]) + values
        entry = b"\x0a\x01n\x12" + bytes([len(ints)]) + ints
        features = b"\x0a" + bytes([len(entry)]) + entry
        return frame(b"\x0a" + bytes([len(features)]) + features)

    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(example(5) for _ in range(1000)) + example(6, 7))
    code, _, err = run("convert", path, tmp_path / "out")
    assert code == 2
    assert "record 1,000" in err
    assert "'n'" in err
    built("convert", path, tmp_path / "out2", "--fields", "n=n.json")
    samples = samples_of(tmp_path / "out2")
    assert samples["000000000"] == {"n.json": b"5"}
    assert samples["000001000"] == {"n.json": b"[6, 7]"}


@given(st.binary(max_size=200))
def test_any_bytes_as_an_example(data):
    """A hostile message ends in one of two errors, or in values, never in anything else."""
    try:
        values = parse_example(data)
    except (ValueError, IndexError):
        return
    assert all(isinstance(found, list) for found in values.values())


@pytest.mark.parametrize("value", [{"a": b"x"}, [1, b"x"], 1j, [float("nan")]])
def test_values_that_no_field_can_hold(value):
    """The error names file, row and column, and how to leave the column out."""
    columns = Columns(key=None, fields={}, rename=False)
    with pytest.raises(ValueError, match="'t', row 7: column 'odd'") as caught:
        columns.sample(7, Row("'t', row 7", {"odd": value}))
    assert "--fields 'odd='" in str(caught.value)


def test_columns_by_name(tmp_path, run, built, samples_of):
    """--key, --fields and --rename; what they name must be there, and no two be the same."""
    table = {"id": ["a b", "c"], "image": [JPEG, JPEG], "second": [JPEG, None], "n": [1, 2]}
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    source = tmp_path / "in.parquet"
    code, _, err = run("convert", source, tmp_path / "out", "--key", "id")
    assert code == 2
    assert "row 0" in err
    assert "--rename" in err
    built(
        *("convert", source, tmp_path / "out", "--key", "id", "--rename"),
        *("--fields", "second=side.jpg,n="),
    )
    assert samples_of(tmp_path / "out") == {
        "a%20b": {"jpg": JPEG, "side.jpg": JPEG},
        "c": {"jpg": JPEG},
    }
    for wrong in (("--key", "nobody"), ("--fields", "nobody=x"), ("--fields", "n=jpg,image=jpg")):
        code, _, err = run("convert", source, tmp_path / "no", *wrong)
        assert code == 2
        assert "olumn" in err


def test_keys_that_are_there_twice(tmp_path, run):
    """A second row with the same key is named by file and row."""
    pq.write_table(pa.table({"key": ["a", "b", "a"], "cls": [1, 2, 3]}), tmp_path / "in.parquet")
    code, _, err = run("convert", tmp_path / "in.parquet", tmp_path / "out")
    assert code == 2
    assert "row 2" in err
    assert "twice" in err


def test_damaged_parquet(tmp_path, run):
    """A cut file is an error of the data with its name."""
    pq.write_table(pa.table({"cls": list(range(1000))}), tmp_path / "in.parquet")
    whole = (tmp_path / "in.parquet").read_bytes()
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        (tmp_path / "in.parquet").write_bytes(whole[:cut])
        code, _, err = run("convert", tmp_path / "in.parquet", tmp_path / "out")
        assert code == 1
        assert "in.parquet" in err


def test_interrupted_and_resumed(tmp_path, run, built, contents_of, monkeypatch):
    """Shards that were finished are kept as they are; the rest gives what one run gives."""
    rows = [JPEG + bytes([n]) * 9000 for n in range(40)]
    for number in range(4):
        part = pa.table({"image": rows[10 * number : 10 * number + 10]})
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(part, tmp_path / "in" / f"{number}.parquet")
    small = ("--shard-size", "100KiB", "--quiet")
    built("convert", tmp_path / "in", tmp_path / "right", *small)
    from fastfeed_shard.stream import Stream

    add, seen = Stream.add, []

    def interrupted(self, key, parts):
        seen.append(key)
        if len(seen) == 25:
            raise KeyboardInterrupt
        add(self, key, parts)

    with monkeypatch.context() as patched:
        patched.setattr(Stream, "add", interrupted)
        code, _, _ = run("convert", tmp_path / "in", tmp_path / "out", *small)
    assert code == 130
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert len(before) == 2
    code, _, err = run("convert", tmp_path / "in", tmp_path / "out", *small)
    assert code == 2
    assert "--resume" in err
    code, _, err = run("convert", tmp_path / "in", tmp_path / "out", "--resume", "--quiet")
    assert code == 2  # other shards were planned then
    built("convert", tmp_path / "in", tmp_path / "out", *small, "--resume")
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "right")
    for name, changed in before.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == changed


def test_dry_run_writes_nothing(tmp_path, built):
    """It shows what is read, and what the first sample would be."""
    out = built("convert", GOLDEN / "mds", tmp_path / "out", "--dry-run")
    assert out.startswith("mds\t1 files")
    assert "000000000.jpg\t9 bytes" in out
    assert not (tmp_path / "out").exists()


def test_sources_that_are_none(tmp_path, run):
    """Nothing there, nothing known, several kinds at once: each is said."""
    (tmp_path / "in").mkdir()
    for files, words in (((), "nothing"), (("a.tar", "b.parquet"), "shards and parquet")):
        for name in files:
            (tmp_path / "in" / name).touch()
        code, _, err = run("convert", tmp_path / "in", tmp_path / "out")
        assert code == 2
        assert words in err
        assert "--from" in err
    code, _, err = run("convert", tmp_path / "nowhere", tmp_path / "out")
    assert code == 2
    assert "nowhere" in err
