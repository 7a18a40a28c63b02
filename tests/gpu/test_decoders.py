"""What every GPU decoder must hold to, on a GPU: pixels, bad files, order, foreign memory."""

from __future__ import annotations

import dataclasses
import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image as Pillow

from fastfeed.decoding.jpeg_kind import read_kind
from fastfeed.device.decoders.check import Canary, check_decoder
from fastfeed.device.decoders.choose import MAKERS, choose
from fastfeed.device.decoders.protocol import Encoded
from fastfeed.errors import OptionError

pytestmark = pytest.mark.gpu

FORMS = ("444", "422", "420", "440", "gray")
# Engines may leave smaller pictures to the CPU.
SURELY = 64
# Levels on average, of libjpeg-turbo with the same upsampling of colours.
BOUND = 0.3


def photo(height, width, seed=0):
    """Return slopes, edges and grain as photos have, never black in the last corner."""
    random = np.random.default_rng(seed)
    y = np.linspace(0, 9, height, dtype=np.float32)[:, None]
    x = np.linspace(0, 12, width, dtype=np.float32)[None]
    planes = [np.sin(x + k) * 50 + np.cos(y - k) * 40 + 120 for k in range(3)]
    picture = np.stack(planes, axis=2)
    picture[height // 3 : height // 2, width // 4 : width // 2] += (40, -30, 20)
    picture += random.normal(0, 2, (height, width, 1)).astype(np.float32)
    picture[-(height // 8) - 1 :, -(width // 8) - 1 :] = (200, 180, 90)
    return picture.clip(0, 255).astype(np.uint8)


def encode(picture, form="420", **options):
    """Return the file of a picture."""
    if form == "gray":
        return simplejpeg.encode_jpeg(picture[:, :, 1:2].copy(), 92, colorspace="GRAY")
    if options:
        file = io.BytesIO()
        Pillow.fromarray(picture).save(file, "JPEG", **options)
        return file.getvalue()
    return simplejpeg.encode_jpeg(picture, 92, colorsubsampling=form)


def pack(files, shapes, *, gray=False):
    """Return files as one pinned batch, as the loader's slots are."""
    sizes = np.array([len(file) for file in files], np.int64)
    starts = np.cumsum(sizes) - sizes
    buffer = torch.from_numpy(np.frombuffer(b"".join(files), np.uint8).copy()).pin_memory()
    shapes = np.array(shapes, np.int32)
    boxes = np.stack([[w // 5, h // 4, w - w // 5, h - h // 4] for h, w in shapes.tolist()])
    return Encoded(buffer, starts, sizes, shapes, boxes.astype(np.int32), gray=gray)


def differences(encoded, files, decoded, *, plain=False):
    """Return the mean difference from libjpeg-turbo of each picture, None where there is none."""
    found = []
    for number, picture in enumerate(decoded.pictures):
        if picture is None:
            found.append(None)
            continue
        space = "GRAY" if encoded.gray else "RGB"
        expected = simplejpeg.decode_jpeg(files[number], space, fastupsample=plain)
        if not decoded.whole:
            x, y, w, h = encoded.boxes[number].tolist()
            expected = expected[y : y + h, x : x + w]
        pixels = picture.permute(1, 2, 0).cpu().numpy().astype(np.int16)
        assert pixels.shape == expected.shape
        found.append(float(np.abs(pixels - expected).mean()))
    return found


@pytest.fixture(scope="module", params=list(MAKERS))
def tried(request):
    """Each decoder that is installed and passes its check here; others are never used."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", 0)
    try:
        decoder = MAKERS[request.param](device)
    except (ImportError, OptionError) as error:
        pytest.skip(f"{request.param} is not installed or has no engines: {error}")
    with torch.cuda.stream(torch.cuda.Stream(device)):
        report = check_decoder(decoder, device, canary=Canary(device))
        luma = check_decoder(decoder, device, gray=True, canary=Canary(device))
    if report.reason is not None:
        if request.param == "nvjpeg":
            pytest.fail(f"nvjpeg is rejected: {report.reason}")
        pytest.skip(f"{request.param} is rejected here: {report.reason}")
    yield SimpleNamespace(
        decoder=decoder, plain=report.upsampling == "plain", luma=luma.reason, report=report
    )
    decoder.close()


@pytest.fixture
def stream(cuda):
    """A stream of the test's own, as the loader's stage has."""
    stream = torch.cuda.Stream(cuda)
    with torch.cuda.stream(stream):
        yield stream
    stream.synchronize()


def judge(tried, files, shapes, *, bad=(), gray=False):
    """Decode a batch; all but `bad` must be right, and the bad ones None."""
    encoded = pack(files, shapes, gray=gray)
    found = differences(encoded, files, tried.decoder.decode(encoded), plain=tried.plain)
    assert len(found) == len(files)
    for number, difference in enumerate(found):
        if number in bad:
            assert difference is None, f"{bad[number]} came out"
        elif difference is None:
            assert min(shapes[number]) < SURELY, f"{shapes[number]} was left out"
        else:
            assert difference <= BOUND, f"{shapes[number]} differs by {difference}"
    return found


@pytest.mark.parametrize("form", FORMS)
def test_pixels_are_the_cpus(tried, stream, form):
    """Pictures of every common subsampling and odd sizes are those of libjpeg-turbo."""
    shapes = [(375, 500), (501, 333), (64, 64), (97, 255), (301, 77), (481, 640)] * 4
    files = [encode(photo(*shape, seed=n), form) for n, shape in enumerate(shapes)]
    judge(tried, files, shapes)


def test_luma_is_the_cpus(tried, stream):
    """One channel is the luma as it is stored."""
    if tried.luma is not None:
        pytest.skip(f"no luma here: {tried.luma}")
    shapes = [(375, 500), (201, 133), (97, 255)]
    for form in FORMS:
        files = [encode(photo(*shape), form) for shape in shapes]
        judge(tried, files, shapes, gray=True)


def test_engines_equal_libjpeg_turbo(tried, stream):
    """With interpolated colours the engines' pixels are off by one level at most."""
    if tried.decoder.name != "nvjpeg" or tried.report.upsampling != "interpolated":
        pytest.skip("only the engines promise this")
    shape = (375, 500)
    files = [encode(photo(*shape, seed=n), form) for n, form in enumerate(FORMS)]
    encoded = pack(files, [shape] * len(files))
    for file, picture in zip(files, tried.decoder.decode(encoded).pictures, strict=True):
        pixels = picture.permute(1, 2, 0).cpu().numpy().astype(np.int16)
        worst = np.abs(pixels - simplejpeg.decode_jpeg(file)).max()
        assert worst <= 2


def test_bad_files_leave_the_others_right(tried, stream):
    """Text, and a kind that it cannot do: None, and only they."""
    shapes = [(240 + n, 320 + 3 * n) for n in range(32)]
    progressive = encode(photo(*shapes[20]), progressive=True)
    for turn in range(3):
        files = [encode(photo(*shape, seed=n + turn)) for n, shape in enumerate(shapes)]
        files[11] = b"this is no picture at all " * 40
        files[20] = progressive
        bad = {11: "text"}
        if not tried.decoder.can(read_kind(memoryview(progressive))):
            bad[20] = "a progressive picture"
        judge(tried, files, shapes, bad=bad)
    judge(tried, [encode(photo(*shape)) for shape in shapes], shapes)


def test_cut_files_leave_the_others_right(tried, stream):
    """A file that just stops, with or without an end put behind, hurts nothing but itself."""
    files = [encode(photo(200, 300, seed=n)) for n in range(6)]
    for place, end in ((0, b""), (5, b""), (3, b"\xff\xd9")):
        batch = list(files)
        batch[place] = batch[place][: len(batch[place]) // 2] + end
        encoded = pack(batch, [(200, 300)] * 6)
        decoded = as_list(tried.decoder.decode(encoded))
        decoded.pictures[place] = None
        found = differences(encoded, batch, decoded, plain=tried.plain)
        assert all(found[n] is not None for n in range(6) if n != place)
        assert max(found[n] for n in range(6) if n != place) <= BOUND


def as_list(decoded):
    """Return what a decoder returned, with pictures that may be replaced."""
    return dataclasses.replace(decoded, pictures=list(decoded.pictures))


def test_kinds_it_does_not_take(tried, stream):
    """Files that workers would not send harm nothing but themselves."""
    shape = (128, 160)
    good = encode(photo(*shape))
    cmyk = io.BytesIO()
    Pillow.fromarray(photo(*shape)).convert("CMYK").save(cmyk, "JPEG")
    for odd in (encode(photo(*shape), "411"), cmyk.getvalue(), encode(photo(*shape), quality=1)):
        files = [good] * 5 + [odd] + [good] * 2
        encoded = pack(files, [shape] * 8)
        decoded = as_list(tried.decoder.decode(encoded))
        decoded.pictures[5] = None
        found = differences(encoded, files, decoded, plain=tried.plain)
        assert all(found[n] is not None for n in range(8) if n != 5)
        assert max(found[n] for n in range(8) if n != 5) <= BOUND


def test_broken_streams_never_hurt(tried, stream):
    """Random bytes inside a file give any pixels or none; the other pictures stay right."""
    random = np.random.default_rng(7)
    shape = (180, 240)
    files = [encode(photo(*shape, seed=n)) for n in range(12)]
    for _ in range(30):
        broken = bytearray(files[4])
        place = int(random.integers(600, len(broken) - 60))
        broken[place : place + 40] = random.bytes(40)
        batch = [*files[:4], bytes(broken), *files[5:]]
        encoded = pack(batch, [shape] * 12)
        decoded = as_list(tried.decoder.decode(encoded))
        decoded.pictures[4] = None
        found = differences(encoded, batch, decoded, plain=tried.plain)
        assert all(found[n] is not None for n in range(12) if n != 4)
        assert max(found[n] for n in range(12) if n != 4) <= BOUND


@pytest.mark.parametrize(
    "shape",
    [
        *((8, 8), (9, 17), (16, 16), (1, 1), (3, 900), (31, 33), (64, 64), (63, 2000)),
        *((1080, 1920), (3000, 2001), (4000, 6000)),
    ],
    ids=str,
)
def test_sizes(tried, stream, shape):
    """From 8x8 to 24 million pixels, alone and beside others."""
    file, other = encode(photo(*shape)), encode(photo(100, 120))
    judge(tried, [file], [shape])
    judge(tried, [other, file, other], [(100, 120), shape, (100, 120)])


def test_a_thousand_random_sizes(tried, stream):
    """Ragged batches of any sizes are right, call after call in the same memory."""
    random = np.random.default_rng(3)
    left_out = 0
    for number in range(8):
        shapes = [tuple(int(n) for n in random.integers(20, 700, 2)) for _ in range(125)]
        files = [
            encode(photo(*shape, seed=number), FORMS[n % len(FORMS)])
            for n, shape in enumerate(shapes)
        ]
        left_out += sum(one is None for one in judge(tried, files, shapes))
    assert left_out < 100


def test_batches_of_any_size_in_bounded_memory(tried, stream):
    """The number of pictures may change with every call, and memory does not grow by it."""
    shape = (200, 260)
    files = [encode(photo(*shape, seed=n)) for n in range(48)]
    sizes = np.random.default_rng(1).integers(1, 49, 60).tolist()
    judge(tried, files, [shape] * 48)
    stream.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for size in sizes:
        tried.decoder.decode(pack(files[:size], [shape] * size))
    stream.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 256 << 20
    judge(tried, files[:7], [shape] * 7)


def test_queued_work_still_reads_the_last_pictures(tried, stream, cuda):
    """A call does not write over pictures that queued kernels are still to read."""
    shape = (300, 400)
    files = [encode(photo(*shape, seed=n)) for n in range(8)]
    first = pack(files, [shape] * 8)
    second = pack(files[::-1], [shape] * 8)
    kept = [picture.clone() for picture in tried.decoder.decode(first).pictures]
    work = torch.ones(1 << 24, device=cuda)
    for _ in range(5):
        pictures = tried.decoder.decode(first).pictures
        for _ in range(80):
            work.sin_()
        seen = [(picture != one).any() for picture, one in zip(pictures, kept, strict=True)]
        del pictures
        again = tried.decoder.decode(second)
        assert not any(bool(one) for one in seen)
        assert max(differences(second, files[::-1], again, plain=tried.plain)) <= BOUND


def test_used_by_another_thread_than_the_one_that_made_it(tried, cuda):
    """The trainer's thread chooses a decoder, and the stage's thread uses it."""
    shape, results = (120, 200), []
    files = [encode(photo(*shape, seed=n)) for n in range(4)]

    def run():
        with torch.cuda.stream(torch.cuda.Stream(cuda)):
            encoded = pack(files, [shape] * 4)
            decoded = tried.decoder.decode(encoded)
            results.extend(differences(encoded, files, decoded, plain=tried.plain))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert len(results) == 4
    assert max(results) <= BOUND


def test_a_pageable_buffer(tried, stream):
    """A buffer that could not be pinned is decoded as well."""
    shape = (120, 200)
    files = [encode(photo(*shape, seed=n)) for n in range(4)]
    pinned = pack(files, [shape] * 4)
    parts = (pinned.starts, pinned.sizes, pinned.shapes, pinned.boxes)
    encoded = Encoded(pinned.buffer.clone(), *parts)
    assert not encoded.buffer.is_pinned()
    decoded = tried.decoder.decode(encoded)
    assert max(differences(encoded, files, decoded, plain=tried.plain)) <= BOUND


def test_the_choice_on_this_gpu(cuda):
    """The first that passes is chosen, and by its name as well; reasons are sentences."""
    choice = choose(None, 0)
    assert all(reason for _, reason in choice.rejected)
    if choice.decoder is None:
        pytest.skip(f"no decoder passes here: {choice.rejected}")
    choice.decoder.close()
    named = choose(choice.decoder.name, 0)
    assert named.rejected == ()
    named.decoder.close()
