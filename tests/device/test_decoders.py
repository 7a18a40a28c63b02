"""GPU decoders as far as a CPU shows them: good and bad pictures, libraries that fail."""

from __future__ import annotations

import ctypes
import importlib.util
import io
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image as Pillow

from fastfeed.decoding.jpeg_kind import read_kind
from fastfeed.device.decoders.check import (
    make_samples,
    pack,
    text_sample,
)
from fastfeed.device.decoders.choose import OVERLAPS, SUPPORTS
from fastfeed.device.decoders.dali import DaliDecoder
from fastfeed.device.decoders.nvimagecodec import NvimagecodecDecoder
from fastfeed.device.decoders.nvjpeg import NvjpegDecoder
from fastfeed.device.decoders.protocol import Encoded
from fastfeed.device.decoders.torchvision import TorchvisionDecoder
from fastfeed.errors import OptionError

CPU = torch.device("cpu")


# nvJPEG, with a library that behaves as the real one was seen to


class FakeLibrary:
    """libnvjpeg's functions over the CPU's memory, with the engines' ways of failing."""

    def __init__(self, *, create=0, flags=0b100000, holds=0):
        self.create, self.flags = create, flags
        self.holds = holds  # pictures in the pipeline, which an error leaves unwritten
        self.prepared, self.calls, self.handles = None, 0, 0

    def nvjpegCreateEx(self, backend, device_memory, host_memory, flags, handle):
        assert (backend, flags) == (3, self.flags)
        self.handles += self.create == 0
        handle._obj.value = 11 if self.create == 0 else None
        return self.create

    def nvjpegJpegStateCreate(self, handle, state):
        self.handles += 1
        state._obj.value = 12
        return 0

    def nvjpegDestroy(self, handle):
        self.handles -= 1
        return 0

    def nvjpegJpegStateDestroy(self, state):
        return self.nvjpegDestroy(state)

    def nvjpegDecodeBatchedInitialize(self, handle, state, count, threads, form):
        self.prepared = (count, form)
        return 0

    def nvjpegDecodeBatched(self, handle, state, data, lengths, images, stream):
        count, form = self.prepared
        self.calls += 1
        addresses = np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(data))
        sizes = np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(lengths))
        records = np.ctypeslib.as_array((ctypes.c_uint64 * (8 * count)).from_address(images))
        held = []
        for number, record in enumerate(records.reshape(count, 8)):
            file = ctypes.string_at(int(addresses[number]), int(sizes[number]))
            kind = read_kind(memoryview(file))
            if kind is None:
                return 3
            if not SUPPORTS["nvjpeg"](kind):
                return 4
            if file[-7:-2] == b"skip!":
                continue
            status = 4 if file[-7:-2] == b"wrong" else 0
            held.append((file, record))
            for one in held[: len(held) - self.holds * (status == 0)]:
                self._write(*one, form)
                held.remove(one)
            if status:
                return status
        for one in held:
            self._write(*one, form)
        return 0

    def _write(self, file, record, form):
        height, width, _, _ = simplejpeg.decode_jpeg_header(file)
        try:
            pixels = simplejpeg.decode_jpeg(file, "RGB" if form == 3 else "GRAY")
        except ValueError:
            pixels = np.full((height, width, 3 if form == 3 else 1), 200, np.uint8)
            pixels[height // 2 :] = 0
        for channel in range(pixels.shape[2]):
            for row in range(height):
                place = int(record[channel]) + row * int(record[4 + channel])
                ctypes.memmove(place, pixels[row, :, channel].tobytes(), width)


def with_tail(sample, tail):
    """Return a sample with a note before its end that only the fake library reads."""
    return type(sample)(sample.name, sample.data[:-2] + tail + b"\xff\xd9", sample.shape, {})


@pytest.fixture(scope="module")
def photos():
    """Good samples of three sizes."""
    return make_samples(((70, 66), (20, 31), (9, 100)), gray=False)


def decode_names(decoder, batch, *, gray=False):
    """Return the numbers that came out, after comparing their pixels."""
    encoded = pack(batch, gray=gray)
    decoded = decoder.decode(encoded)
    assert len(decoded.pictures) == len(batch)
    for number, (sample, picture) in enumerate(zip(batch, decoded.pictures, strict=True)):
        if picture is not None:
            expected = simplejpeg.decode_jpeg(sample.data, "GRAY" if gray else "RGB")
            if not decoded.whole:
                x, y, w, h = encoded.boxes[number].tolist()
                expected = expected[y : y + h, x : x + w]
            pixels = picture.permute(1, 2, 0).numpy().astype(int)
            assert np.abs(pixels - expected).mean() < 0.5, sample.name
    return [n for n, picture in enumerate(decoded.pictures) if picture is not None]


@pytest.mark.parametrize("gray", [False, True])
def test_engines_decode_a_batch(photos, gray):
    """All good pictures come out of one call, in colour and as luma, batch after batch."""
    library = FakeLibrary()
    decoder = NvjpegDecoder(CPU, library=library)
    for batch in (photos, photos[::-1], photos[:5], photos[3:4]):
        assert decode_names(decoder, batch, gray=gray) == list(range(len(batch)))
    assert decoder.decode(empty()).pictures[:] == []
    assert library.calls == 4
    decoder.close()
    decoder.close()
    assert library.handles == 0


@pytest.mark.parametrize(("queues", "expected"), [("32", True), ("31", False), ("8", False)])
def test_two_decoders_want_a_queue_for_each_stream(monkeypatch, queues, expected):
    """With fewer queues than both have streams, they would wait for each other in them."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    assert OVERLAPS["nvjpeg"]() is expected


def test_engines_are_called_one_at_a_time(photos):
    """Two calls at once hung on a real GPU: decoders wait for each other, and say how long."""
    inside, entered, go_on = [], threading.Event(), threading.Event()

    class Slow(FakeLibrary):
        def nvjpegDecodeBatched(self, *about):
            inside.append(1)
            assert len(inside) == 1
            entered.set()
            assert go_on.wait(60)
            try:
                return super().nvjpegDecodeBatched(*about)
            finally:
                inside.pop()

    decoders = [NvjpegDecoder(CPU, library=Slow()) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(decoders[0].decode, pack(photos, gray=False))
        assert entered.wait(60)
        second = pool.submit(decoders[1].decode, pack(photos, gray=False))
        go_on.set()
        done = [first.result(), second.result()]
    for decoded in done:
        assert all(picture is not None for picture in decoded.pictures)
        assert decoded.held_s > 0
        assert decoded.waited_s >= 0
    for decoder in decoders:
        decoder.close()


@pytest.mark.parametrize(("queues", "flags"), [("32", 0b100000), ("8", 0b100001), ("?", 0b100001)])
def test_no_pipeline_where_streams_share_queues(monkeypatch, queues, flags):
    """With few queues, or CUDA's own number of them, the engines go without their pipeline."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    NvjpegDecoder(CPU, library=FakeLibrary(flags=flags)).close()


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        (None, "", "32"),
        ("1", "", "1"),
        (None, "import sys; sys.modules['torch'] = started", "None"),
        (None, "import sys; sys.modules['torch'] = None", "32"),
    ],
    ids=["unset", "set", "CUDA has started", "no torch"],
)
def test_importing_fastfeed_widens_the_queues(monkeypatch, before, lines, after):
    """Unless the user says how many, or CUDA has read it already."""
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if before:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", before)
    script = f"""
import os
from types import SimpleNamespace
started = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
{lines}
import fastfeed
print(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert found.stdout.strip() == after


def empty():
    none = np.zeros(0, np.int64)
    return Encoded(torch.empty(0, dtype=torch.uint8), none, none, none.reshape(0, 2), none)


@pytest.mark.parametrize("place", [0, 3, 11])
def test_engines_leave_out_one_bad_picture(photos, place):
    """Text, a progressive file and a strange one come out None at any place, and alone."""
    decoder = NvjpegDecoder(CPU, library=FakeLibrary())
    file = io.BytesIO()
    Pillow.open(io.BytesIO(photos[2].data)).save(file, "JPEG", progressive=True)
    progressive = type(photos[0])("progressive", file.getvalue(), photos[2].shape, {})
    for bad in (text_sample(), progressive, with_tail(photos[0], b"skip!")):
        batch = [*photos[:place], bad, *photos[place:]]
        expected = [n for n in range(len(batch)) if n != place]
        assert decode_names(decoder, batch) == expected
        assert decode_names(decoder, photos) == list(range(len(photos)))


def test_engines_suspect_the_last_that_was_written(photos):
    """An error whose picture was written all the same leaves only that one out."""
    decoder = NvjpegDecoder(CPU, library=FakeLibrary())
    batch = [*photos[:4], with_tail(photos[0], b"wrong"), *photos[4:]]
    found = decode_names(decoder, batch)
    assert 4 not in found
    assert set(range(4)) <= set(found)
    assert len(found) >= len(photos) - 1


@pytest.mark.parametrize("holds", [1, 3, 7])
def test_pictures_in_the_pipeline_are_decoded_again(photos, holds):
    """What the engines held when they met a bad picture is not taken for bad itself."""
    decoder = NvjpegDecoder(CPU, library=FakeLibrary(holds=holds))
    for places in ((4,), (2, 9)):
        batch = list(photos)
        for place in places:
            batch[place] = text_sample()
        expected = [n for n in range(len(batch)) if n not in places]
        assert decode_names(decoder, batch) == expected


def test_engines_give_up_after_three_bad_pictures(photos):
    """Three bad pictures leave the rest before them; those after the third are given up."""
    library = FakeLibrary()
    decoder = NvjpegDecoder(CPU, library=library)
    text = text_sample()
    batch = [photos[0], text, photos[1], text, photos[2], text, *photos[3:]]
    assert decode_names(decoder, batch) == [0, 2, 4]
    assert library.calls <= 9


def test_engines_that_are_not_there():
    """A GPU without engines, and any other refusal, is said in words."""
    with pytest.raises(OptionError, match="no JPEG engines"):
        NvjpegDecoder(CPU, library=FakeLibrary(create=7))
    with pytest.raises(OptionError, match="status is 5"):
        NvjpegDecoder(CPU, library=FakeLibrary(create=5))


# The other libraries, on their CPU side


def test_nvimagecodec_on_the_cpu(photos):
    """Pictures come out whole as planes, in colour and luma, and text as None."""
    pytest.importorskip("nvidia.nvimgcodec")
    decoder = NvimagecodecDecoder(CPU)
    batch = [*photos[:3], text_sample(), *photos[3:]]
    for gray in (False, True):
        assert decode_names(decoder, batch, gray=gray) == [0, 1, 2, *range(4, 13)]
    assert decoder.decode(empty()).pictures[:] == []
    decoder.close()


@pytest.mark.parametrize("regions", [True, False])
def test_dali_on_the_cpu(photos, regions):
    """Boxes or whole pictures come out, in batches of any size, and a bad one costs only itself."""
    pytest.importorskip("nvidia.dali")
    decoder = DaliDecoder(CPU, regions=regions)
    for gray in (False, True):
        assert decode_names(decoder, photos[:5], gray=gray) == [*range(5)]
        assert decode_names(decoder, photos, gray=gray) == [*range(12)]
    batch = [*photos[:3], text_sample(), *photos[3:]]
    assert decode_names(decoder, batch) == [0, 1, 2, *range(4, 13)]
    assert decode_names(decoder, [text_sample()]) == []
    assert decode_names(decoder, photos[::-1]) == [*range(12)]
    assert decoder.decode(empty()).pictures[:] == []
    decoder.close()


def test_stored_pictures_are_not_turned(photos):
    """An orientation in EXIF is left to the caller, whose boxes are of the stored picture."""
    exif = Pillow.Exif()
    exif[0x112] = 6
    file = io.BytesIO()
    Pillow.open(io.BytesIO(photos[0].data)).save(file, "JPEG", exif=exif)
    turned = type(photos[0])("turned", file.getvalue(), photos[0].shape, {})
    for name, make in (("nvimgcodec", NvimagecodecDecoder), ("dali", DaliDecoder)):
        if importlib.util.find_spec(f"nvidia.{name}"):
            assert decode_names(make(CPU), [turned, photos[1]]) == [0, 1]


def test_torchvision_with_its_operator_on_the_cpu(photos):
    """A batch that fails as a whole is taken apart; bytes and mode are handed on as they are."""
    modes = []

    def operator(pieces, mode, device):
        modes.append(mode)
        pictures = []
        for piece in pieces:
            try:
                pixels = simplejpeg.decode_jpeg(bytes(piece), "GRAY" if mode == 1 else "RGB")
            except ValueError as error:
                raise RuntimeError("nvjpeg says no") from error
            pictures.append(torch.from_numpy(pixels).permute(2, 0, 1))
        return pictures

    decoder = TorchvisionDecoder(CPU, operator=operator)
    assert decode_names(decoder, [*photos[:7], text_sample(), *photos[7:]]) == [
        *range(7),
        *range(8, 13),
    ]
    assert decode_names(decoder, photos, gray=True) == [*range(12)]
    assert set(modes) == {1, 3}
    decoder.close()
