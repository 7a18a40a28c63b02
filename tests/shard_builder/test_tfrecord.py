"""TFRecord files of another writer become shards; damaged ones are told by file and record."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.errors import ShardError
from fastfeed_shard.importers.example import parse_example
from fastfeed_shard.importers.tfrecord import read_records

GOLDEN = Path(__file__).with_name("golden")
JPEG = b"\xff\xd8\xff\xe0"


def array_of(data):
    """The array in the bytes of an npy field."""
    return np.load(io.BytesIO(data), allow_pickle=False)


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
