"""What kind a JPEG file is, and which decoder takes it."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from fastfeed.decoding.jpeg_kind import Kind, is_regular, read_kind
from fastfeed.device.decoders.choose import MAKERS, SUPPORTS

CPU = torch.device("cpu")


def jpeg(mode="RGB", size=(40, 24), **options):
    """Return the file of a small picture."""
    file = io.BytesIO()
    Pillow.effect_noise(size, 60).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def kind_of(data):
    return read_kind(memoryview(data))


# Kinds


@pytest.mark.parametrize("name", ["444", "422", "420", "440", "411"])
def test_subsampling_is_read(name):
    """The sampling factors of a frame are told by their usual name; rare ones are 'other'."""
    data = simplejpeg.encode_jpeg(np.zeros((32, 32, 3), np.uint8), colorsubsampling=name)
    kind = kind_of(data)
    assert kind == Kind(name)
    assert kind.is_common
    factors = data.index(b"\xff\xc0") + 11
    assert kind_of(data[:factors] + b"\x14" + data[factors + 1 :]) == Kind("other")


def test_kinds_that_few_decoders_take():
    """Progressive, gray, CMYK and split files are told apart, whatever stands before the frame."""
    assert kind_of(jpeg("L")) == Kind("gray", components=1, space="gray")
    progressive = kind_of(jpeg(progressive=True, exif=b"Exif\0\0" + b"\xff\xc0\0\x0b" * 9))
    assert progressive == Kind("420", progressive=True, baseline=False, interleaved=True)
    assert kind_of(jpeg("CMYK")).space == "CMYK"
    assert not kind_of(jpeg("CMYK")).is_common
    assert kind_of(jpeg(keep_rgb=True, subsampling=0)).space == "RGB"


def test_what_is_no_complete_header():
    """Text, a cut header, an endless one and a height told later have no kind."""
    data = jpeg()
    for cut in range(data.index(b"\xff\xda") + 4):
        assert kind_of(data[:cut]) is None
    assert kind_of(b"no picture") is None
    assert kind_of(b"\xff\xd8" + b"\xff\xfe\0\2" * 20_000) is None
    frame = data.index(b"\xff\xc0")
    assert kind_of(data[: frame + 5] + b"\0\0" + data[frame + 7 :]) is None


@given(st.binary(max_size=300), st.integers(0, 400))
def test_rubbish_has_a_kind_or_none(rubbish, place):
    """Whatever bytes say, reading a kind ends and raises nothing."""
    data = jpeg()
    read_kind(memoryview(data[:place] + rubbish))
    read_kind(memoryview(b"\xff\xd8\xff" + rubbish))


def is_regular_file(data):
    return is_regular(memoryview(data), kind_of(data))


@pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 3}], ids=["plain", "restarts"])
def test_a_files_own_markers_are_regular(options):
    """Stuffed bytes, restarts in order and fill bytes before the end belong to a picture."""
    data = jpeg(quality=100, **options)
    assert b"\xff\x00" in data
    assert (b"\xff\xd0" in data) == bool(options)
    assert is_regular_file(data)
    assert is_regular_file(data[:-2] + b"\xff\xff\xff\xd9" + b"\xff\xc4 behind the end")
    assert is_regular_file(data + data)  # such as a preview behind it
    assert not is_regular_file(data[:-2])


@pytest.mark.parametrize("marker", [0xC4, 0xD9, 0xDA, 0xD3, 0x01])
@given(place=st.floats(0.1, 0.9))
def test_stray_markers_are_found(marker, place):
    """A marker that a wrong bit made inside the coded data is found, wherever it is."""
    data = bytearray(jpeg(quality=95))
    start = kind_of(data).coded_at
    place = start + round((len(data) - 4 - start) * place)
    if data[place - 1] == 0xFF:  # else its 0xFF would be the second byte of another
        place += 1
    data[place : place + 2] = bytes([0xFF, marker])
    assert not is_regular_file(bytes(data))


def test_restarts_out_of_order_are_found():
    """A restart that is missing, or comes twice, leaves its pictures to the CPU."""
    data = jpeg(size=(200, 100), restart_marker_blocks=2)
    second = data.index(b"\xff\xd1")
    assert is_regular_file(data)
    assert not is_regular_file(data[:second] + data[second + 2 :])
    assert not is_regular_file(data[:second] + b"\xff\xd0" + data[second:])


def has_its_markers_only(coded, restarts):
    """Return what `is_regular` says of coded data, looked at byte by byte."""
    count, ended = 0, False
    for first, marker in pairwise(coded):
        if first != 0xFF or marker in {0x00, 0xFF}:
            continue
        if ended:
            if marker in {0xD8, 0xD9}:
                return marker == 0xD8
        elif marker == 0xD9:
            ended = True
        elif not restarts or marker != 0xD0 + count % 8:
            return False
        else:
            count += 1
    return ended


PIECES = [
    b"\xff\xd8",
    b"\xff\x00",
    b"\xff",
    b"\x00",
    b"\x01",
    b"\xfe",
    b"\xd9",
    b"\xff\xd9",
    b"\xff\xda",
]
RESTARTS = b"".join(bytes([0x37, 0xFF, 0xD0 + i % 8]) for i in range(9))
CODED = st.builds(
    lambda restarts, pieces: RESTARTS[: 3 * restarts] + b"".join(pieces),
    st.integers(0, 9),
    st.lists(st.sampled_from([*PIECES, b"\xff\xd0", b"\xff\xd1", bytes(70)]), max_size=12),
)


@given(CODED, st.integers(0, 4), st.booleans())
def test_markers_are_judged_as_byte_by_byte(data, start, restarts):
    """What a few passes over all coded data find is what their bytes say one by one."""
    kind = Kind("420", coded_at=start, restarts=restarts)
    assert is_regular(memoryview(data), kind) == has_its_markers_only(data[start:], restarts)


def test_workers_know_what_each_decoder_takes():
    """Every decoder has its rule; common files pass all, CMYK and 12 bits none."""
    assert list(SUPPORTS) == list(MAKERS)
    for supports in SUPPORTS.values():
        assert all(supports(Kind(name)) for name in ("444", "422", "420", "440"))
        assert supports(Kind("gray", components=1, space="gray"))
        assert not supports(Kind("other", components=4, space="CMYK"))
        assert not supports(Kind("444", space="RGB"))
        assert not supports(Kind("420", precision=12, baseline=False))
    engines = SUPPORTS["nvjpeg"]
    assert not engines(Kind("411"))
    assert not engines(Kind("420", progressive=True, baseline=False))
    assert not engines(Kind("420", interleaved=False))
