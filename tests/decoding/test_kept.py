"""What was kept gives the very same pictures, masks and arrays as decoding them again."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
import xxhash
import zstandard
from PIL import Image as Pillow

from fastfeed import fields as ff
from fastfeed.decoding.compile import compile_fields
from fastfeed.decoding.kept import Keeper, recipe_of
from fastfeed.decoding.kept_file import KeptFile, begin
from fastfeed.errors import DecodeError

SETTLED = {
    "fixed": (ff.Resize((40, 48)),),
    "fixed and flipped": (ff.Resize((40, 48)), ff.HorizontalFlip(0.5)),
    "shorter side": (ff.Resize(40), ff.CenterCrop(36), ff.HorizontalFlip(0.5)),
    "filled up": (ff.Resize(40), ff.CenterCrop(60), ff.HorizontalFlip(0.5)),
    "nothing": (),
    "normalised": (
        ff.Resize((40, 48)),
        ff.HorizontalFlip(0.5),
        ff.Normalize((0.5,) * 3, (0.2,) * 3),
    ),
}
RANDOM = {
    "random": (ff.RandomResizedCrop(40), ff.HorizontalFlip(0.5)),
    "random, normalised": (
        ff.RandomResizedCrop((40, 30)),
        ff.Normalize((0.5,) * 3, (0.2,) * 3, dtype="bfloat16"),
    ),
}
KINDS = {
    "png": {"kind": "PNG"},
    "webp": {"kind": "WEBP", "quality": 90},
    "jpeg": {"kind": "JPEG", "quality": 92},
    "turned": {"kind": "JPEG", "exif": 6},
    "turned png": {"kind": "PNG", "exif": 8},
}


@pytest.fixture
def file():
    """An empty file of four megabytes in memory."""
    descriptor = os.memfd_create("kept")
    begin(descriptor, 4 << 20)
    yield KeptFile(descriptor)
    os.close(descriptor)


def stored(kit, name, *, size=(150, 200)):
    options = dict(KINDS[name])
    if "exif" in options:
        exif = Pillow.Exif()
        exif[0x0112] = options["exif"]
        options["exif"] = exif
    return kit.encode(kit.scene(*size), options.pop("kind"), **options)


def decoded(fields, sources, draw, keeper=None, decoders=("turbojpeg", "simplejpeg", "pillow")):
    decoder = compile_fields(fields, keeper=keeper, jpeg_decoders=decoders)
    rows = {name: np.full(row.shape, 77, row.dtype) for name, row in decoder.layout.items()}
    views = {name: memoryview(data) for name, data in sources.items()}
    return rows | decoder.decode(views, draw=draw, rows=rows)


def assert_same(fields, sources, file, *, decoders=("turbojpeg", "simplejpeg", "pillow")):
    """Decode ten epochs with and without the file, and return what the keeper counted."""
    keeper = Keeper(file)
    for epoch in range(10):
        plain = decoded(fields, sources, (1, epoch, 3), decoders=decoders)
        kept = decoded(fields, sources, (1, epoch, 3), keeper, decoders)
        assert plain.keys() == kept.keys()
        for name, value in plain.items():
            np.testing.assert_array_equal(kept[name], value)
    return keeper.take_facts()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chain", [*SETTLED, *RANDOM])
def test_pictures_are_the_same(kit, file, decoders, kind, chain):
    """With any decoder, format, orientation and chain: one miss, then hits, all bits equal."""
    field = ff.Image("x", *(SETTLED | RANDOM)[chain])
    facts = assert_same({"out": field}, {"x": stored(kit, kind)}, file, decoders=decoders)
    assert (facts.misses, facts.hits) == (1, 9)
    assert facts.kept_nbytes > 0
    assert min(facts.hit_s, facts.miss_s, facts.keeping_s) > 0


@pytest.mark.parametrize("mode", ["L", "RGBA"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_modes_and_depths(kit, file, mode, dtype):
    """Gray, with opacity and of 16 bits as well; each is kept by itself."""
    data = {"x": kit.encode(kit.scene(80, 90)[..., 0], "PNG")}
    for chain in (RANDOM["random"], SETTLED["fixed and flipped"]):
        field = ff.Image("x", *chain, mode=mode, dtype=dtype)
        assert assert_same({"out": field}, data, file).hits == 9


def test_raw_pictures_are_kept_resized_only(kit, file):
    """An `.npy` is decoded already: only its fixed result is worth keeping."""
    npy = io.BytesIO()
    np.save(npy, kit.scene(150, 200))
    data = {"x": npy.getvalue()}
    facts = assert_same({"out": ff.Image("x", *RANDOM["random"])}, data, file)
    assert (facts.hits, facts.misses) == (0, 0)
    facts = assert_same({"out": ff.Image("x", *SETTLED["fixed"])}, data, file)
    assert (facts.hits, facts.misses) == (9, 1)


def test_large_jpegs_are_decoded_in_part(kit, file):
    """One whose parts may be decoded at a lower size is not kept whole: it would not be equal."""
    data = {"x": stored(kit, "jpeg", size=(300, 400))}
    facts = assert_same({"out": ff.Image("x", ff.RandomResizedCrop(40))}, data, file)
    assert (facts.hits, facts.misses) == (0, 10)
    facts = assert_same({"out": ff.Image("x", ff.Resize((40, 40)))}, data, file)
    assert (facts.hits, facts.misses) == (9, 1)


def test_outputs_of_several_sizes(kit, file):
    """A whole JPEG that the larger output keeps gives the smaller one no other pixels."""
    fields = {
        "large": ff.Image("x", ff.RandomResizedCrop(256)),
        "small": ff.Image("x", ff.RandomResizedCrop(40, scale=(0.5, 1))),
    }
    for order in (fields, dict(reversed(fields.items()))):
        facts = assert_same(order, {"x": stored(kit, "jpeg", size=(480, 480))}, file)
        assert facts.hits >= 9
        assert facts.hits + facts.misses == 20


def test_facts_take_no_memory_while_nobody_asks(file):
    """What was found is summed up, not listed: samples may be taken without a loader for ever."""
    keeper, data = Keeper(file), memoryview(zstandard.compress(bytes(20_000)))
    keeper.unpacked(data)
    tracemalloc.start()
    try:
        for _ in range(1000):
            keeper.unpacked(data)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    assert (keeper.take_facts().hits, keeper.take_facts().hits) == (1000, 0)


def test_what_belongs_to_a_picture_goes_along(kit, file):
    """Masks, boxes and points follow the window of a picture that was found, too."""
    mask = np.random.default_rng(0).integers(0, 20, (150, 200), np.uint8)
    sources = {
        "x": stored(kit, "png"),
        "m": kit.encode(mask, "PNG"),
        "depth": kit.encode(kit.scene(150, 200)[..., 0], "PNG"),
        "b": b"[[10, 20, 60, 70]]",
        "p": b"[[50, 50]]",
    }
    for chain in (RANDOM["random"], SETTLED["shorter side"]):
        described = {
            "image": ff.Image("x", *chain),
            "mask": ff.Mask("m", like="image"),
            "depth": ff.Image("depth", like="image", mode="L"),
            "boxes": ff.Boxes("b", like="image"),
            "points": ff.Keypoints("p", like="image"),
        }
        assert assert_same(described, sources, file).hits >= 27


def test_arrays_in_compressed_fields(file):
    """What is unpacked is kept if it is not tiny; other kinds of fields are unpacked each time."""
    npy = io.BytesIO()
    np.save(npy, np.arange(20_000, dtype=">i4").reshape(100, 200))
    packed = zstandard.compress(npy.getvalue())
    facts = assert_same({"a": ff.Array("a.npy.zst")}, {"a.npy.zst": packed}, file)
    assert (facts.hits, facts.misses) == (9, 1)
    np.save(npy := io.BytesIO(), np.arange(9))
    packed = zstandard.compress(npy.getvalue())
    assert assert_same({"a": ff.Array("a.npy.zst")}, {"a.npy.zst": packed}, file).hits == 0
    text = zstandard.compress(b"x" * 50_000)
    assert assert_same({"t": ff.Text("t.zst")}, {"t.zst": text}, file).misses == 0


@pytest.mark.parametrize(
    "other",
    [
        ff.Image("x", ff.Resize((40, 48)), mode="L"),
        ff.Image("x", ff.Resize((40, 48)), dtype="uint16"),
        ff.Image("x", ff.Resize((40, 48)), exif="ignore"),
        ff.Image("x", ff.Resize((40, 48)), max_pixels=10_000),
        ff.Image("x", ff.Resize((40, 48)), truncated="keep"),
        ff.Image("x", ff.Resize((48, 40))),
        ff.Image("x", ff.RandomResizedCrop((40, 48))),
        ff.Mask("x", ff.Resize((40, 48))),
    ],
    ids=str,
)
def test_another_description_is_another_key(other):
    """Whatever changes the result changes the key; flips and normalising do not."""
    first = ff.Image("x", ff.Resize((40, 48)))
    decoders = ("pillow",)
    same = ff.Image("y", *SETTLED["normalised"])
    one = recipe_of(first, first.transforms, decoders)
    assert recipe_of(same, same.transforms, decoders) == one
    assert recipe_of(other, other.transforms, decoders).seed != one.seed
    assert recipe_of(first, first.transforms, ("turbojpeg",)).seed != one.seed


@pytest.mark.parametrize(
    "other",
    ["torch.__version__", "torch.backends.cpu.get_cpu_capability"]
    + [f"fastfeed.decoding.{one}" for one in ("pillow.version", "turbojpeg.version")]
    + ["fastfeed.decoding.turbojpeg.shared_library"],
)
def test_another_decoder_is_another_key(monkeypatch, other):
    """What another version makes of the same bytes is not taken for ours."""
    field = ff.Image("x", ff.Resize((40, 48)))
    before = recipe_of(field, field.transforms, ("turbojpeg",))
    monkeypatch.setattr(other, "9" if other.endswith("__") else lambda: None)
    assert recipe_of(field, field.transforms, ("turbojpeg",)).seed != before.seed


def test_without_room_nothing_changes(kit, file):
    """Once the file is full pictures come as they would without it, and none is kept."""
    for number in range(100):
        key = xxhash.xxh3_128_digest(str(number).encode())
        file.put(key, np.zeros(50 << 10, np.uint8))
    used = file.nbytes
    for chain in (RANDOM["random"], SETTLED["fixed and flipped"]):
        for kind in ("png", "jpeg"):
            field = ff.Image("x", *chain)
            facts = assert_same({"out": field}, {"x": stored(kit, kind, size=(350, 500))}, file)
            assert facts.misses in {1, 10}  # a result of 40x48 may still fit
    assert file.nbytes - used < 50 << 10


def test_bad_pictures_stay_bad(kit, file):
    """A damaged picture raises each time, and is never kept."""
    data = stored(kit, "png")[:2000]
    keeper = Keeper(file)
    used = file.nbytes
    for _ in range(3):
        with pytest.raises(DecodeError):
            decoded({"out": ff.Image("x", *RANDOM["random"])}, {"x": data}, (1, 2, 3), keeper)
    assert file.nbytes == used


def test_damage_outside_of_the_window(kit, file):
    """A JPEG that is bad only where no window looks is as good as without a cache."""
    data = bytearray(stored(kit, "jpeg"))
    data[-300:-2] = bytes(298)
    fields = {"out": ff.Image("x", ff.RandomResizedCrop(40, scale=(0.01, 0.02)))}
    keeper = Keeper(file)
    for epoch in range(20):
        draw, sources, outcomes = (1, epoch, 3), {"x": bytes(data)}, []
        for one in (None, keeper):
            try:
                outcomes.append(decoded(fields, sources, draw, one)["out"])
            except DecodeError:
                outcomes.append(None)
        np.testing.assert_array_equal(*outcomes)


def test_npz_is_read_as_ever(file):
    """Archives are unpacked each time."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        npy = io.BytesIO()
        np.save(npy, np.arange(9))
        archive.writestr("a.npy", npy.getvalue())
    decoder = compile_fields({"a": ff.Array("a")}, keeper=Keeper(file))
    found = decoder.decode({"a": memoryview(packed.getvalue())}, draw=(1, 2, 3), rows={})
    np.testing.assert_array_equal(found["a"]["a"], np.arange(9))
