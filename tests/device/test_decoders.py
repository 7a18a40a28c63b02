"""GPU decoders as far as a CPU shows them: kinds, marks, bad pictures, the check and the choice."""

from __future__ import annotations

import ctypes
import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from fastfeed.decoding.jpeg_kind import Kind, read_kind
from fastfeed.device.decoders.check import (
    Canary,
    check_decoder,
    make_samples,
    pack,
    text_sample,
)
from fastfeed.device.decoders.choose import MAKERS, SUPPORTS, choose, choose_among
from fastfeed.device.decoders.dali import DaliDecoder
from fastfeed.device.decoders.nvimagecodec import NvimagecodecDecoder
from fastfeed.device.decoders.nvjpeg import NvjpegDecoder
from fastfeed.device.decoders.places import Marks, lay_out
from fastfeed.device.decoders.protocol import Encoded
from fastfeed.device.decoders.salvage import salvage
from fastfeed.device.decoders.torchvision import TorchvisionDecoder
from fastfeed.errors import OptionError

CPU = torch.device("cpu")


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FakeDecoder = _load("fake_decoder").FakeDecoder


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


# Places and marks


SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 90)), min_size=1, max_size=6)


@given(SHAPES, st.sampled_from([1, 3]))
def test_marks_say_what_was_written(shapes, channels):
    """A picture is good if all of it was written, and only then; places never overlap."""
    shapes = np.array(shapes, np.int32)
    places = lay_out(shapes, channels)
    memory = torch.zeros(places.nbytes + 64, dtype=torch.uint8)[64:]  # not at a storage's start
    for left_out in range(len(shapes)):
        marks = Marks(places, CPU)
        marks.put(memory)
        for number in range(len(shapes)):
            if number != left_out:
                places.view(memory, number).fill_(number + 1)
        verdict = marks.read(memory)
        assert verdict.unwritten.tolist() == [n == left_out for n in range(len(shapes))]
        assert not verdict.spilled.any()
    for number in range(len(shapes)):
        places.view(memory, number).fill_(number + 1)
    assert all((places.view(memory, n) == n + 1).all() for n in range(len(shapes)))
    assert marks.read(memory).good.all()


def test_marks_find_parts_and_spills():
    """Rows that were not written and a byte too many are each found."""
    places = lay_out(np.array([[50, 30], [60, 20], [40, 40]], np.int32), 3)
    memory = torch.zeros(places.nbytes, dtype=torch.uint8)
    marks = Marks(places, CPU)
    marks.put(memory)
    for number in range(3):
        places.view(memory, number).fill_(9)
    assert marks.read(memory).good.all()
    marks.put(memory)
    for number in range(3):
        places.view(memory, number)[:, :-1] = 9
    assert marks.read(memory).unwritten.all()
    for number in range(3):
        places.view(memory, number).fill_(9)
    memory[int(places.starts[1]) + 3 * int(places.planes[1])] ^= 1
    verdict = marks.read(memory)
    assert verdict.spilled.tolist() == [False, True, False]
    assert verdict.good.tolist() == [True, False, False]


def test_no_pictures_need_no_places():
    """An empty batch has places for nothing."""
    assert lay_out(np.empty((0, 2), np.int32), 3).nbytes == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=12), st.integers(1))
def test_parts_are_the_batch_in_order(shapes, most):
    """Parts follow each other without a gap, and only one picture alone may be over the limit."""
    shapes = np.array(shapes, np.int32).reshape(-1, 2)
    numbers = np.arange(len(shapes))
    encoded = Encoded(torch.empty(0), numbers, numbers, shapes, np.zeros((len(shapes), 4)))
    found = []
    for place, part in encoded.parts(most):
        found += numbers[place].tolist()
        assert part.starts.tolist() == numbers[place].tolist()
        assert len(part) == 1 or int(part.shapes.prod(axis=1).sum()) * 3 <= most
    assert found == numbers.tolist()


# Libraries that fail as a whole


@given(st.integers(0, 40), st.sets(st.integers(0, 39), max_size=3))
def test_salvage_finds_all_but_the_bad(count, bad):
    """With few bad ones all others are found, each under its own number."""

    def decode(numbers):
        if bad & set(numbers):
            raise RuntimeError("one of them is bad")
        return [torch.tensor(number) for number in numbers]

    found = salvage(range(count), decode, failures=40)
    assert {number: int(picture) for number, picture in found.items()} == {
        number: number for number in range(count) if number not in bad
    }


def test_salvage_ends():
    """When everything fails, the effort is bounded and nothing is returned."""
    calls = []

    def decode(numbers):
        calls.append(numbers)
        raise RuntimeError("the device is gone")

    assert salvage(range(1000), decode, failures=7) == {}
    assert len(calls) == 7


# nvJPEG, with a library that behaves as the real one was seen to


class FakeLibrary:
    """libnvjpeg's functions over the CPU's memory, with the engines' ways of failing."""

    def __init__(self, *, create=0):
        self.create = create
        self.prepared, self.calls, self.handles = None, 0, 0

    def nvjpegCreateEx(self, backend, device_memory, host_memory, flags, handle):
        assert (backend, flags) == (3, 0b100101)
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
            self._write(file, record, form)
            if status:
                return status
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


# The check and the choice


def test_a_right_decoder_passes():
    """One that keeps the contract passes, whole or by boxes; plain colours are told."""
    for fake in (FakeDecoder(), FakeDecoder(regions=True), FakeDecoder(plain=True)):
        report = check_decoder(fake, CPU, canary=Canary(CPU))
        assert report.reason is None
        assert report.upsampling == ("plain" if fake.plain else "interpolated")
        assert check_decoder(fake, CPU, gray=True, canary=Canary(CPU)).reason is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"fails_at": frozenset({2})}, "left out a good picture: 420"),
        ({"swaps": True}, "differs from the CPU's by"),
        ({"hides": True}, "returned pixels for a file that is no picture"),
        ({"stale": True}, "returned pixels for a file that is no picture"),
        ({"drops": True}, "returned 12 pictures for 13"),
        ({"transposes": True}, "came out as"),
        ({"takes": False}, "takes none of the common kinds"),
        ({"marks_input": True}, "wrote to the encoded pictures"),
        ({"raises": True}, "MemoryError: no memory on the device"),
    ],
)
def test_a_wrong_decoder_is_rejected_with_the_reason(wrong, reason):
    """Each way of being wrong is found; the next decoder is used and the first one closed."""
    fake, right = FakeDecoder(**wrong), FakeDecoder()
    makers = {"first": lambda device: fake, "second": lambda device: right}
    choice = choose_among(makers, None, device=CPU, gray=False)
    assert choice.decoder is right
    ((name, why),) = choice.rejected
    assert name == "first"
    assert reason in why
    assert (fake.closed, right.closed) == (1, 0)
    with pytest.raises(OptionError, match="cannot be used") as caught:
        choose_among(makers, "first", device=CPU, gray=False)
    assert reason in str(caught.value)
    assert caught.value.way_out


def test_a_canary_is_heard():
    """A decoder that writes one byte of foreign memory is found by the canary."""
    canary = Canary(CPU)
    fake = FakeDecoder(writes_to=canary.blocks[3:4])
    assert check_decoder(fake, CPU, canary=canary).reason == "it wrote outside its own memory"


def test_a_decoder_that_fails_as_one_channel():
    """One channel is checked where it is needed, and only there."""

    class Coloured(FakeDecoder):
        def decode(self, encoded):
            if encoded.gray:
                raise RuntimeError("no luma here")
            return super().decode(encoded)

    makers = {"coloured": lambda device: Coloured()}
    assert choose_among(makers, None, device=CPU, gray=False).decoder is not None
    choice = choose_among(makers, None, device=CPU, gray=True)
    assert choice.decoder is None
    assert "no luma here" in choice.rejected[0][1]


def test_a_library_that_is_missing_is_told():
    """What does not import is passed over with its reason; all missing is no error by itself."""

    def missing(device):
        import no_such_library  # noqa: F401

    choice = choose_among({"a": missing, "b": missing}, None, device=CPU, gray=False)
    assert choice.decoder is None
    assert [name for name, _ in choice.rejected] == ["a", "b"]
    assert "no_such_library" in choice.rejected[0][1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_without_a_gpu_nothing_is_chosen():
    """Without a GPU every decoder has a reason and none is chosen; a wrong name is an error."""
    choice = choose(None, 0)
    assert choice.decoder is None
    assert [name for name, _ in choice.rejected] == list(MAKERS)
    with pytest.raises(OptionError, match="no GPU decoder 'magic'"):
        choose("magic", 0)
