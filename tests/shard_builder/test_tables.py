"""Building from CSV and JSONL: which column becomes what, and how a bad row is named."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def pictures(make_tree):
    """A folder with three pictures to refer to, and two masks."""
    return make_tree(
        {
            "img/a.jpg": b"A",
            "img/b.jpg": b"B",
            "img/c.PNG": b"C",
            "mask/a.png": b"ma",
            "mask/b.png": b"mb",
        },
        "tables",
    )


def test_csv_by_default(pictures, tmp_path, built, samples_of):
    """Columns called file and txt are taken as such; the rest is JSON; rows are numbered."""
    (pictures / "t.csv").write_text(
        'file,txt,note\nimg/a.jpg,"one, two",x\nimg/b.jpg,,y\nimg/c.PNG,drei\u00fc,\n'
    )
    built("build", pictures / "t.csv", tmp_path / "out")
    assert samples_of(tmp_path / "out") == {
        "000000000": {"jpg": b"A", "txt": b"one, two", "json": b'{"note": "x"}'},
        "000000001": {"jpg": b"B", "json": b'{"note": "y"}'},
        "000000002": {"png": b"C", "txt": "drei\u00fc".encode(), "json": b'{"note": ""}'},
    }


def test_csv_with_named_columns(pictures, tmp_path, built, samples_of):
    """Several files a row, fields of their own, and keys from a column."""
    (pictures / "t.csv").write_text(
        "id,picture,outline,label\nk1,img/a.jpg,mask/a.png,3\nk2,img/b.jpg,,4\n"
    )
    built(
        *("build", pictures / "t.csv", tmp_path / "out", "--key", "id"),
        *("--files", "picture,outline=seg.png", "--fields", "label=cls"),
    )
    assert samples_of(tmp_path / "out") == {
        "k1": {"jpg": b"A", "seg.png": b"ma", "cls": b"3"},
        "k2": {"jpg": b"B", "cls": b"4"},
    }


def test_jsonl(pictures, tmp_path, built, samples_of):
    """Values keep their kind; absent and null fields are lacking."""
    rows = [
        {"key": "x", "image": "img/a.jpg", "cls": 1, "boxes": [[1, 2]], "who": None},
        {"key": "y", "image": None, "cls": 0, "txt": "text"},
    ]
    (pictures / "t.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    built("build", pictures / "t.jsonl", tmp_path / "out")
    assert samples_of(tmp_path / "out") == {
        "x": {"jpg": b"A", "cls": b"1", "json": b'{"boxes": [[1, 2]], "who": null}'},
        "y": {"cls": b"0", "txt": b"text"},
    }


def test_tables_are_sorted_like_folders(pictures, tmp_path, built, contents_of):
    """The order of rows with keys changes nothing."""
    rows = ["b,img/b.jpg", "a,img/a.jpg", "c,img/c.PNG"]
    for name in ("one", "two"):
        (pictures / f"{name}.csv").write_text("\n".join(["key,file", *rows]) + "\n")
        built("build", pictures / f"{name}.csv", tmp_path / name)
        rows.reverse()
    assert contents_of(tmp_path / "one") == contents_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("content", "options", "code", "words"),
    [
        ("file\nimg/a.jpg\nimg/gone.jpg\n", (), 1, ["line 3", "gone.jpg"]),
        ("file\n../secret.txt\n", (), 2, ["line 2", "../secret.txt", "--allow-outside"]),
        ("file\n/etc/passwd\n", (), 2, ["line 2", "/etc/passwd"]),
        ("file\nimg/../../up.jpg\n", (), 2, ["line 2"]),
        ("file\nimg\n", (), 2, ["line 2", "extension"]),
        ("a,b\n1\n", (), 2, ["line 2", "1 values for 2 columns"]),
        ("a,a\n1,2\n", (), 2, ["different names"]),
        ('a,b\n"1,2\n', (), 2, ["after line"]),
        ("", (), 2, ["different names"]),
        ("key,cls\nx,cat\n", (), 2, ["line 2", "'cat'", "cls"]),
        ("key,txt\nx,1\nx,2\n", (), 2, ["'x'", "unique"]),
        ("key,txt\nx y,1\n", (), 2, ["line 2", "x y", "--rename"]),
        ("key,txt\n../x,1\n", (), 2, ["line 2", "../x"]),
        ("key,txt\n,1\n", (), 2, ["line 2", "no key"]),
        ("file,txt\n,\n", (), 2, ["line 2", "no field"]),
        ("file\nimg/a.jpg\n", ("--files", "picture"), 2, ["no column 'picture'", "file"]),
        ("file,path\nimg/a.jpg,img/b.jpg\n", (), 2, ["line 2", "same field"]),
    ],
)
def test_bad_rows_are_named(  # noqa: PLR0917 - fixtures and cases
    pictures, tmp_path, run, content, options, code, words
):
    """Each error says which line, column or file, and nothing is written."""
    (tmp_path / "secret.txt").write_text("secret")
    (pictures / "t.csv").write_text(content)
    result, _, err = run("build", pictures / "t.csv", tmp_path / "out", *options)
    assert result == code
    for word in words:
        assert word in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"key": "a", "txt": "1"}\n{"key": \n', ["line 2"]),
        (b"[1]\n", ["line 1", "no JSON object"]),
        (b'{"file": 3}\n', ["line 1", "'file'"]),
        (b'{"key": "a", "txt": [1]}\n', ["line 1", "txt"]),
        (b'{"key": "a", "cls": 1.5}\n', ["line 1", "cls"]),
        (b'{"key": true, "cls": 1}\n', ["line 1", "no key"]),
        (b"\xff\xfe\n", ["line 1"]),
    ],
)
def test_bad_json_lines(pictures, tmp_path, run, content, words):
    """So do errors in JSONL."""
    (pictures / "t.jsonl").write_bytes(content)
    code, _, err = run("build", pictures / "t.jsonl", tmp_path / "out")
    assert code == 2
    for word in words:
        assert word in err


def test_files_outside_can_be_allowed(pictures, tmp_path, built, samples_of):
    """With the option, absolute names and `..` are followed."""
    (tmp_path / "far.jpg").write_bytes(b"far")
    (pictures / "t.csv").write_text(f"key,file\na,../far.jpg\nb,{tmp_path}/far.jpg\n")
    built("build", pictures / "t.csv", tmp_path / "out", "--allow-outside")
    assert samples_of(tmp_path / "out") == {"a": {"jpg": b"far"}, "b": {"jpg": b"far"}}


def test_table_options_need_a_table(pictures, tmp_path, run):
    """They are refused for folders, rather than ignored."""
    assert run("build", pictures, tmp_path / "out", "--key", "id")[0] == 2


def test_missing_table(tmp_path, run):
    """A table that isn't there is named."""
    code, _, err = run("build", tmp_path / "gone.csv", tmp_path / "out")
    assert code == 1
    assert "gone.csv" in err
