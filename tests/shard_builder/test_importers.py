"""Parquet, Arrow folders, MDS and TFRecord: their rows as samples, and damage that is named."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastfeed_shard.importers.columns import Columns
from fastfeed_shard.importers.rows import Row

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


def test_resume_of_a_finished_data_set(tmp_path, run, built, contents_of):
    """It is complete already, and nothing is written; another source or other options are not."""
    for name, rows in (("in", 40), ("more", 60), ("less", 20), ("long", 40)):
        data = [bytes([n]) * (9000 if name == "long" else 5000) for n in range(rows)]
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"raw": data}), tmp_path / name / "0.parquet")
    arguments = ("--shard-size", "100KiB", "--quiet", "--resume")
    built("convert", tmp_path / "in", tmp_path / "out", *arguments)
    before = contents_of(tmp_path / "out")
    assert "complete already" in built("convert", tmp_path / "in", tmp_path / "out", *arguments)
    for source, more in (
        *((name, ()) for name in ("more", "less", "long")),
        *(("in", option) for option in (("--compress", "zstd"), ("--shard-size", "60KiB"))),
    ):
        code, _, err = run("convert", tmp_path / source, tmp_path / "out", *arguments, *more)
        assert code == 2
        assert "other shards" in err or "no longer gives" in err
    assert contents_of(tmp_path / "out") == before


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
