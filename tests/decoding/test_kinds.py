"""Pictures other than plain JPEGs: 16 bits, palettes, alpha; Normalize; which Pillow."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torchvision.transforms import v2

from fastfeed.decoding import pillow
from fastfeed.errors import DecodeError, MissingFieldError, OptionError
from fastfeed.fields import CenterCrop, Image, Int, Mask, Normalize, RandomResizedCrop, Resize


@pytest.fixture
def ramp():
    """All 16-bit values in a picture of 256 by 256."""
    return np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_c68_sixteen_bits_of_gray(kit, ramp, kind):
    """A 16-bit ramp is scaled to 8 bits, never clipped, and kept where uint16 is asked for."""
    data = kit.encode(Pillow.fromarray(ramp), kind)
    for mode in ("L", "RGB", "RGBA"):
        narrow = kit.one(Image("png", mode=mode), data)
        assert narrow.dtype == np.uint8
        assert np.array_equal(narrow[..., 0], np.round(ramp / 257))
        wide = kit.one(Image("png", mode=mode, dtype="uint16"), data)
        assert wide.dtype == np.uint16
        assert np.array_equal(wide[..., 0], ramp)
        if mode == "RGBA":
            assert (narrow[..., 3] == 255).all()
            assert (wide[..., 3] == 65535).all()


def test_c68_big_endian(kit, ramp):
    """The order of the bytes in a TIFF does not matter."""
    data = kit.encode(Pillow.fromarray(ramp.astype(">u2")), "TIFF")
    assert np.array_equal(kit.one(Image("x", mode="L", dtype="uint16"), data)[..., 0], ramp)


def test_c68_sixteen_bits_of_colour(kit, ramp):
    """RGB of 16 bits comes within a level of value / 257, and is not cut silently."""
    import cv2

    colour = np.stack([ramp, ramp.T, ramp[::-1]], axis=2)
    data = cv2.imencode(".png", colour[..., ::-1])[1].tobytes()
    out = kit.one(Image("png"), data).astype(int)
    assert np.abs(out - colour / 257).max() <= 1
    with pytest.raises(DecodeError) as caught:
        kit.one(Image("png", dtype="uint16"), data)
    assert caught.value.way_out


def test_c68_sixteen_bits_resized(kit, ramp):
    """A uint16 picture is resized without losing its bits."""
    data = kit.encode(Pillow.fromarray(ramp), "PNG")
    out = kit.one(Image("png", Resize((128, 128)), mode="L", dtype="uint16"), data)[..., 0]
    means = ramp.astype(float).reshape(128, 2, 128, 2).mean(axis=(1, 3))
    assert np.abs(out - means)[2:-2, 2:-2].max() < 2


def palette(*, transparency=None):
    picture = Pillow.new("P", (6, 5))
    picture.putpalette([value for i in range(256) for value in (i, 255 - i, 7 * i % 256)])
    picture.putdata(list(range(30)))
    if transparency is not None:
        picture.info["transparency"] = transparency
    return picture


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(30))])
def test_palettes(kit, transparency):
    """A palette gives its colours, whatever is transparent, and its indices as a mask."""
    options = {} if transparency is None else {"transparency": transparency}
    data = kit.encode(palette(), "PNG", **options)
    index = np.arange(30).reshape(5, 6)
    out = kit.one(Image("png"), data)
    assert np.array_equal(out, np.stack([index, 255 - index, 7 * index % 256], axis=2))
    assert np.array_equal(kit.one(Mask("png"), data), index)
    alpha = kit.one(Image("png", mode="RGBA"), data)[..., 3]
    if transparency is None:
        assert (alpha == 255).all()
    else:
        assert alpha.min() == 0


@pytest.mark.parametrize("mode", ["RGBA", "LA", "1", "L"])
def test_other_modes(kit, mode):
    """Alpha is dropped for RGB and kept for RGBA; gray and bits become colours."""
    picture = Pillow.fromarray(kit.scene(9, 12)).convert(mode)
    if mode == "RGBA":
        picture.putalpha(Pillow.linear_gradient("L").resize((12, 9)))
    data = kit.encode(picture, "PNG")
    expected = np.asarray(picture.convert("RGBA"))
    assert np.array_equal(kit.one(Image("png", mode="RGBA"), data), expected)
    assert np.array_equal(kit.one(Image("png"), data), expected[..., :3])


def test_masks_beyond_a_byte(kit):
    """A mask of 16 bits whose values fit a byte is one; others are refused with a way out."""
    values = np.array([[0, 255], [3, 4]], np.uint16)
    assert np.array_equal(kit.one(Mask("png"), kit.encode(values, "PNG")), values)
    with pytest.raises(DecodeError) as caught:
        kit.one(Mask("png"), kit.encode(values + 1, "PNG"))
    assert caught.value.way_out


def test_masks_are_never_blended(kit):
    """A resized mask holds only values of the stored one, at the nearest place."""
    values = np.repeat(np.repeat(np.array([[1, 9], [200, 4]], np.uint8), 10, 0), 10, 1)
    out = kit.one(Mask("png", Resize((6, 14))), kit.encode(values, "PNG"))
    expected = np.repeat(np.repeat(np.array([[1, 9], [200, 4]]), 3, 0), 7, 1)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("cut", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP"])
def test_c69_other_cut_files(kit, kind, cut):
    """Cut files of other kinds are decoding errors."""
    data = kit.encode(kit.scene(60, 70), kind)
    with pytest.raises(DecodeError):
        kit.one(Image("x"), data[: int(len(data) * cut)])


@pytest.mark.parametrize("data", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"P6 9"])
def test_formats_that_run_programs_are_no_pictures(kit, data):
    """PostScript is not handed to a program."""
    with pytest.raises(DecodeError):
        kit.one(Image("x"), data)


@pytest.mark.parametrize("chain", [(), (RandomResizedCrop((17, 22)),), (CenterCrop(90),)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_normalize(kit, kind, chain):
    """Normalize is torchvision's, to within 1e-5."""
    data = kit.encode(kit.scene(60, 70), kind)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    raw = kit.one(Image("x", *chain), data)
    out = kit.one(Image("x", *chain, Normalize(mean, std)), data)
    assert out.dtype == np.float32
    scaled = torch.from_numpy(raw).permute(2, 0, 1).float() / 255
    expected = v2.functional.normalize(scaled, mean, std).permute(1, 2, 0).numpy()
    assert np.abs(out - expected).max() < 1e-5


def test_normalize_of_sixteen_bits(kit, ramp):
    """Values of 16 bits are divided by 65,535."""
    data = kit.encode(Pillow.fromarray(ramp), "PNG")
    out = kit.one(Image("x", Normalize((0.5,), (0.25,)), mode="L", dtype="uint16"), data)
    assert np.abs(out[..., 0] - (ramp / 65535 - 0.5) / 0.25).max() < 1e-5


def test_the_first_of_several_names(kit):
    """The first field that the sample has is used; a sample with none of them says what it has."""
    picture = kit.scene(4, 5)
    fields = {"image": Image(("jpg", "png")), "label": Int("cls")}
    out = kit.decode(fields, {"png": kit.encode(picture, "PNG"), "cls": b"7"})
    assert np.array_equal(out["image"], picture)
    with pytest.raises(MissingFieldError, match=r"`jpg` or `png`.*`cls`"):
        kit.decode(fields, {"cls": b"7"})


def test_two_pillows_are_refused(monkeypatch):
    """Where pillow and pillow-simd lie over each other, the error says what to do."""
    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    pillow._pillow.cache_clear()
    try:
        with pytest.raises(OptionError, match="pillow-simd") as caught:
            pillow._pillow()
    finally:
        pillow._pillow.cache_clear()
    assert "pip uninstall" in caught.value.way_out


@pytest.mark.parametrize("only", ["pillow", "pillow-simd"])
def test_one_pillow_is_enough(monkeypatch, only):
    """Either of the two alone is used."""

    def distribution(name):
        if name != only:
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    pillow._pillow.cache_clear()
    assert pillow._pillow() is Pillow
    pillow._pillow.cache_clear()
