"""Grouping members into samples, and the index file."""

from __future__ import annotations

import ast
import struct
import tarfile

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.errors import IndexMismatchError, ShardError, StorageError
from fastfeed.shardfile.index import (
    CELL,
    MISSING,
    ShardIndex,
    group,
    load_index,
    row_dtype,
    save_index,
)
from fastfeed.shardfile.tar import Member


def files(*names, size=10):
    return [Member(n, "file", 1024 * i, 1024 * i + 512, size, "") for i, n in enumerate(names)]


def grouped(members, **options):
    return group(members, shard="s", shard_bytes=10**6, **options)


def link_to(target, name, header=9 * 1024):
    return Member(name, "hardlink", header, header + 512, 0, target)


@pytest.fixture
def index():
    """Three samples, one of which lacks a field."""
    return grouped(files("a.jpg", "a.cls", "b.jpg", "c.cls", "c.jpg"))


def test_rows_hold_header_offset_size_and_missing(index):
    """One row a sample, fields sorted, a missing field marked."""
    assert index.fields == ("cls", "jpg")
    assert index.rows.dtype == row_dtype(["cls", "jpg"])
    assert index.rows["jpg"]["offset"].tolist() == [512, 2 * 1024 + 512, 4 * 1024 + 512]
    assert index.rows["cls"]["header"].tolist() == [1024, MISSING, 3 * 1024]
    assert index.rows["cls"]["size"].tolist() == [10, 0, 10]
    assert index.cells.shape == (3, 2, 4)
    assert index.counts() == {"cls": 2, "jpg": 3}


def test_checksums_are_asked_for_and_never_zero():
    """A checksum that happens to be 0 is kept as 1, since 0 says that none was recorded."""
    asked = []
    rows = grouped(files("a.x", "b.x"), checksum_of=lambda o, n: asked.append((o, n)) or 0).rows
    assert asked == [(512, 10), (1536, 10)]
    assert rows["x"]["checksum"].tolist() == [1, 1]
    assert grouped(files("a.x")).rows["x"]["checksum"].tolist() == [0]


def test_c02_a_key_that_comes_back_is_an_error():
    """Members in the wrong order never become half-samples."""
    with pytest.raises(ShardError, match=r"comes back.*offset 0") as caught:
        grouped(files("0.a", "1.a", "0.b", "1.b"))
    assert (caught.value.key, caught.value.offset, caught.value.shard) == ("0", 2048, "s")


def test_c06_a_field_twice_is_an_error():
    """A repeated name, also one that differs in case only, is an error with both offsets."""
    for names in (("a.jpg", "a.json", "a.jpg"), ("A.jpg", "A.JPG")):
        with pytest.raises(ShardError, match=r"twice.*offset 0") as caught:
            grouped(files(*names))
        assert caught.value.field == "jpg"
        assert caught.value.offset > 0


def test_c06_shards_are_grouped_alone():
    """The same name in two shards makes one sample in each."""
    assert [len(grouped(files("img.jpg"))) for _ in range(2)] == [1, 1]


def test_c08_everything_but_files_is_skipped_and_counted():
    """Folders, links, devices and metadata are no samples; hard links are their target's bytes."""
    first, second = files("./a.jpg", "a.txt", size=7)
    others = [
        Member("d/", "dir", 0, 0, 0, ""),
        Member("b.jpg", "symlink", 0, 0, 0, "a.jpg"),
        Member("pipe.x", "other", 0, 0, 0, ""),
        *files("._a.jpg", ".DS_Store", "__meta__/x.json", "noext"),
    ]
    index = grouped([first, second, *others, link_to("a.jpg", "h.jpg")])
    assert index.rows["jpg"]["offset"].tolist() == [512, 512]
    assert index.rows["jpg"]["size"].tolist() == [7, 7]
    assert index.rows["jpg"]["header"].tolist() == [0, 9 * 1024]
    assert index.skipped == {"dir": 1, "symlink": 1, "other": 1, "other name": 4}


@pytest.mark.parametrize("target", ["b.jpg", "h.jpg", "a.txt", "/etc/passwd", "", "../a"])
def test_c08_hard_link_to_nothing_is_an_error(target):
    """A hard link whose target is no earlier field of the shard is an error that names it."""
    with pytest.raises(ShardError, match="hard link") as caught:
        grouped([*files("a.jpg"), link_to(target, "h.jpg")])
    assert caught.value.key == "h"


def test_hard_link_carries_the_checksum():
    """The link has the checksum of its target, computed once."""
    rows = grouped([*files("a.x"), link_to("a.x", "b.x")], checksum_of=lambda o, n: 77).rows
    assert rows["x"]["checksum"].tolist() == [77, 77]


def test_c10_sparse_members_are_refused_by_name():
    """A sparse member is an error with its key, never its packed bytes."""
    with pytest.raises(ShardError, match=r"sparse.*without") as caught:
        grouped([Member("a.bin", "sparse", 0, 512, 10, "")])
    assert (caught.value.key, caught.value.field) == ("a", "bin")


def test_c03_dots_in_keys_are_noticed():
    """A field of its own for each of many samples is the sign of a key with dots."""
    with pytest.raises(ShardError, match=r"200 different fields.*dot"):
        grouped(files(*(f"{i}.{i:03d}.jpg" for i in range(200))))


def test_a_sample_with_too_many_fields():
    """A thousand fields and more in one sample are refused as well."""
    assert len(grouped(files(*(f"a.{i}" for i in range(1000)))).fields) == 1000
    with pytest.raises(ShardError, match="different fields"):
        grouped(files(*(f"a.{i}" for i in range(1025))))


def test_field_names_that_are_not_utf8():
    """Names in another encoding are keys like any other, but no fields."""
    assert len(grouped(files("\udce4.jpg"))) == 1
    with pytest.raises(ShardError, match="not UTF-8"):
        grouped(files("a.\udce4"))


def test_grouping_a_real_tar(pack, walk_bytes):
    """The bytes that the index points to are those that were packed."""
    data = pack(*((f"d/{i:03d}.{f}", f"{i}{f}".encode()) for i in range(50) for f in ("b", "a")),
                format=tarfile.GNU_FORMAT)  # fmt: skip
    index = group(walk_bytes(data), shard="s", shard_bytes=len(data))
    for i, row in enumerate(index.rows):
        for field in ("a", "b"):
            cell = row[field]
            begin = int(cell["offset"])
            assert data[begin : begin + int(cell["size"])] == f"{i}{field}".encode()


def test_index_file_is_a_mapped_npy(index, tmp_path):
    """What is saved is what is loaded, numpy reads the file too, and saving is deterministic."""
    path = tmp_path / "a.ffx"
    path.write_bytes(save_index(index))
    loaded = load_index(path, verify=True)
    assert (loaded.fields, loaded.shard_bytes) == (index.fields, 10**6)
    assert np.array_equal(loaded.rows, index.rows)
    assert np.array_equal(np.load(path, allow_pickle=False), index.rows)
    assert not loaded.rows.flags.writeable
    assert save_index(loaded) == path.read_bytes()


def test_empty_index(tmp_path):
    """A shard without samples has an index without rows."""
    path = tmp_path / "a.ffx"
    path.write_bytes(save_index(grouped([])))
    loaded = load_index(path, verify=True)
    assert (len(loaded), loaded.fields, loaded.counts()) == (0, (), {})
    assert loaded.cells.shape == (0, 0, 4)


def test_the_trailer_is_what_the_specification_says(index):
    """The last 32 bytes: magic, bytes of the shard, samples, xxh3_64 of what is before."""
    data = save_index(index)
    magic, shard_bytes, samples, digest = struct.unpack("<8sQQQ", data[-32:])
    assert (magic, shard_bytes, samples) == (b"ffindex1", 10**6, 3)
    assert digest == xxhash.xxh3_64_intdigest(data[:-32])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=20), unique=True, min_size=1, max_size=5))
def test_any_field_name_survives(tmp_path_factory, names):
    """Field names are data: quotes, newlines and other alphabets come back as they were."""
    fields = tuple(sorted(names))
    path = tmp_path_factory.mktemp("names") / "a.ffx"
    index = ShardIndex(fields, np.zeros(3, row_dtype(fields)), 5)
    path.write_bytes(save_index(index))
    assert load_index(path, verify=True).fields == fields


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: b"",
        lambda d: d[:5],
        lambda d: d[:100],
        lambda d: d[:-1],
        lambda d: d[:-32],
        lambda d: d[:-64],
        lambda d: d + b"\0",
        lambda d: b"PK\3\4" + d[4:],
        lambda d: b"\x80\x04K\x01." + d,
        lambda d: d.replace(b"<u8", b"<u4"),
        lambda d: d.replace(b"<u8", b"|O8"),
        lambda d: d.replace(b"(3,)", b"(9,)"),
        lambda d: d.replace(b"(3,)", b"-3, "),
        lambda d: d.replace(b"(3,), }  ", b"(3, 1), }"),
        lambda d: d.replace(b"'shape': (3,)", b"'shape': [[[("),
        lambda d: d.replace(b"ffindex1", b"ffindex2"),
        lambda d: b"junk" * 100,
    ],
)
def test_damaged_index_files(index, tmp_path, damage):
    """Cut, junk, other dtypes, pickles: always an IndexMismatchError that names the file."""
    path = tmp_path / "a.ffx"
    path.write_bytes(damage(save_index(index)))
    with pytest.raises(IndexMismatchError, match=r"a\.ffx.*damaged") as caught:
        load_index(path)
    assert "fastfeed-shard index" in caught.value.way_out


def test_flipped_rows_are_found_by_verify(index, tmp_path):
    """A changed row passes the cheap checks; the file's checksum finds it."""
    data = bytearray(save_index(index))
    data[-40] ^= 1
    path = tmp_path / "a.ffx"
    path.write_bytes(data)
    load_index(path)
    with pytest.raises(IndexMismatchError, match="checksum"):
        load_index(path, verify=True)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_any_flipped_byte_is_found_or_harmless(tmp_path_factory, place, flip):
    """One flipped byte anywhere is an IndexMismatchError under verify, never another error."""
    data = bytearray(save_index(grouped(files("a.jpg", "a.cls", "b.jpg"))))
    data[place % len(data)] ^= flip
    path = tmp_path_factory.getbasetemp() / "flipped.ffx"
    path.write_bytes(data)
    try:
        loaded = load_index(path, verify=True)
    except IndexMismatchError:
        return
    # Only the bytes of the shard in the trailer are under no checksum.
    assert loaded.shard_bytes != 10**6


def test_missing_index_file(tmp_path):
    """A file that cannot be read is the machine's fault, not the data's."""
    with pytest.raises(StorageError, match="No such file"):
        load_index(tmp_path / "a.ffx")


def test_ten_million_rows_load_at_once(tmp_path):
    """Loading looks at the form only; ten million rows (a sparse file) cost no time or memory."""
    dtype = row_dtype(["jpg"])
    one = save_index(ShardIndex(("jpg",), np.zeros(1, dtype), 5))
    start = len(one) - 32 - CELL.itemsize
    header = one[:start].replace(b"(1,), }" + b" " * 7, b"(10000000,), }")
    path = tmp_path / "a.ffx"
    with path.open("wb") as file:
        file.write(header)
        file.seek(start + 10**7 * CELL.itemsize)
        file.write(struct.pack("<8sQQQ", b"ffindex1", 5, 10**7, 0))
    assert len(load_index(path)) == 10**7


def test_a_header_is_read_again_where_another_thread_disturbed_the_parser(tmp_path, monkeypatch):
    """CPython's parser of literals may fail in several threads at once; it is no damage."""
    path = tmp_path / "a.ffx"
    path.write_bytes(save_index(ShardIndex(("x",), np.zeros(0, row_dtype(("x",))), 1024)))
    parse, disturbed = ast.literal_eval, [1, 2, 3]

    def parse_at_last(text):
        if disturbed.pop():
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(text)

    disturbed.insert(0, 0)
    monkeypatch.setattr(ast, "literal_eval", parse_at_last)
    assert load_index(path).fields == ("x",)
    assert not disturbed
