"""Every odd file of the large data: what its manifest says is right, and never anything else."""

from __future__ import annotations

import contextlib
import io
import json
import resource

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

from fastfeed.decoding import turbojpeg
from fastfeed.decoding.window import Box
from fastfeed.errors import DecodeError
from fastfeed.fields import Array, Image, Json

JPEGS = ("jpeg_broken", "jpeg_coding", "jpeg_color", "jpeg_exif", "jpeg_trailing", "camera_padded")
OTHERS = (
    "json", "npy", "png", "webp", "bmp", "gif", "tiff", "avif_heic", "jpeg2000", "other_images",
)  # fmt: skip
MIXED = ("derived", "misnamed", "bombs")

# Pillow and the libraries below it warn of some of these files; that is no part of the result.
pytestmark = pytest.mark.filterwarnings("ignore")


def entries(large_data, folder):
    """Return the manifest's entries of one folder of odd files."""
    lines = (large_data / "manifest.jsonl").read_text().splitlines()
    found = [entry for line in lines if (entry := json.loads(line))["file"].split("/")[1] == folder]
    found = [entry for entry in found if entry["file"].startswith("odd/")]
    assert found, folder
    return found


def wrong(kit, entry, data, decoders):
    """Return what is wrong about the outcome of one file, None if it is right."""
    kind = {"npy": Array, "npz": Array, "json": Json}.get(entry["file"].rsplit(".", 1)[-1], Image)
    try:
        out = kit.one(kind("x"), data, decoders=decoders)
    except DecodeError as error:
        if error.field != "x":
            return f"an error that names the field {error.field!r}"
        return f"refused: {error}" if entry["expect"] == "ok" else None
    if entry["expect"] == "error":
        return "taken, though it is broken"
    stated = entry.get("pil") or {}
    if kind is not Image or not stated.get("ok"):
        return None
    width, height = stated["size"]
    if stated.get("orient") in {5, 6, 7, 8} and stated["fmt"] != "TIFF":  # Pillow turns TIFFs
        width, height = height, width
    if out.shape != (height, width, 3):
        return f"{out.shape} in place of {(height, width, 3)}"
    return _unlike_pillow(out, data)


def _unlike_pillow(out, data):
    try:
        picture = ImageOps.exif_transpose(Pillow.open(io.BytesIO(data)))
        if picture.mode.startswith(("I", "F")):  # Pillow clips these; test_kinds.py has them
            return None
        expected = np.asarray(picture.convert("RGB")).astype(int)
    except Exception:  # noqa: BLE001 - here Pillow itself refuses a file that some path can decode
        return None
    difference = np.abs(out - expected).mean()
    return f"{difference:.2f} levels from Pillow" if difference >= 0.5 else None


def check(kit, large_data, folder, decoders):
    """Decode a folder's files one after the other, as a worker does: none spoils the next."""
    failures = []
    for entry in entries(large_data, folder):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reason = wrong(kit, entry, (large_data / entry["file"]).read_bytes(), decoders)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if reason is None and grown > 700_000:
            reason = f"{grown // 1000} MB of memory"
        if reason is not None:
            failures.append(f"{entry['file']}: {reason}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("folder", JPEGS + MIXED)
def test_c69_c70_odd_jpegs(kit, large_data, decoders, folder):
    """JPEGs of every kind, in every order of decoders, are Pillow's picture or a DecodeError."""
    check(kit, large_data, folder, decoders)


@pytest.mark.parametrize("folder", OTHERS)
def test_odd_files(kit, large_data, folder):
    """Good files decode to what Pillow makes of them; broken ones are a DecodeError."""
    check(kit, large_data, folder, ("turbojpeg", "simplejpeg", "pillow"))


def test_a_bad_file_does_not_spoil_the_next(kit, large_data, photos):
    """After each bad JPEG the same thread still decodes a good one the fast way.

    libjpeg-turbo is asked itself: another decoder would step in, and only the speed be lost.
    """
    if turbojpeg.shared_library() is None:
        pytest.skip("libturbojpeg is not installed")
    good = np.frombuffer(photos[0].read_bytes(), np.uint8)

    def fast():
        header = turbojpeg.read_header(good)
        assert header is not None
        box, memory = Box(8, 8, 64, 48), np.empty(1 << 20, np.uint8)
        part = turbojpeg.decode_region(
            header,
            box,
            shrink=1,
            gray=False,
            scratch=lambda nbytes: memory[:nbytes],
            tolerant=False,
        )
        assert part is not None
        return part.copy()

    expected = fast()
    for folder in ("jpeg_broken", "jpeg_coding", "bombs"):
        for entry in entries(large_data, folder):
            with contextlib.suppress(DecodeError):
                kit.one(Image("jpg"), (large_data / entry["file"]).read_bytes())
            assert np.array_equal(fast(), expected), entry["file"]
