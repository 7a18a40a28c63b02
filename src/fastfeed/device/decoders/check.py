"""Tries a decoder on a few pictures before it is trusted: colours, bad files, foreign memory.

Versions of these libraries left pictures out, ignored streams, and failed on some GPUs only; none
of them said so.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch

from fastfeed.decoding.jpeg_kind import read_kind
from fastfeed.device.decoders.protocol import Decoded, Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fastfeed.device.decoders.protocol import PictureDecoder

Upsampling = Literal["interpolated", "plain"]

# Levels that a picture may differ by on average. Rounding makes up to 0.5, swapped colours 50.
_BOUND: Final = 1.0
_SIZES: Final = ((96, 64), (131, 77), (65, 130))
# Engines may refuse these, but must not get them wrong.
_SMALL: Final = ((31, 17), (16, 16), (8, 8), (3, 40), (1, 1))
_SUBSAMPLINGS: Final = ("444", "422", "420", "gray")
_FORMS: Final = {"444": 0, "422": 1, "420": 2}
# Elements and rounds of work that keeps the stream busy for a few milliseconds.
_WORK, _ROUNDS = 1 << 23, 60
_GUARD: Final = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """A picture of the check, encoded, and what it must become."""

    name: str
    data: bytes
    shape: tuple[int, int]
    expected: dict[Upsampling, NDArray[np.uint8]]
    """[height, width, channels] by libjpeg-turbo; empty for one that must be refused."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a decoder did."""

    reason: str | None
    """Why it must not be used; None if it may."""
    upsampling: Upsampling = "interpolated"
    """How it makes colours of fewer samples than pixels; plain ones show at sharp edges."""


class Canary:
    """Memory on the device that a decoder has no business with, and that says if it was touched."""

    def __init__(self, device: torch.device, *, nbytes: int = 1 << 16, count: int = 16) -> None:
        self.blocks = [
            torch.full((nbytes,), 0xC5, dtype=torch.uint8, device=device) for _ in range(count)
        ]
        # Every second one is free, so that the decoder's own memory may lie between them.
        self.blocks = self.blocks[::2]

    def is_untouched(self) -> bool:
        """Say whether every byte is as it was."""
        return all(bool((block == 0xC5).all()) for block in self.blocks)


def check_decoder(
    decoder: PictureDecoder, device: torch.device, *, gray: bool = False, canary: Canary
) -> Report:
    """Decode the check's pictures in several orders, bad ones among them, and compare."""
    samples = [one for one in make_samples(_SIZES, gray=gray) if _takes(decoder, one)]
    small = [one for one in make_samples(_SMALL, gray=gray) if _takes(decoder, one)]
    if not samples:
        return Report("it takes none of the common kinds of JPEG")
    mixed = [*samples[:2], text_sample(), *samples[2:]]
    upsampling: Upsampling = "interpolated"
    # In other orders, so that no picture of the call before can pass for a new one.
    for batch in (samples, mixed[::-1], small, samples):
        encoded = pack(batch, gray=gray)
        before = encoded.buffer.clone()
        busy = _Busy(device)
        decoded = decoder.decode(encoded)
        reason = _compare_all(batch, encoded, decoded, device)
        if reason is None and not busy.is_right():
            reason = "it writes into memory that work queued before still reads"
        if reason is None and not torch.equal(encoded.buffer, before):
            reason = "it wrote to the encoded pictures"
        if reason is None and not canary.is_untouched():
            reason = "it wrote outside its own memory"
        if reason is not None:
            return Report(reason)
        if _is_plain(batch, encoded, decoded):
            upsampling = "plain"
    return Report(None, upsampling)


def pack(samples: Sequence[Sample], *, gray: bool) -> Encoded:
    """Return samples as a batch, with a gap behind each."""
    sizes = np.array([len(sample.data) for sample in samples], np.int64)
    ends = np.cumsum(sizes + _GUARD)
    starts = ends - sizes - _GUARD
    buffer = torch.full((int(ends[-1]),), 0x3C, dtype=torch.uint8)
    for start, sample in zip(starts.tolist(), samples, strict=True):
        buffer[start : start + len(sample.data)] = torch.frombuffer(
            bytearray(sample.data), dtype=torch.uint8
        )
    shapes = np.array([sample.shape for sample in samples], np.int32)
    boxes = np.stack([_box(height, width) for height, width in shapes.tolist()])
    return Encoded(buffer, starts, sizes, shapes, boxes, gray=gray)


def make_samples(sizes: Sequence[tuple[int, int]], *, gray: bool) -> list[Sample]:
    """Return a picture of each size and common kind."""
    samples = []
    for number, size in enumerate(sizes):
        for name in _SUBSAMPLINGS:
            data = _encode(_picture(*size, seed=number), name)
            title = f"{name} of {size[1]}x{size[0]} pixels"
            samples.append(Sample(title, data, size, _expected(data, gray=gray)))
    return samples


def text_sample() -> Sample:
    """Return a file that is no picture."""
    return Sample("a file that is no picture", b"no picture " * 40, (8, 8), {})


def _takes(decoder: PictureDecoder, sample: Sample) -> bool:
    kind = read_kind(memoryview(sample.data))
    return kind is not None and decoder.can(kind)


def _picture(height: int, width: int, *, seed: int) -> NDArray[np.uint8]:
    """Return slopes with sharp edges between colours, bright in the last corner."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    picture = np.stack([40 + x * 150 / width, 60 + y * 120 / height, 200 - x * 90 / width], 2)
    picture += random.normal(0, 3, picture.shape)
    picture[height // 4 : height // 2, width // 5 : width // 2] = (220, 30, 40)
    picture[height // 2 :, width // 3 : width // 2] = (20, 60, 230)
    picture[height - height // 4 :, width // 2 :] = (240, 220, 90)
    return picture.clip(0, 255).astype(np.uint8)


def _encode(picture: NDArray[np.uint8], subsampling: str) -> bytes:
    from PIL import Image

    file, image = io.BytesIO(), Image.fromarray(picture)
    if subsampling == "gray":
        image.convert("L").save(file, "JPEG", quality=90)
    else:
        image.save(file, "JPEG", quality=90, subsampling=_FORMS[subsampling])
    return file.getvalue()


def _expected(data: bytes, *, gray: bool) -> dict[Upsampling, NDArray[np.uint8]]:
    import simplejpeg

    space = "GRAY" if gray else "RGB"
    return {
        "interpolated": simplejpeg.decode_jpeg(data, space),
        "plain": simplejpeg.decode_jpeg(data, space, fastupsample=True),
    }


def _box(height: int, width: int) -> NDArray[np.int32]:
    """Return a window that begins inside the picture and ends with it."""
    x, y = width // 4, height // 3
    return np.array([x, y, width - x, height - y], np.int32)


def _compare_all(
    batch: list[Sample], encoded: Encoded, decoded: Decoded, device: torch.device
) -> str | None:
    if len(decoded.pictures) != len(batch):
        return f"it returned {len(decoded.pictures)} pictures for {len(batch)}"
    for number, (sample, picture) in enumerate(zip(batch, decoded.pictures, strict=True)):
        if picture is None:
            if sample.expected and sample.shape not in _SMALL:
                return f"it left out a good picture: {sample.name}"
        elif not sample.expected:
            return f"it returned pixels for {sample.name}"
        elif picture.device.type != device.type or picture.dtype != torch.uint8:
            return f"its pictures are {picture.dtype} on {picture.device}"
        elif reason := _compare(picture, _wanted(sample, encoded, decoded, number)):
            return f"{sample.name} {reason}"
    return None


def _compare(picture: torch.Tensor, expected: dict[Upsampling, NDArray[np.uint8]]) -> str | None:
    shape = expected["plain"].transpose(2, 0, 1).shape
    if picture.shape != shape:
        return f"came out as {tuple(picture.shape)} instead of {shape}"
    least = min(_difference(picture, one) for one in expected.values())
    return f"differs from the CPU's by {least:.1f} levels on average" if least > _BOUND else None


def _is_plain(batch: list[Sample], encoded: Encoded, decoded: Decoded) -> bool:
    sums: dict[Upsampling, float] = {"interpolated": 0.0, "plain": 0.0}
    for number, (sample, picture) in enumerate(zip(batch, decoded.pictures, strict=True)):
        if picture is not None:
            for name, one in _wanted(sample, encoded, decoded, number).items():
                sums[name] += _difference(picture, one)
    return sums["plain"] < sums["interpolated"]


def _wanted(
    sample: Sample, encoded: Encoded, decoded: Decoded, number: int
) -> dict[Upsampling, NDArray[np.uint8]]:
    if decoded.whole:
        return sample.expected
    x, y, w, h = encoded.boxes[number].tolist()
    return {name: one[y : y + h, x : x + w] for name, one in sample.expected.items()}


def _difference(picture: torch.Tensor, expected: NDArray[np.uint8]) -> float:
    pixels = picture.permute(1, 2, 0).cpu().numpy().astype(np.int16)
    return float(np.abs(pixels - expected).mean())


class _Busy:
    """Work on the current stream that will read memory which is free to be given away already."""

    def __init__(self, device: torch.device) -> None:
        self._wrong: list[torch.Tensor] = []
        if device.type != "cuda":
            return
        blocks = [
            torch.full((3, height, width), 7, dtype=torch.uint8, device=device)
            for height, width in _SIZES * 4
        ]
        work = torch.ones(_WORK, device=device)
        for _ in range(_ROUNDS):
            work.sin_()
        self._wrong = [(block != 7).any() for block in blocks]

    def is_right(self) -> bool:
        """Say whether the work saw what was there when it was queued."""
        return not any(bool(wrong) for wrong in self._wrong)
