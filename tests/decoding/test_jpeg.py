"""JPEGs: every subsampling and decoder order against Pillow, regions, colours, cut files."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from fastfeed.decoding import turbojpeg
from fastfeed.decoding.jpeg_header import is_complete
from fastfeed.decoding.window import Box
from fastfeed.errors import DecodeError
from fastfeed.fields import CenterCrop, Image, RandomResizedCrop, Resize

# Sampling factors that Pillow writes; 4:4:0 and 4:1:1 are made from libjpeg-turbo itself.
SUBSAMPLINGS = {"444": 0, "422": 1, "420": 2, "gray": 3, "440": 4, "411": 5}
SIZES = [(1, 1), (17, 31), (8, 16), (33, 200), (120, 161)]


def written(kit, height, width, name, *, quality=90, progressive=False):
    """Return a JPEG of any subsampling, by libjpeg-turbo's encoder."""
    import simplejpeg

    picture = kit.scene(height, width)
    if name == "gray":
        return kit.encode(picture[..., 0].copy(), quality=quality, progressive=progressive)
    if progressive:
        known = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0", "440": "4:4:0", "411": "4:1:1"}
        return kit.encode(picture, quality=quality, progressive=True, subsampling=known[name])
    return simplejpeg.encode_jpeg(picture, quality=quality, colorsubsampling=name)


def by_pillow(kit, data, mode="RGB"):
    return np.asarray(kit.opened(data).convert(mode)).astype(int)


@pytest.mark.parametrize("name", SUBSAMPLINGS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("quality", [50, 100])
def test_c64_whole_pictures(kit, decoders, name, size, quality):
    """A whole picture is Pillow's, but for the rounding of another build of libjpeg."""
    data = written(kit, *size, name, quality=quality)
    out = kit.one(Image("jpg"), data, decoders=decoders)
    expected = by_pillow(kit, data)
    assert out.shape == expected.shape
    assert np.abs(out - expected).mean() < 0.5
    assert np.abs(out - expected).max() <= 8


@pytest.mark.parametrize("name", ["444", "422", "420", "gray"])
@pytest.mark.parametrize("size", [(17, 31), (120, 161)])
def test_c70_progressive(kit, decoders, name, size):
    """Progressive pictures are as good as others."""
    data = written(kit, *size, name, progressive=True)
    out = kit.one(Image("jpg"), data, decoders=decoders)
    assert np.abs(out - by_pillow(kit, data)).max() <= 8


@pytest.mark.parametrize(
    ("name", "progressive"),
    # Pillow writes progressive files in the usual subsamplings only.
    [(name, False) for name in SUBSAMPLINGS]
    + [(name, True) for name in SUBSAMPLINGS if name not in {"440", "411"}],
)
def test_regions_are_exact(kit, name, progressive):
    """A region decoded alone has the very pixels of the whole picture, wherever it lies."""
    height, width = 131, 203
    data = np.frombuffer(written(kit, height, width, name, progressive=progressive), np.uint8)

    def region(box, *, gray):
        return turbojpeg.decode_region(
            turbojpeg.read_header(data),
            box,
            shrink=1,
            gray=gray,
            scratch=lambda nbytes: np.empty(nbytes, np.uint8),
            tolerant=False,
        )

    random = np.random.default_rng(5)
    for gray in (False, True):
        whole = region(Box(0, 0, width, height), gray=gray)
        assert whole.shape == (height, width, 1 if gray else 3)
        for _ in range(150):
            x, y = random.integers(width), random.integers(height)
            w, h = random.integers(1, width - x + 1), random.integers(1, height - y + 1)
            part = region(Box(int(x), int(y), int(w), int(h)), gray=gray)
            assert np.array_equal(part, whole[y : y + h, x : x + w]), (x, y, w, h)


@given(st.integers(0, 1 << 30), st.sampled_from(["444", "420", "gray"]), st.integers(5, 90))
@settings(max_examples=60, deadline=None)
def test_random_parts_equal_decoding_first(kit, decoders, sample, name, target):
    """A part decoded alone and resized is what decoding, cutting and Pillow's filter give."""
    data = written(kit, 211, 307, name)
    shapes = []
    field = Image("jpg", RandomResizedCrop(target))
    out = kit.one(field, data, decoders=decoders, draw=(0, 0, sample)).astype(int)
    crop = drawn(field, 211, 307, sample)
    shapes.append(crop)
    part = kit.opened(data).convert("RGB").crop((crop.x, crop.y, crop.x + crop.w, crop.y + crop.h))
    expected = np.asarray(part.resize((target, target), Pillow.Resampling.BILINEAR))
    assert np.abs(out - expected).mean() < 1.5, shapes


def drawn(field, height, width, sample):
    from fastfeed.decoding.draw import Draw
    from fastfeed.decoding.window import draw_window

    return draw_window(field.transforms, height, width, Draw((0, 0, sample), "out")).crop


@pytest.mark.parametrize("target", [12, 30, 60, 100])
def test_decoding_smaller_is_close(kit, photos, target):
    """Pictures that become many times smaller may be decoded smaller: less than a level away."""
    assert photos
    for photo in photos[:6]:
        data = photo.read_bytes()
        field = Image("jpg", Resize((target, target)))
        fast = kit.one(field, data).astype(int)
        exact = kit.one(field, data, decoders=("pillow",)).astype(int)
        assert np.abs(fast - exact).mean() < 1


def test_cuts_of_far_larger_parts_are_not_shifted(kit):
    """A part whose edges lie between blocks is decoded in full, so that nothing moves."""
    data = written(kit, 600, 800, "444", quality=95)
    for sample in range(12):
        field = Image("jpg", RandomResizedCrop(24, scale=(0.3, 1.0)))
        fast = kit.one(field, data, draw=(0, 0, sample)).astype(int)
        exact = kit.one(field, data, decoders=("pillow",), draw=(0, 0, sample)).astype(int)
        assert np.abs(fast - exact).mean() < 1


def test_gray_mode(kit, decoders):
    """Mode L is Pillow's luminance, up to the rounding between YCbCr and RGB."""
    data = written(kit, 40, 60, "420")
    out = kit.one(Image("jpg", mode="L"), data, decoders=decoders)
    assert out.shape == (40, 60, 1)
    assert np.abs(out[..., 0] - by_pillow(kit, data, "L")).mean() < 1


def test_alpha_and_sixteen_bits_of_a_jpeg(kit, decoders):
    """RGBA of a JPEG is opaque; uint16 is scaled up."""
    data = written(kit, 20, 30, "444")
    rgba = kit.one(Image("jpg", mode="RGBA"), data, decoders=decoders)
    assert (rgba[..., 3] == 255).all()
    wide = kit.one(Image("jpg", dtype="uint16"), data, decoders=decoders)
    assert np.array_equal(wide, rgba[..., :3].astype(np.uint16) * 257)


# Colours


def without_adobe(data):
    """Remove the Adobe segment, which says how CMYK is meant."""
    start = data.index(b"\xff\xee")
    length = int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + data[start + 2 + length :]


def as_ycck(data):
    """Set the Adobe segment's transform to YCCK."""
    place = data.index(b"Adobe") + 11
    return data[:place] + b"\x02" + data[place + 1 :]


@pytest.mark.parametrize("change", [bytes, without_adobe, as_ycck])
def test_c65_cmyk(kit, decoders, change):
    """CMYK and YCCK, marked by Adobe or not, have the colours of Pillow's conversion."""
    picture = Pillow.fromarray(kit.scene(40, 56)).convert("CMYK")
    data = change(kit.encode(picture))
    for chain in ((), (CenterCrop(20),)):
        out = kit.one(Image("jpg", *chain), data, decoders=decoders).astype(int)
        expected = by_pillow(kit, data)
        if chain:
            expected = expected[10:30, 18:38]
        assert np.array_equal(out, expected)


def test_c65_red_is_red(kit, decoders):
    """A red patch in CMYK is not inverted."""
    patch = Pillow.new("CMYK", (16, 16), (0, 255, 255, 0))
    red, green, blue = kit.one(Image("jpg"), kit.encode(patch), decoders=decoders)[8, 8]
    assert red > 230
    assert max(green, blue) < 30


# Damage


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99, None])
def test_c69_cut_files(kit, decoders, share, progressive):
    """A cut JPEG is an error that says so, or, where asked for, the picture as far as it goes."""
    whole = written(kit, 90, 121, "420", progressive=progressive)
    data = whole[:-1] if share is None else whole[: int(len(whole) * share)]
    for chain in ((), (CenterCrop(8),)):
        with pytest.raises(DecodeError) as caught:
            kit.one(Image("jpg", *chain), data, decoders=decoders)
        assert caught.value.field == "jpg"
    kept = Image("jpg", truncated="keep")
    if share == 0.1:  # not even the tables are there
        with pytest.raises(DecodeError):
            kit.one(kept, data, decoders=decoders)
        return
    out = kit.one(kept, data, decoders=decoders)
    assert out.shape == (90, 121, 3)
    if not progressive:
        rows = 30 if share == 0.5 else 70
        assert np.abs(out[:rows] - by_pillow(kit, whole)[:rows]).mean() < 3


def test_junk_behind_the_end(kit, decoders):
    """What follows the end of a picture is no matter, whatever it looks like."""
    data = written(kit, 40, 50, "420")
    expected = kit.one(Image("jpg"), data, decoders=decoders)
    for junk in (b"\0" * 4096, b"\xff\xda\x00\x08junk", data[: len(data) // 2], b"\xff"):
        assert np.array_equal(kit.one(Image("jpg"), data + junk, decoders=decoders), expected)


def test_a_thumbnails_end_is_not_the_pictures(kit, decoders):
    """A cut picture with a whole thumbnail in its EXIF block is still a cut picture."""
    thumbnail = written(kit, 16, 16, "444")
    data = kit.encode(kit.scene(80, 80), exif=b"Exif\0\0" + thumbnail)
    assert is_complete(memoryview(data))
    with pytest.raises(DecodeError, match="cut short"):
        kit.one(Image("jpg"), data[: len(data) // 2], decoders=decoders)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8\xff", b"a text", b"\xff\xd8\xff\xd9"])
def test_no_picture_at_all(kit, decoders, data):
    """Nothing, text and bare markers are decoding errors."""
    with pytest.raises(DecodeError):
        kit.one(Image("jpg"), data, decoders=decoders)


def test_a_png_by_another_name(kit, decoders):
    """What a file is called does not matter."""
    picture = kit.scene(20, 30)
    out = kit.one(Image("jpg"), kit.encode(picture, "PNG"), decoders=decoders)
    assert np.array_equal(out, picture)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_rubbish_is_a_decode_error_or_a_picture(kit, decoders, data):
    """Bytes changed anywhere in a JPEG never raise anything else."""
    whole = bytearray(written(kit, 24, 24, "420"))
    for place in data.draw(st.lists(st.integers(2, len(whole) - 1), min_size=1, max_size=6)):
        whole[place] = data.draw(st.integers(0, 255))
    field = Image(
        "jpg", max_pixels=1 << 16, truncated=data.draw(st.sampled_from(["error", "keep"]))
    )
    try:
        out = kit.one(field, bytes(whole), decoders=decoders)
    except DecodeError:
        return
    assert out.ndim == 3


def test_a_broken_picture_spoils_no_other(kit):
    """After every kind of damage the next good picture of the thread is right."""
    good = written(kit, 24, 24, "420")
    expected = kit.one(Image("jpg"), good)
    random = np.random.default_rng(3)
    field = Image("jpg", max_pixels=1 << 16)
    errors = set()
    for _ in range(1500):
        broken = bytearray(good)
        for place in random.integers(2, 640, 3):
            broken[place] = random.integers(256)
        try:
            kit.one(field, bytes(broken))
        except DecodeError as error:
            errors.add(str(error))
        assert np.array_equal(kit.one(field, good), expected)
    assert len(errors) > 5


def test_the_budget_comes_before_decoding(kit, decoders):
    """A picture beyond max_pixels is refused from its header, in every decoder."""
    data = bytearray(written(kit, 8, 8, "444"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
    with pytest.raises(DecodeError, match="pixels") as caught:
        kit.one(Image("jpg"), bytes(data), decoders=decoders)
    assert caught.value.way_out
    small = written(kit, 20, 20, "444")
    with pytest.raises(DecodeError, match="budget of 399"):
        kit.one(Image("jpg", max_pixels=399), small, decoders=decoders)
    assert kit.one(Image("jpg", max_pixels=400), small, decoders=decoders).shape == (20, 20, 3)


def test_threads_do_not_meet(kit, decoders):
    """Four threads with one decoder get what one thread gets."""
    files = [written(kit, 60 + 7 * i, 90 + 5 * i, "420") for i in range(6)]
    field = Image("jpg", RandomResizedCrop(32))
    expected = [kit.one(field, data, draw=(0, 0, i)) for i, data in enumerate(files)]
    wrong: list[object] = []

    def work():
        for _ in range(15):
            for i, data in enumerate(files):
                out = kit.one(field, data, decoders=decoders, draw=(0, 0, i))
                if np.abs(out.astype(int) - expected[i]).mean() > 1.5:
                    wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
