"""`ls`, `cat` and `extract`, on shards of good and of bad will."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from fastfeed_shard.main import main


@pytest.fixture
def dataset(animals, tmp_path, built):
    """Two shards of animals."""
    built("build", animals, tmp_path / "out", "--shard-size", "16KiB")
    return tmp_path / "out"


def test_list(dataset, built):
    """A line a sample; fields with their sizes."""
    lines = built("ls", dataset).splitlines()
    assert len(lines) == 10
    assert lines[0] == "train-000000.tar\tcat/000\tcls:1 jpg:6 json:13"


def test_cat(animals, tmp_path, capfdbinary):
    """One field, or all fields of a sample in order."""
    dataset = tmp_path / "out"
    assert main(["build", str(animals), str(dataset), "--quiet"]) == 0
    assert main(["cat", str(dataset), "dog/003.json"]) == 0
    assert main(["cat", str(dataset), "dog/003.cls"]) == 0
    assert main(["cat", str(dataset), "cat/000"]) == 0
    assert capfdbinary.readouterr().out == b'{"number": 3}' + b"1" + b'0cat 0 {"number": 0}'


def test_cat_what_is_not_there(dataset, run):
    """The message says which fields the sample has."""
    code, _, err = run("cat", dataset, "dog/003.jpeg")
    assert code == 2
    assert "cls, jpg, json" in err
    code, _, err = run("cat", dataset, "dog/999.jpg")
    assert code == 2
    assert "dog/999" in err


def test_extract(dataset, animals, tmp_path, built, run, contents_of):
    """Everything comes back; nothing is written twice."""
    built("extract", dataset, tmp_path / "x")
    files = contents_of(tmp_path / "x")
    assert {k: v for k, v in files.items() if not k.endswith(".cls")} == contents_of(animals)
    code, _, err = run("extract", dataset, tmp_path / "x")
    assert code == 2
    assert "nothing is overwritten" in err
    assert contents_of(tmp_path / "x") == files


def test_disk_full_leaves_no_half_file(dataset, tmp_path, run, contents_of, monkeypatch):
    """A file that could not be written to its end is gone, and the error names it."""
    original = os.write

    def full(file, data):
        if len(data) > 6:
            original(file, data[:3])
            raise OSError(28, "No space left on device")
        return original(file, data)

    monkeypatch.setattr("fastfeed_shard.extract.os.write", full)
    code, _, err = run("extract", dataset, tmp_path / "x")
    monkeypatch.undo()
    assert code == 1
    assert "cat/000.json" in err
    assert "Make room" in err
    assert "cat/000.json" not in contents_of(tmp_path / "x")


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/abs/evil.txt", "a/../../evil.txt", "a//b.txt", "a\\evil.txt"]
)
def test_hostile_names_stay_names(pack_tar, tmp_path, run, built, name):
    """They can be listed and shown, but not extracted; not even the good ones beside them."""
    shard = pack_tar("in/bad.tar", ("good.txt", b"good"), (name, b"evil"))
    assert len(built("ls", shard).splitlines()) == 2
    code, _, err = run("extract", shard, tmp_path / "deep/x")
    assert code == 1
    assert "nothing was extracted" in err
    assert not (tmp_path / "deep").exists()
    assert not list(tmp_path.rglob("evil*"))


def test_unprintable_names_are_escaped(pack_tar, built, run, tmp_path):
    """A name can't write to the terminal."""
    shard = pack_tar(
        "in/odd.tar", ("\x1b[31mred.txt", b"x"), ("line\nbreak.txt", b"y"), ("\udcff.txt", b"z")
    )
    out = built("ls", shard)
    assert "\\x1b[31mred" in out
    assert "line\\nbreak" in out
    assert "\\udcff" in out
    assert run("extract", shard, tmp_path / "x")[0] == 1


def test_links_in_the_way_are_not_followed(pack_tar, tmp_path, run):
    """A link that lies where a folder or file should be made leads nowhere."""
    shard = pack_tar("in/s.tar", ("sub/a.txt", b"new"), ("b.txt", b"new"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("old")
    for link, target in (("sub", outside), ("b.txt", outside / "b.txt")):
        folder = tmp_path / f"x-{link}"
        folder.mkdir()
        (folder / link).symlink_to(target)
        assert run("extract", shard, folder)[0] in {1, 2}
        assert os.listdir(outside) == ["b.txt"]
        assert (outside / "b.txt").read_text() == "old"


def member(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def test_c08_every_kind_of_member(pack_tar, tmp_path, run, built, contents_of):
    """Folders, links, pipes and twins are no samples; a hard link is its target's bytes."""
    shard = pack_tar(
        "in/all.tar",
        member("./", tarfile.DIRTYPE),
        ("./a.jpg", b"data"),
        member("link.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        member("b.jpg", tarfile.LNKTYPE, "./a.jpg"),
        member("pipe.jpg", tarfile.FIFOTYPE),
        member("disk.jpg", tarfile.BLKTYPE),
        ("._a.jpg", b"twin"),
        ("empty.jpg", b""),
    )
    keys = [line.split("\t")[1] for line in built("ls", shard).splitlines()]
    assert keys == ["a", "b", "empty"]
    code, _, err = run("verify", shard)
    assert code == 0
    for words in ("1 members belong to no sample (symlink)", "2 members", "(other name)"):
        assert words in err
    built("extract", shard, tmp_path / "x")
    assert contents_of(tmp_path / "x") == {"a.jpg": b"data", "b.jpg": b"data", "empty.jpg": b""}


def test_two_shards_with_the_same_key(pack_tar, tmp_path, run):
    """Extracting both to one folder is refused rather than losing one."""
    folder = pack_tar("in/a.tar", ("img.jpg", b"1")).parent
    pack_tar("in/b.tar", ("img.jpg", b"2"))
    code, _, err = run("extract", folder, tmp_path / "x")
    assert code == 2
    assert "img.jpg" in err
    assert (tmp_path / "x/img.jpg").read_bytes() == b"1"


def test_usage(capsys):
    """A wrong call is exit code 2 by argparse; --version tells the version."""
    for arguments, code in ((["fly"], 2), ([], 2), (["build"], 2), (["--version"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code
    for jobs in ("0", "-1", "many"):
        with pytest.raises(SystemExit) as ended:
            main(["verify", "x", "--jobs", jobs])
        assert ended.value.code == 2
        assert f"{jobs!r} is not a whole number from 1 up" in capsys.readouterr().err


def test_reader_that_goes_away(dataset, monkeypatch):
    """`ls | head` ends without a traceback."""

    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

        def fileno(self):
            return spare

    spare = os.open(os.devnull, os.O_WRONLY)
    monkeypatch.setattr("sys.stdout", Closed())
    assert main(["ls", str(dataset)]) == 1
    os.close(spare)


def test_progress_on_a_terminal(animals, tmp_path, monkeypatch, capsys):
    """With a terminal there is a bar, and it leaves no thread behind."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["build", str(animals), str(tmp_path / "out"), "--shard-size", "8KiB"]) == 0
    assert "10 samples" in capsys.readouterr().out
