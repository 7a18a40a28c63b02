"""Pictures made raw by the builder: what training would make of them, stored as arrays."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import fastfeed as ff
from fastfeed.errors import DecodeError, StorageError
from fastfeed_shard import pictures
from fastfeed_shard.pictures import RawPictures
from fastfeed_shard.samples import MadePart, file_part

ORIENTATION = 0x0112


def scene(height, width, seed=0):
    """Return a picture [h, w, 3] with slopes and edges."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [np.sin(x / 9 + k + seed) * 60 + np.cos(y / 11 - k) * 50 + 128 for k in range(3)]
    return np.stack(planes, axis=2).astype(np.uint8)


def encode(picture, kind="JPEG", *, orientation=1, **options):
    """Return the file of an array, with an EXIF orientation."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, exif=exif, **options)
    return file.getvalue()


def load(data):
    """Return the array of an .npy."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def by_pillow(data, side):
    """Return what Pillow alone makes of a picture: turned, RGB, the shorter side `side`."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    width, height = picture.size
    short = min(width, height)
    size = (int(side * width / short), int(side * height / short))
    return np.asarray(picture.resize(size, Image.Resampling.BILINEAR))


@pytest.fixture
def photo_tree(make_tree):
    """Two classes of three photos of several sizes, one turned and one a PNG, each with a json."""
    files = {}
    for number in range(6):
        name = f"{'ab'[number % 2]}/{number:03d}"
        picture = scene(40 + 7 * number, 70 - 5 * number, number)
        files[f"{name}.json"] = b'{"number": %d}' % number
        if number == 4:
            files[f"{name}.png"] = encode(picture, "PNG")
        else:
            files[f"{name}.jpg"] = encode(picture, orientation=6 if number == 3 else 1)
    return make_tree(files)


def originals(tree):
    """Return key -> bytes of each picture of a tree."""
    return {
        path.relative_to(tree).with_suffix("").as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.suffix in {".jpg", ".png"}
    }


# What is built


def test_pictures_become_arrays(photo_tree, tmp_path, built, samples_of):
    """The field `npy` holds them as displayed, at the new size; all other fields are as before."""
    out = built("build", photo_tree, tmp_path / "out", "--pictures", "raw", "--side", 24)
    samples = samples_of(tmp_path / "out")
    files = originals(photo_tree)
    assert samples.keys() == files.keys()
    for key, fields in samples.items():
        assert set(fields) == {"cls", "json", "npy"}
        assert np.array_equal(load(fields["npy"]), by_pillow(files[key], 24))
    nbytes = sum(len(fields["npy"]) for fields in samples.values())
    assert f"pictures: 6 raw, {nbytes / 1000:.3g} kB" in out
    assert "cls (6), json (6), npy (6)" in out
    built("verify", tmp_path / "out", "--decode", "--fields", "npy,cls")


def test_square(photo_tree, tmp_path, built, samples_of):
    """The middle is kept: what Resize and CenterCrop make of the files, within rounding."""
    built("build", photo_tree, tmp_path / "out", "--pictures", "raw", "--side", 24, "--square")
    built("build", photo_tree, tmp_path / "files")
    transforms = (ff.Resize(24), ff.CenterCrop(24))
    files = ff.ShardDataset(
        tmp_path / "files", {"image": ff.Image(("jpg", "png"), *transforms)}, seed=1
    )
    for place, fields in enumerate(samples_of(tmp_path / "out").values()):
        picture = load(fields["npy"])
        assert picture.shape == (24, 24, 3)
        wanted = files[place]["image"].permute(1, 2, 0).numpy()
        assert np.abs(picture.astype(int) - wanted).mean() < 1


def test_the_side_has_a_default(photo_tree, tmp_path, built, samples_of):
    """It is 256, and smaller pictures are enlarged to it."""
    built("build", photo_tree, tmp_path / "out", "--pictures", "raw")
    for fields in samples_of(tmp_path / "out").values():
        assert min(load(fields["npy"]).shape[:2]) == 256


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from(["L", "RGB", "RGBA"]),
    st.integers(1, 8),
)
def test_any_size_is_as_planned(height, width, side, square, mode, orientation):
    """Whatever the picture, the array has the size that its header promised."""
    picture = np.asarray(Image.fromarray(scene(height, width)).convert(mode))
    data = encode(picture, "PNG", orientation=orientation)
    recipe = RawPictures(side, square=square)
    made = recipe.make(data)
    shape = load(made).shape
    assert shape[2] == 3
    assert min(shape[:2]) == side
    assert not square or shape[:2] == (side, side)
    turned = (width, height) if orientation >= 5 else (height, width)
    assert len(made) == recipe.nbytes(*turned)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations(make_tree, tmp_path, built, samples_of, kind, orientation):
    """Every format is stored as displayed, and planned so."""
    field = {"JPEG": "jpg", "TIFF": "tif"}.get(kind, kind.lower())
    data = encode(scene(30, 50), kind, orientation=orientation)
    tree = make_tree({f"a/x.{field}": data})
    out = built("build", tree, tmp_path / "out", "--pictures", "raw", "--side", 20)
    picture = load(samples_of(tmp_path / "out")["a/x"]["npy"])
    assert np.array_equal(picture, by_pillow(data, 20))
    assert picture.shape == ((33, 20, 3) if orientation >= 5 else (20, 33, 3))
    assert "1 samples in 1 shards" in out


def test_sizes_behind_large_headers(make_tree, tmp_path, built, samples_of):
    """A JPEG whose size comes after a colour profile of 200 kB is measured too."""
    data = encode(scene(30, 50), icc_profile=bytes(200_000))
    tree = make_tree({"a/x.jpg": data})
    built("build", tree, tmp_path / "out", "--pictures", "raw", "--side", 20)
    assert load(samples_of(tmp_path / "out")["a/x"]["npy"]).shape == (20, 33, 3)


def test_same_bytes_whatever_the_jobs(photo_tree, tmp_path, built, contents_of, monkeypatch):
    """One process or several, one task of measuring or many: identical output."""
    options = ("--pictures", "raw", "--side", 24, "--shard-size", "12KiB")
    built("build", photo_tree, tmp_path / "a", "--jobs", 1, *options)
    monkeypatch.setattr(pictures, "_PICTURES_A_TASK", 2)
    built("build", photo_tree, tmp_path / "b", "--jobs", 3, *options)
    assert len(list((tmp_path / "a").glob("*.tar"))) > 2
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")


def test_dry_run(photo_tree, tmp_path, built):
    """It shows the true sizes of the shards, and writes nothing."""
    options = ("--pictures", "raw", "--side", 24, "--shard-size", "12KiB")
    out = built("build", photo_tree, tmp_path / "out", "--dry-run", *options)
    assert not (tmp_path / "out").exists()
    built("build", photo_tree, tmp_path / "out", *options)
    sizes = [line.split("\t")[::2] for line in out.splitlines() if line.startswith("train-")]
    assert sizes == [
        [tar.name, f"{tar.stat().st_size} bytes"]
        for tar in sorted((tmp_path / "out").glob("*.tar"))
    ]


def test_tables(photo_tree, tmp_path, built, samples_of):
    """Pictures that a table names are made raw as well."""
    table = photo_tree / "table.csv"
    table.write_text("key,image,cls\nx,a/000.jpg,3\n")
    built("build", table, tmp_path / "out", "--pictures", "raw", "--side", 24)
    fields = samples_of(tmp_path / "out")["x"]
    assert set(fields) == {"npy", "cls"}
    wanted = by_pillow((photo_tree / "a/000.jpg").read_bytes(), 24)
    assert np.array_equal(load(fields["npy"]), wanted)


# Going on


def test_resume(photo_tree, tmp_path, built, run, contents_of):
    """A build goes on with the same options only, and one that is complete is left alone."""
    options = ("--pictures", "raw", "--side", 24, "--shard-size", "12KiB")
    built("build", photo_tree, tmp_path / "whole", *options)
    bad = photo_tree / "b/005.jpg"
    status, good = bad.stat(), bad.read_bytes()
    cut = good[: len(good) // 2] + bytes(len(good) - len(good) // 2)
    bad.write_bytes(cut)
    os.utime(bad, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run("build", photo_tree, tmp_path / "out", "--jobs", 1, *options)[0] == 1
    assert list((tmp_path / "out").glob("*.tar"))
    bad.write_bytes(good)
    os.utime(bad, ns=(status.st_atime_ns, status.st_mtime_ns))
    other = ("--pictures", "raw", "--side", 25, "--shard-size", "12KiB")
    code, _, err = run("build", photo_tree, tmp_path / "out", "--resume", *other)
    assert code == 2
    assert "other files or options" in err
    built("build", photo_tree, tmp_path / "out", "--resume", *options)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")
    assert "complete already" in built("build", photo_tree, tmp_path / "out", "--resume", *options)
    later = (tmp_path / "out/dataset.json").stat().st_mtime_ns + 10**9
    os.utime(photo_tree / "a/000.jpg", ns=(later, later))
    code, _, err = run("build", photo_tree, tmp_path / "out", "--resume", *options)
    assert code == 2
    assert "has changed since" in err


# What is refused


@pytest.mark.parametrize("square", [(), ("--square",)])
@pytest.mark.parametrize("fault", ["rubbish", "cut short", "cut header"])
def test_bad_pictures_end_the_build(photo_tree, tmp_path, run, fault, square):
    """The error names the file, the key and the field, and no data set is left behind."""
    bad = photo_tree / "b/003.jpg"
    data = bad.read_bytes()
    bad.write_bytes(
        {"rubbish": b"no picture", "cut short": data[:-40], "cut header": data[:30]}[fault]
    )
    options = ("--pictures", "raw", "--side", 24, *square)
    code, _, err = run("build", photo_tree, tmp_path / "out", "--jobs", 2, *options)
    assert code == 1
    assert "b/003.jpg" in err
    assert "key 'b/003'" in err
    assert "take it out" in err
    assert not (tmp_path / "out").exists()


def test_pictures_that_become_too_large(make_tree, tmp_path, run):
    """A strip whose shorter side would be blown up beyond the budget is refused beforehand."""
    tree = make_tree({"a/x.png": encode(np.zeros((1, 9000, 3), np.uint8), "PNG")})
    code, _, err = run("build", tree, tmp_path / "out", "--pictures", "raw", "--side", 2000)
    assert code == 1
    assert "budget" in err
    with pytest.raises(DecodeError, match="budget"):
        RawPictures(2000, square=True).make((tree / "a/x.png").read_bytes())


def test_masks_stay_as_they_are(make_tree, tmp_path, built, run, samples_of):
    """A field with a dot is left alone; two pictures that would both be `npy` are refused."""
    picture, mask = encode(scene(40, 50)), encode(scene(40, 50)[..., 0], "PNG")
    tree = make_tree({"a/x.jpg": picture, "a/x.seg.png": mask})
    built("build", tree, tmp_path / "out", "--pictures", "raw", "--side", 24)
    assert samples_of(tmp_path / "out")["a/x"]["seg.png"] == mask
    fields = {"image": ff.Image("npy", ff.CenterCrop(20)), "m": ff.Mask("seg.png", like="image")}
    assert ff.ShardDataset(tmp_path / "out", fields)[0]["m"].shape == (20, 20)
    for name in ("png", "npy"):
        both = make_tree({"a/x.jpg": picture, f"a/x.{name}": mask}, folder=name)
        code, _, err = run("build", both, tmp_path / "other", "--pictures", "raw")
        assert code == 2
        assert "two fields" in err
        assert "seg.png" in err


def test_wrong_calls(animals, make_tree, tmp_path, run):
    """A size without raw pictures, and raw pictures without a picture, are wrong calls."""
    for options in (("--side", 24), ("--square",)):
        code, _, err = run("build", animals, tmp_path / "out", *options)
        assert code == 2
        assert "--pictures raw" in err
    tree = make_tree({"a/x.txt": b"1"}, folder="texts")
    code, _, err = run("build", tree, tmp_path / "out", "--pictures", "raw")
    assert code == 2
    assert "no field is a picture" in err
    assert run("build", animals, tmp_path / "out", "--pictures", "raw", "--side", 1 << 16)[0] == 2


def test_another_size_than_planned(tmp_path):
    """Data of another size than the plan has would upset the shard, and are an error."""
    path = tmp_path / "x.jpg"
    path.write_bytes(encode(scene(30, 50)))
    recipe = RawPictures(20)
    size = recipe.nbytes(30, 50)
    source = file_part("jpg", str(path))
    assert len(MadePart("npy", source, size, recipe).open().read()) == size
    with pytest.raises(StorageError, match="as planned"):
        MadePart("npy", source, size + 3, recipe).open()


# Who reads it


def test_webdataset(photo_tree, tmp_path, built):
    """The package webdataset gives the arrays as they are."""
    built("build", photo_tree, tmp_path / "out", "--pictures", "raw", "--side", 24)
    files = originals(photo_tree)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        webdataset = pytest.importorskip("webdataset")
        url = str(tmp_path / "out/train-000000.tar")
        dataset = webdataset.WebDataset(url, shardshuffle=False).decode()
        read = {sample["__key__"]: sample["npy"] for sample in dataset}
    assert read.keys() == files.keys()
    for key, picture in read.items():
        assert np.array_equal(picture, by_pillow(files[key], 24))


@pytest.mark.parametrize("workers", [0, 1])
def test_loader(photo_tree, tmp_path, built, workers):
    """Our own loader trains on them, in bfloat16 too: stacked or, without a crop, as a list."""
    built("build", photo_tree, tmp_path / "out", "--pictures", "raw", "--side", 24)
    crop = (ff.RandomResizedCrop(16), ff.HorizontalFlip())
    numbers = ((0.5,) * 3, (0.25,) * 3)
    fields = {
        "plain": ff.Image("npy", *crop, ff.Normalize(*numbers)),
        "short": ff.Image("npy", ff.Normalize(*numbers, dtype="bfloat16"), like="plain"),
        "whole": ff.Image("npy", ff.Normalize(*numbers, dtype="bfloat16")),
        "number": ff.Json("json"),
    }
    dataset = ff.ShardDataset(tmp_path / "out", fields)
    for batch in ff.DataLoader(dataset, batch_size=3, num_workers=workers):
        assert batch["short"].dtype == torch.bfloat16
        assert batch["short"].shape == (3, 3, 16, 16)
        assert batch["short"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch["short"], batch["plain"].to(torch.bfloat16))
        assert {picture.dtype for picture in batch["whole"]} == {torch.bfloat16}
        assert all(min(picture.shape[1:]) == 24 for picture in batch["whole"])
    assert dataset[0]["short"].dtype == torch.bfloat16


def test_torch_is_not_needed(photo_tree, tmp_path):
    """Neither a plain build nor one of raw pictures loads torch; a plain one no Pillow either."""
    for options, heavy in (((), {"torch", "PIL"}), (("--pictures", "raw"), {"torch"})):
        script = (
            "import sys; from fastfeed_shard.main import main; "
            f"main(sys.argv[1:]); print(*(set(sys.modules) & {heavy!r}))"
        )
        arguments = ["build", photo_tree, tmp_path / f"out{len(options)}", "--quiet", "--jobs", "1"]
        found = subprocess.run(
            [sys.executable, "-c", script, *map(str, arguments), *options],
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == []
