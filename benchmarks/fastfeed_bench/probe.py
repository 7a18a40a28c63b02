"""A picture that tells which window of it was cut out, so that pipelines are checked from outside.

Its chroma rises evenly from left to right (Cb) and from top to bottom (Cr), so the window follows
from an output picture alone; its luma is a photo, in which a wrong filter shows. Every system's own
pipeline runs over it, as it is timed, and each output is compared with the reference: full decode,
crop, Pillow's antialiased bilinear resize.
"""

from __future__ import annotations

import io
import math
import random
import statistics
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from fastfeed_bench.model import OURS, Finding
from fastfeed_bench.windows import SIDE, Window, draw_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fastfeed_bench.model import Evidence

SIZE = (500, 375)
COUNT = 256
"""Outputs that are looked at."""

_COMPARED = 16
# First level and rise of each plane; all colours that come of them lie within RGB.
_LUMA = (60.0, 135.0)
_CB = (98.0, 60.0)
_CR = (98.0, 60.0)
_EDGE = 4
# The picture must be equal within this many levels on average. Peers whose library has no exact
# counterpart of the filter (a box in place of a triangle) are allowed their closest one.
_LIMIT_OURS = 1.5
_LIMIT_PEERS = 2.5
# Four times the scatter of 256 draws, in the widest of the figures.
_TOLERANCE = 0.07


def make_probe(source: Path) -> bytes:
    """Return the probe as a JPEG; `source` is the photo of its luma."""
    width, height = SIZE
    with Image.open(source) as photo:
        luma = np.asarray(photo.convert("L").resize(SIZE), np.float64)
    x = (np.arange(width) + 0.5) / width
    y = (np.arange(height) + 0.5) / height
    planes = [
        _LUMA[0] + _LUMA[1] * luma / 255,
        np.broadcast_to(_CB[0] + _CB[1] * x, (height, width)),
        np.broadcast_to(_CR[0] + _CR[1] * y[:, None], (height, width)),
    ]
    levels = [Image.fromarray(np.rint(plane).astype(np.uint8)) for plane in planes]
    file = io.BytesIO()
    Image.merge("YCbCr", levels).save(file, "jpeg", quality=98, subsampling="4:2:0")
    return file.getvalue()


def examine(pictures: Iterable[NDArray[np.uint8]], probe: bytes) -> dict[str, Any]:
    """Return the evidence of outputs [height, width, 3] that were made from the probe."""
    outputs = [picture for picture, _ in zip(pictures, range(COUNT), strict=False)]
    windows = [find_window(output) for output in outputs]
    with Image.open(io.BytesIO(probe)) as image:
        whole = image.convert("RGB")
    differences = [
        difference(output, whole, window)
        for output, window in zip(outputs[:_COMPARED], windows[:_COMPARED], strict=True)
    ]
    return {
        "count": len(outputs),
        "shape": list(outputs[0].shape),
        "dtype": str(outputs[0].dtype),
        "distinct": len(set(windows)),
        "difference": max(differences),
        **_distribution(windows),
    }


def _distribution(windows: Sequence[Window]) -> dict[str, float]:
    """Return mean and spread of the windows' shares of the picture, shapes and centres."""
    figures = {
        "share": [w.width * w.height / (SIZE[0] * SIZE[1]) for w in windows],
        "aspect": [math.log(w.width / w.height) for w in windows],
        "x": [(w.left + w.width / 2) / SIZE[0] for w in windows],
        "y": [(w.top + w.height / 2) / SIZE[1] for w in windows],
    }
    means = {name: statistics.mean(values) for name, values in figures.items()}
    spreads = {f"{name} spread": statistics.stdev(values) for name, values in figures.items()}
    return means | spreads


def find_window(output: NDArray[np.uint8]) -> Window:
    """Return the window that an output was made from, within a few pixels."""
    red, green, blue = (output[..., channel].astype(np.float64) for channel in range(3))
    cb = 128 - 0.168736 * red - 0.331264 * green + 0.5 * blue
    cr = 128 + 0.5 * red - 0.418688 * green - 0.081312 * blue
    left, width = _fit(cb.mean(axis=0), *_CB, SIZE[0])
    top, height = _fit(cr.mean(axis=1), *_CR, SIZE[1])
    return Window(round(left), round(top), round(width), round(height))


def _fit(levels: NDArray[np.float64], base: float, rise: float, length: int) -> tuple[float, float]:
    """Return start and extent, in pixels of the probe, of a line of output levels."""
    places = (levels - base) / rise * length
    # The ends of a line are where filters differ in what lies outside.
    inner = np.arange(_EDGE, SIDE - _EDGE)
    slope, first = np.polyfit(inner + 0.5, places[inner], 1)
    return float(first), float(slope * SIDE)


def difference(output: NDArray[np.uint8], whole: Image.Image, window: Window) -> float:
    """Return the mean difference from the reference in levels of a photo of full contrast.

    The window is known within a few pixels; the best one is looked for downhill from there.
    """
    window = _inside(window)
    best = _compare(output, whole, window)
    while True:
        found = min((_compare(output, whole, near), near) for near in _neighbours(window))
        if found[0] >= best:
            return best * 255 / _LUMA[1]
        best, window = found


def _inside(window: Window) -> Window:
    width, height = min(window.width, SIZE[0]), min(window.height, SIZE[1])
    left = min(max(0, window.left), SIZE[0] - width)
    top = min(max(0, window.top), SIZE[1] - height)
    return Window(left, top, width, height)


def _neighbours(window: Window) -> list[Window]:
    left, top, width, height = window
    steps = [(a, b) for a, b in product((-1, 0, 1), repeat=2) if a or b]
    return [
        *(Window(left + a, top, width + b, height) for a, b in steps),
        *(Window(left, top + a, width, height + b) for a, b in steps),
    ]


def _compare(output: NDArray[np.uint8], whole: Image.Image, window: Window) -> float:
    left, top, width, height = window
    if left < 0 or top < 0 or left + width > whole.width or top + height > whole.height:
        return math.inf
    crop = whole.crop((left, top, left + width, top + height))
    reference = crop.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return float(np.abs(np.asarray(reference, np.int16) - output).mean())


def judge_pictures(evidence: Mapping[str, Evidence]) -> dict[str, Finding]:
    """Return for each system whether its outputs are those of the same random resized crop."""
    expected = _expected()
    return {name: _judge(found, expected, ours=name == OURS) for name, found in evidence.items()}


def _judge(found: Evidence, expected: Mapping[str, float], *, ours: bool) -> Finding:
    wrong = [
        f"{name} {found[name]:.2f}, not {value:.2f}"
        for name, value in expected.items()
        if abs(found[name] - value) > _TOLERANCE
    ]
    if found["shape"] != [SIDE, SIDE, 3] or found["dtype"] != "uint8":
        wrong.append(f"output {found['shape']} {found['dtype']}")
    if found["distinct"] < found["count"] * 0.9:
        wrong.append("windows repeat")
    if found["difference"] >= (_LIMIT_OURS if ours else _LIMIT_PEERS):
        wrong.append("other pictures")
    note = f"at most {found['difference']:.2f} levels from Pillow's antialiased filter"
    return Finding(not wrong, "; ".join([note, *(f"NOT EQUAL: {text}" for text in wrong)]))


def _expected() -> dict[str, float]:
    """Return the figures of a random resized crop of the probe."""
    drawn = random.Random(0)
    return _distribution([draw_window(*SIZE, drawn) for _ in range(4000)])
