"""Reads from a JPEG's segments of which kind it is, in a few steps and without decoding."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from fastfeed.decoding.jpeg_header import SEGMENT

Subsampling = Literal["444", "422", "420", "440", "411", "410", "gray", "other"]
Space = Literal["gray", "YCbCr", "RGB", "CMYK", "other"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a JPEG's header says of how it is coded; decides which decoders can do it."""

    subsampling: Subsampling
    progressive: bool = False
    """In ever finer scans, Huffman coded."""
    components: int = 3
    precision: int = 8
    baseline: bool = True
    """Sequential, Huffman coded, 8 bits: what the first of the coding processes writes."""
    interleaved: bool = True
    """Whether the first scan holds all components; so it is the only one of a baseline file."""
    space: Space = "YCbCr"
    coded_at: int = field(default=0, compare=False)
    """Where the coded data of the first scan begin."""
    restarts: bool = field(default=False, compare=False)
    """Whether restart markers stand in them."""

    @property
    def has_one_scan(self) -> bool:
        """Return whether all coded data are in one piece."""
        return self.baseline and self.interleaved

    @property
    def is_common(self) -> bool:
        """Return whether cameras and programs write such files; not the CMYK of printers."""
        common = self.space in {"gray", "YCbCr"} and (self.baseline or self.progressive)
        return common and self.precision == 8


_START, _SCAN, _END, _RESTARTS, _RESTART = 0xD8, 0xDA, 0xD9, 0xDD, 0xD0
_JFIF, _ADOBE = 0xE0, 0xEE
# Frames of all coding processes; the three numbers left out are tables and reserved.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BASELINE, _PROGRESSIVE = 0xC0, 0xC2
# Markers that no length follows: restarts and the start of a picture.
_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
# Sampling of the luma, if both chroma planes have one sample a block.
_SUBSAMPLINGS: Final[dict[int, Subsampling]] = {
    0x11: "444",
    0x21: "422",
    0x22: "420",
    0x12: "440",
    0x41: "411",
    0x42: "410",
}
_SPACES: Final[dict[int, Space]] = {1: "gray", 3: "YCbCr", 4: "CMYK"}
# More segments than any program writes; a bound for hostile files.
_SEGMENTS: Final = 10_000


class _Coded(NamedTuple):
    at: int
    components: int
    restarts: bool


class _Frame(NamedTuple):
    process: int
    precision: int
    samplings: bytes
    names: bytes


def read_kind(data: memoryview) -> Kind | None:
    """Return the kind of a JPEG, or None for what is no JPEG or ends before its first scan."""
    if bytes(data[:2]) != b"\xff\xd8":
        return None
    place, frame, jfif, adobe, restarts = 2, None, False, -1, False
    for _ in range(_SEGMENTS):
        try:
            start, marker, length = SEGMENT.unpack_from(data, place)
            while start == marker == 0xFF:  # fill bytes before a marker
                place += 1
                start, marker, length = SEGMENT.unpack_from(data, place)
        except struct.error:  # the end
            return None
        if start != 0xFF or marker == _END:
            return None
        if marker in _BARE:
            place += 2
            continue
        segment = data[place + 4 : place + 2 + length]
        if marker in _FRAMES:
            frame = _read_frame(marker, bytes(segment))
        elif marker == _JFIF and bytes(segment[:5]) == b"JFIF\0":
            jfif = True
        elif marker == _ADOBE and bytes(segment[:5]) == b"Adobe" and len(segment) >= 12:
            adobe = segment[11]
        elif marker == _RESTARTS:
            restarts = any(segment)
        place += 2 + max(2, length)
        if marker == _SCAN:
            if frame is None or not segment:
                return None
            coded = _Coded(place, segment[0], restarts)
            return _kind(frame, coded, jfif, adobe)
    return None


def is_regular(data: memoryview, kind: Kind) -> bool:
    """Say whether the coded data of a file with one scan have its markers only, and its end.

    A bit that is wrong often makes a marker. Engines decode past one, and what follows is garbage.
    Behind the end may be whatever programs put there, but for an end that no other picture has.
    """
    coded = np.frombuffer(data, np.uint8)[kind.coded_at :]
    if len(coded) < 2:
        return False
    # Every byte of every picture is looked at, so in few passes: of bytes plus 1, 0 stands for 0xFF
    # and 1 for 0. Where more than 1 follows a 0 is a marker; else it is data or a fill byte.
    raised = coded + 1
    found = raised[1:] > 1
    np.less(raised[:-1], found.view(np.uint8), out=found)
    first = found.argmax()
    if found[first] and first + 2 == len(coded):
        return bool(coded[first + 1] == _END)
    markers = coded[1:][found]
    ends = np.flatnonzero(markers == _END)
    if not len(ends) or (ends[0] and not kind.restarts):
        return False
    inside, behind = markers[: ends[0]], markers[ends[0] + 1 :]
    in_order = _RESTART + np.arange(len(inside)) % 8
    bounds = behind[(behind == _END) | (behind == _START)]
    return bool((inside == in_order).all()) and (not len(bounds) or bool(bounds[0] == _START))


def _read_frame(process: int, segment: bytes) -> _Frame | None:
    count = segment[5] if len(segment) > 5 else 0
    # A height of 0 is told after the picture; no decoder of ours waits for it.
    if count == 0 or len(segment) < 6 + 3 * count or not (segment[1] or segment[2]):
        return None
    end = 6 + 3 * count
    return _Frame(process, segment[0], segment[7:end:3], segment[6:end:3])


def _kind(frame: _Frame, coded: _Coded, jfif: bool, adobe: int) -> Kind:  # noqa: FBT001
    count = len(frame.samplings)
    return Kind(
        subsampling=_subsampling(frame.samplings),
        progressive=frame.process == _PROGRESSIVE,
        components=count,
        precision=frame.precision,
        baseline=frame.process == _BASELINE and frame.precision == 8,
        interleaved=coded.components == count,
        space=_space(frame, jfif=jfif, adobe=adobe),
        coded_at=coded.at,
        restarts=coded.restarts,
    )


def _subsampling(samplings: bytes) -> Subsampling:
    # Other numbers in the same ratio mean the same, but engines are not seen to agree on that.
    if samplings == b"\x11":
        return "gray"
    if len(samplings) == 3 and samplings[1:] == b"\x11\x11":
        return _SUBSAMPLINGS.get(samplings[0], "other")
    return "other"


def _space(frame: _Frame, *, jfif: bool, adobe: int) -> Space:
    """Return the colour space by the rules of libjpeg: JFIF first, then Adobe, then the names."""
    count = len(frame.samplings)
    if count == 3 and not jfif and (adobe == 0 or (adobe < 0 and frame.names == b"RGB")):
        return "RGB"
    return _SPACES.get(count, "other")
