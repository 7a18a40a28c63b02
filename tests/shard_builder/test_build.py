"""Building from folders: what goes in comes out, the same bytes whatever the machine did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import pytest

from fastfeed.shardfile.index import load_index
from fastfeed.shardfile.manifest import load_manifest
from fastfeed_shard.samples import FilePart


def test_folders_become_classes(animals, tmp_path, built, samples_of):
    """Keys hold the class folder, `cls` its number in sorted order, side files are fields."""
    out = built("build", animals, tmp_path / "out", "--jobs", 1)
    samples = samples_of(tmp_path / "out")
    assert list(samples) == sorted(f"{c}/{n:03d}" for c in ("cat", "dog") for n in range(5))
    assert set(samples["dog/002"]) == {"cls", "jpg", "json"}
    assert samples["dog/002"]["cls"] == b"1"
    assert samples["dog/002"]["jpg"] == (animals / "dog/002.jpg").read_bytes()
    assert (tmp_path / "out/classes.txt").read_text() == "cat\ndog\n"
    assert "10 samples in 1 shards" in out
    assert "cls (10), jpg (10), json (10)" in out


def test_same_bytes_whatever_the_order_and_the_jobs(
    animals, tmp_path, built, contents_of, monkeypatch, leak_gauge
):
    """Another order of the file system, another number of jobs: identical output."""
    small = ("--shard-size", "8KiB", "--energon")
    built("build", animals, tmp_path / "a", "--jobs", 1, *small)
    built("build", animals, tmp_path / "b", "--jobs", 3, *small)
    scandir = os.scandir

    class Backwards:
        def __init__(self, path):
            self.entries = list(scandir(path))[::-1]

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            pass

        def __iter__(self):
            return iter(self.entries)

    monkeypatch.setattr("os.scandir", Backwards)
    built("build", animals, tmp_path / "c", "--jobs", 2, *small)
    first = contents_of(tmp_path / "a")
    assert len([name for name in first if name.endswith(".tar")]) > 2
    assert first == contents_of(tmp_path / "b") == contents_of(tmp_path / "c")


def test_every_file_is_named_by_the_manifest(animals, tmp_path, built, contents_of):
    """Nothing but what the documents describe is left in the folder."""
    built("build", animals, tmp_path / "out", "--shard-size", "16KiB", "--name", "val")
    names = set(contents_of(tmp_path / "out"))
    manifest = load_manifest(lambda name: (tmp_path / "out" / name).read_bytes())
    expected = {"dataset.json", "shardindex.json", "classes.txt"}
    for shard in manifest.shards:
        stem = shard.name.removesuffix(".tar")
        expected |= {shard.name, f"{stem}.ffx", f"{stem}.idx", f"{stem}.tar.idx"}
        assert shard.name.startswith("val-")
        assert (tmp_path / "out" / shard.name).stat().st_size == shard.bytes <= 16384
        assert len(load_index(tmp_path / "out" / f"{stem}.ffx", verify=True)) == shard.samples
    assert names == expected
    assert manifest.samples == 10


def test_plain_files(make_tree, tmp_path, built, samples_of):
    """Without classes a key is the path, and several extensions share a stem."""
    tree = make_tree({"a/x.jpg": b"1", "a/x.seg.png": b"2", "y.txt": b"", "y.json": b"{}"})
    built("build", tree, tmp_path / "out", "--layout", "files")
    assert samples_of(tmp_path / "out") == {
        "a/x": {"jpg": b"1", "seg.png": b"2"},
        "y": {"txt": b"", "json": b"{}"},
    }
    assert not (tmp_path / "out/classes.txt").exists()


def test_skipped_files_are_counted(make_tree, tmp_path, built):
    """Litter and names without an extension are left out, and the summary says so."""
    tree = make_tree(
        {
            "a/x.jpg": b"1",
            "a/.DS_Store": b"",
            "a/._x.jpg": b"",
            "a/Thumbs.db": b"",
            "a/README": b"",
            "LICENSE.txt": b"",
        }
    )
    out = built("build", tree, tmp_path / "out")
    assert "2 hidden" in out
    assert "1 left by an operating system" in out
    assert "1 name without an extension" in out
    assert "1 beside the class folders" in out


def test_links_are_followed_but_not_in_circles(make_tree, tmp_path, run, built, samples_of):
    """A link to a file stands for its bytes; a folder within itself is an error."""
    tree = make_tree({"a/x.jpg": b"1"})
    (tree / "a/y.jpg").symlink_to(tree / "a/x.jpg")
    built("build", tree, tmp_path / "out")
    assert samples_of(tmp_path / "out")["a/y"]["jpg"] == b"1"
    (tree / "a/again").symlink_to(tree)
    code, _, err = run("build", tree, tmp_path / "other")
    assert code == 1
    assert "contains itself" in err


@pytest.mark.parametrize("kind", ["dangling", "pipe"])
def test_what_is_no_file_is_an_error(make_tree, tmp_path, run, kind):
    """A dangling link and a named pipe are named, and nothing is written."""
    tree = make_tree({"a/x.jpg": b"1"})
    if kind == "dangling":
        (tree / "a/y.jpg").symlink_to(tree / "gone")
    else:
        os.mkfifo(tree / "a/y.jpg")
    code, _, err = run("build", tree, tmp_path / "out")
    assert code == 1
    assert "y.jpg" in err
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_meanwhile_is_an_error(make_tree, tmp_path, run, monkeypatch):
    """What was planned must be what is written; the failed build leaves nothing."""
    tree = make_tree({"a/x.jpg": b"1234"})
    opened = FilePart.open

    def grow(part):
        with open(part.path, "ab") as file:  # noqa: PTH123
            file.write(b"more")
        return opened(part)

    monkeypatch.setattr(FilePart, "open", grow)
    code, _, err = run("build", tree, tmp_path / "out")
    assert code == 1
    assert "has changed since the build began" in err
    assert "x.jpg" in err
    assert not (tmp_path / "out").exists()


def test_error_in_a_process_ends_the_build(animals, tmp_path, run, leak_gauge):
    """An unreadable file fails the whole command by name, with several jobs as well."""
    if os.geteuid() == 0:
        # Root reads everything: a folder in place of the file, once the plan is made, will do.
        victim = animals / "dog/003.jpg"
        code = _build_with_victim(animals, tmp_path / "out", victim)
        assert code == 1
        return
    (animals / "dog/003.jpg").chmod(0)
    code, _, err = run("build", animals, tmp_path / "out", "--jobs", 2, "--shard-size", "4KiB")
    assert code == 1
    assert "dog/003.jpg" in err
    assert not (tmp_path / "out/dataset.json").exists()


def _build_with_victim(source, dest, victim):
    from pathlib import Path

    from fastfeed.errors import StorageError
    from fastfeed_shard.build import build_shards, open_folder
    from fastfeed_shard.plan import plan_shards
    from fastfeed_shard.scan import scan_folder

    plan = plan_shards(
        scan_folder(str(source), classes=True, rename=False), name="train", shard_size=4096
    )
    victim.unlink()
    victim.mkdir()
    with (
        pytest.raises(StorageError, match=r"dog/003\.jpg") as caught,
        open_folder(Path(dest), plan, name="train", resume=False) as folder,
    ):
        build_shards(plan, folder, jobs=2, sync=False, progress=lambda _: None)
    assert caught.value.key == "dog/003"
    assert not any(path.suffix == ".tmp" for path in dest.iterdir())
    return 1


def test_destination_is_never_overwritten(animals, tmp_path, run, contents_of):
    """A folder with files, a finished data set, a folder inside the source: all refused."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    code, _, err = run("build", animals, tmp_path / "mine")
    assert code == 2
    assert "nothing is overwritten" in err
    assert contents_of(tmp_path / "mine") == {"notes.txt": b"keep"}
    assert run("build", animals, tmp_path / "out")[0] == 0
    before = contents_of(tmp_path / "out")
    assert run("build", animals, tmp_path / "out")[0] == 2
    code, out, _ = run("build", animals, tmp_path / "out", "--resume")
    assert code == 0
    assert "complete already" in out
    assert contents_of(tmp_path / "out") == before
    assert run("build", animals, tmp_path / "out", "--resume", "--shard-size", "8KiB")[0] == 2
    assert run("build", animals, tmp_path / "out", "--resume", "--energon")[0] == 2
    changed = next(path for path in animals.rglob("*") if path.is_file())
    later = ((tmp_path / "out/dataset.json").stat().st_mtime_ns + 10**9,) * 2
    before_change = changed.stat()
    os.utime(changed, ns=later)
    code, _, err = run("build", animals, tmp_path / "out", "--resume")
    assert code == 2
    assert "has changed since" in err
    os.utime(changed, ns=(before_change.st_atime_ns, before_change.st_mtime_ns))
    assert run("build", animals, animals / "dog/out")[0] == 2


def test_dry_run_writes_nothing(animals, tmp_path, built):
    """It shows the shards that a build would make, with their true sizes."""
    out = built("build", animals, tmp_path / "out", "--dry-run", "--shard-size", "8KiB")
    assert not (tmp_path / "out").exists()
    built("build", animals, tmp_path / "out", "--shard-size", "8KiB")
    for line in out.splitlines():
        if line.startswith("train-"):
            name, _, nbytes = line.split("\t")
            assert (tmp_path / "out" / name).stat().st_size == int(nbytes.split()[0])


def test_shuffled_order_is_repeatable(animals, tmp_path, built, samples_of, contents_of):
    """A seed gives one order, another seed another; the samples are the same."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        built("build", animals, tmp_path / name, "--shuffle", seed)
    orders = [list(samples_of(tmp_path / name)) for name in "abc"]
    assert orders[0] != sorted(orders[0])
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_no_samples_is_an_error(make_tree, tmp_path, run):
    """A wrong layout says what was there instead of making an empty data set."""
    tree = make_tree({"x.jpg": b"1", "y.jpg": b"2"})
    code, _, err = run("build", tree, tmp_path / "out")
    assert code == 2
    assert "2 beside the class folders" in err
    assert "--layout" in err


def test_energon_files(animals, tmp_path, built):
    """The `.tar.idx` holds the header of each sample and the end; .nv-meta counts per shard."""
    built("build", animals, tmp_path / "out", "--energon")
    offsets = np.fromfile(tmp_path / "out/train-000000.tar.idx", "<u8")
    index = load_index(tmp_path / "out/train-000000.ffx")
    assert offsets[:-1].tolist() == index.cells[..., 0].min(axis=1).tolist()
    assert offsets[-1] == index.shard_bytes - 1024
    info = json.loads((tmp_path / "out/.nv-meta/.info.json").read_text())
    assert info["shard_counts"] == {"train-000000.tar": 10}
    assert "- train-000000.tar" in (tmp_path / "out/.nv-meta/split.yaml").read_text()


def test_large_member_passes_in_pieces(make_tree, tmp_path, built, run, samples_of):
    """A file larger than the buffer, and than the shard size, is a shard of its own (C07)."""
    large = os.urandom(3_000_001)
    tree = make_tree({"a/0.bin": b"x", "a/1.bin": large, "a/2.bin": b"y"})
    built("build", tree, tmp_path / "out", "--shard-size", "1MiB")
    assert samples_of(tmp_path / "out/train-000001.tar") == {"a/1": {"bin": large, "cls": b"0"}}
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3
    assert run("verify", tmp_path / "out")[0] == 0


def test_gnu_tar_reads_the_shards(animals, tmp_path, built, contents_of):
    """`tar -x` restores the files."""
    built("build", animals, tmp_path / "out")
    (tmp_path / "x").mkdir()
    tar = shutil.which("tar")
    done = subprocess.run(
        [tar, "-xf", tmp_path / "out/train-000000.tar", "-C", tmp_path / "x"],
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    restored = contents_of(tmp_path / "x")
    assert {k: v for k, v in restored.items() if not k.endswith(".cls")} == contents_of(animals)


def test_a_class_without_samples_is_refused(run, tmp_path, animals):
    """It would take a number and move those of the classes behind it."""
    (animals / "aardvark").mkdir()
    code, _, err = run("build", animals, tmp_path / "out")
    assert code == 2
    assert "aardvark" in err
