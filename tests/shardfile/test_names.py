"""Member names to keys and fields, and the names that manifests may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.shardfile.names import index_name, is_contained, split_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v1.0/a.jpg", ("v1.0/a", "jpg")),
        ("v1.0/a.json", ("v1.0/a", "json")),
        ("22.05.png", ("22", "05.png")),
        ("x.seg.png", ("x", "seg.png")),
        ("x.png", ("x", "png")),
        ("noext", None),
        (".hidden.jpg", None),
        ("UPPER.JPG", ("UPPER", "jpg")),
        ("a/b.c/x.seg.png", ("a/b.c/x", "seg.png")),
        ("a/.jpg", None),
        ("x.", None),
        ("", None),
        ("/", None),
        ("a/", None),
    ],
)
def test_c03_first_dot_of_the_base_name_splits(name, expected):
    """One rule decides where the key ends, whatever the dots in folders and extensions."""
    assert split_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./a.jpg", ("a", "jpg")),
        ("././a.jpg", ("a", "jpg")),
        (".//a.jpg", ("a", "jpg")),
        ("./d/a.jpg", ("d/a", "jpg")),
        ("._a.jpg", None),
        ("d/._a.jpg", None),
        (".DS_Store", None),
        ("__meta__", None),
        ("__meta__.json", None),
        ("__MACOSX__/a.jpg", None),
        ("d/__x__/a.jpg", None),
        ("d/__x/a.jpg", ("d/__x/a", "jpg")),
        ("a__b__.jpg", ("a__b__", "jpg")),
        ("../a.jpg", ("../a", "jpg")),
        ("/abs/a.jpg", ("/abs/a", "jpg")),
    ],
)
def test_c08_names_of_folders_made_tars(name, expected):
    """`./` changes nothing, metadata is no sample, and a strange path is only a strange key."""
    assert split_name(name) == expected


@given(st.text())
def test_split_name_takes_any_text(name):
    """Any name gives a key and a lower-case field that are not empty, or None."""
    result = split_name(name)
    if result is not None:
        key, field = result
        assert key
        assert field
        assert field == field.lower()
        assert "/" not in field


@pytest.mark.parametrize(
    ("shard", "index"),
    [("a-000.tar", "a-000.ffx"), ("d/a.b.tar", "d/a.b.ffx"), ("plain", "plain.ffx")],
)
def test_index_name(shard, index):
    """The index of a shard has the shard's own stem, dots included."""
    assert index_name(shard) == index


@pytest.mark.parametrize("name", ["a.tar", "d/a.tar", "d.e/..a.tar", "ä b.tar"])
def test_contained_names(name):
    """Names below the folder are fine."""
    assert is_contained(name)


@pytest.mark.parametrize(
    "name",
    ["", "/a.tar", "../a.tar", "d/../a.tar", "./a.tar", "d//a.tar", "s3://b/a", "a\\b", "a\0b"],
)
def test_names_that_leave_the_folder(name):
    """Absolute names, parents, URLs and control characters are refused."""
    assert not is_contained(name)
