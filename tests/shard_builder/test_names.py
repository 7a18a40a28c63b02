"""C03, C06: which names are taken, which are refused, and how they are rewritten."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.shardfile.names import split_name
from fastfeed_shard.safe import rename_key, split_loosely, why_unsafe


@pytest.mark.parametrize(
    ("name", "key", "field"),
    [
        ("v1.0/a.jpg", "v1.0/a", "jpg"),
        ("v1.0/a.json", "v1.0/a", "json"),
        ("x.seg.png", "x", "seg.png"),
        ("x.png", "x", "png"),
        ("UPPER.JPG", "UPPER", "jpg"),
    ],
)
def test_c03_keys_and_fields(  # noqa: PLR0917 - fixtures and cases
    make_tree, tmp_path, built, samples_of, name, key, field
):
    """The first dot of the base name ends the key; folders are never split."""
    built("build", make_tree({name: b"data"}), tmp_path / "out", "--layout", "files")
    assert samples_of(tmp_path / "out") == {key: {field: b"data"}}


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("22.05.png", "22%2E05.png"),
        ("class a/b.jpg", "class%20a/b.jpg"),
        ("é.jpg", "%C3%A9.jpg"),
        ("a.b.c/dots.in.name.v1.2.json", "a.b.c/dots%2Ein%2Ename%2Ev1%2E2.json"),
        ("50%.jpg", "50%25.jpg"),
        ("back\\slash.jpg", "back%5Cslash.jpg"),
        ("x.my seg.png", "x%2Emy%20seg.png"),
        ("__meta__.jpg", "%5F_meta__.jpg"),
        ("2024.01.02 12.30.jpg", "2024%2E01%2E02%2012%2E30.jpg"),
    ],
)
def test_c03_unsafe_names_are_refused_or_rewritten(
    make_tree, tmp_path, run, samples_of, name, renamed
):
    """Names that some reader would misread are refused by name; --rename makes them safe."""
    tree = make_tree({name: b"data", "good.jpg": b"good"})
    code, out, err = run("build", tree, tmp_path / "out", "--layout", "files")
    if name == "50%.jpg":
        assert code == 0
    elif name.startswith("__"):
        assert "1 name like __this__" in out
    else:
        assert code == 2
        assert repr(name) in err
        assert not (tmp_path / "out").exists()
    code, _, err = run("build", tree, tmp_path / "renamed", "--layout", "files", "--rename")
    assert code == 0, err
    samples = samples_of(tmp_path / "renamed")
    key, field = split_name(renamed)
    assert samples[key] == {field: b"data"}
    folder, slash, base = name.rpartition("/")
    assert unquote(key) == f"{folder}{slash}{split_loosely(base)[0]}"


def test_what_rename_cannot_mend_is_not_left_to_it(make_tree, tmp_path, run):
    """Who has asked for --rename already is not told to."""
    tree = make_tree({"a.j\u00f6g": b"1"})
    for more, way_out in (((), "let --rename do it"), (("--rename",), "Rename these files")):
        code, _, err = run("build", tree, tmp_path / "out", "--layout", "files", *more)
        assert code == 2
        assert way_out in err


def test_long_names(make_tree, tmp_path, run, built, samples_of):
    """Names beyond 100 characters split at a folder; those that can't are refused."""
    tree = make_tree({f"{'f' * 90}/{'b' * 60}.jpg": b"1"})
    built("build", tree, tmp_path / "out")
    assert list(samples_of(tmp_path / "out")) == [f"{'f' * 90}/{'b' * 60}"]
    code, _, err = run("build", make_tree({f"a/{'b' * 120}.jpg": b""}, "long"), tmp_path / "no")
    assert code == 2
    assert "does not fit" in err


def test_c06_fields_that_differ_in_case(make_tree, tmp_path, run):
    """`A.jpg` and `A.JPG` would be one field: both files are named."""
    tree = make_tree({"A.jpg": b"1", "A.JPG": b"2"})
    code, _, err = run("build", tree, tmp_path / "out", "--layout", "files")
    assert code == 2
    assert "A.JPG" in err
    assert "A.jpg" in err


def test_class_number_and_file_collide(make_tree, tmp_path, run):
    """A `.cls` file beside a class folder's number is an error with a way out."""
    code, _, err = run("build", make_tree({"a/x.cls": b"7"}), tmp_path / "out")
    assert code == 2
    assert "--layout files" in err


def test_many_offenders_are_counted(make_tree, tmp_path, run):
    """The first few are shown, the others counted."""
    tree = make_tree({f"a/{n} .jpg": b"" for n in range(9)})
    code, _, err = run("build", tree, tmp_path / "out")
    assert code == 2
    assert "and 4 more" in err


def test_names_tree_of_the_test_data(large_data, tmp_path, run, built, samples_of):
    """The tree of odd names is refused as it is, and packed when its names are rewritten."""
    tree = large_data / "odd/names_tree"
    code, _, err = run("build", tree, tmp_path / "out", "--layout", "files")
    assert code == 2
    assert "dots.in.name.v1.2.json" in err
    out = built("build", tree, tmp_path / "out", "--layout", "files", "--rename")
    assert set(samples_of(tmp_path / "out")) == {"a.b.c/dots%2Ein%2Ename%2Ev1%2E2", "dup/0001"}
    assert "1 left by an operating system" in out
    assert "1 name without an extension" in out


@given(
    st.lists(st.text(min_size=1).filter(lambda part: "/" not in part and "\0" not in part)).map(
        "/".join
    )
)
def test_renamed_keys_are_safe_and_lose_nothing(key):
    """Any relative key becomes one that every reader understands, and `unquote` gives it back."""
    parts = key.split("/")
    if any(part in {"", ".", ".."} or part.startswith(".") for part in parts[:-1]) or not parts[-1]:
        return
    try:
        renamed = rename_key(key)
    except UnicodeEncodeError:
        # A lone surrogate that no file name can hold.
        return
    assert unquote(renamed, errors="surrogateescape") == key
    reason = why_unsafe(renamed, "jpg")
    assert reason is None or "does not fit" in reason


@pytest.mark.parametrize("key", ["", "/abs", "../up", "a/../b", "a//b", "a b", "ü", "a\nb", "x.y"])
def test_unsafe_keys(key):
    """Keys that lead out of a folder, or that readers split elsewhere, are told apart."""
    assert why_unsafe(key, "jpg") is not None


@pytest.mark.parametrize("field", ["", "05.png", "my seg.png", "jp/g", "a..b"])
def test_unsafe_fields(field):
    """So are fields that are no extension."""
    assert why_unsafe("a", field) is not None
