"""The windows of a random resized crop, drawn as torchvision draws them."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

SIDE = 224
"""Pixels of a side of the output."""
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10


class Draws(Protocol):
    """A source of random numbers: a `random.Random`, or the module itself."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between the two."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """Return a whole number from a to b, both included."""
        ...


class Window(NamedTuple):
    """A part of a picture, in pixels."""

    left: int
    top: int
    width: int
    height: int


def draw_window(width: int, height: int, random: Draws) -> Window:
    """Draw a window of a picture of this size."""
    low, high = (math.log(ratio) for ratio in RATIO)
    for _ in range(_TRIES):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return Window(random.randint(0, width - w), random.randint(0, height - h), w, h)
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return Window((width - w) // 2, (height - h) // 2, w, h)
