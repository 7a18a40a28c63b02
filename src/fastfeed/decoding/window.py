"""Which part of a picture becomes which pixels of the result: pure geometry, before any decoding.

A chain of transforms comes down to: cut whole pixels out of the picture as displayed, resize that
part, cut (or fill up) the result, flip. So only the first cut need be decoded, and each step is
exactly what the same transforms do one after the other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from fastfeed.errors import DecodeError, OptionError
from fastfeed.fields import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastfeed.decoding.draw import Draw
    from fastfeed.fields import Transform


class Box(NamedTuple):
    """A rectangle of whole pixels: left, top, width, height."""

    x: int
    y: int
    w: int
    h: int


class Window(NamedTuple):
    """One picture's geometry, in pixels of the picture as displayed."""

    picture: tuple[int, int]
    """Height and width of the whole picture."""
    crop: Box
    """The part that is decoded."""
    size: tuple[int, int]
    """Height and width that the part is resized to."""
    final: Box
    """What is kept of that; it may reach outside, where the result is zero."""
    flip: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return self.final.h, self.final.w

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut from, or added to, the resized part."""
        return self.final == (0, 0, self.size[1], self.size[0])


def draw_window(transforms: Sequence[Transform], height: int, width: int, draw: Draw) -> Window:
    """Return the window of a picture of `height` and `width` pixels."""
    whole = Box(0, 0, width, height)
    window = Window((height, width), whole, (height, width), whole)
    for transform in transforms:
        if isinstance(transform, RandomResizedCrop | Resize) and not window.is_whole:
            raise DecodeError(
                f"{width}x{height} pixels are fewer than the {window.final.w}x{window.final.h} of "
                "the CenterCrop",
                way_out="Resize before the CenterCrop, or cut less",
            )
        if isinstance(transform, RandomResizedCrop):
            crop = _random_part(transform, window.crop, draw)
            window = _resized(window, _pair(transform.size), crop)
        elif isinstance(transform, Resize):
            window = _resized(window, _scaled(transform.size, window.crop), window.crop)
        elif isinstance(transform, CenterCrop):
            window = _centre(window, _pair(transform.size))
        elif isinstance(transform, HorizontalFlip) and draw.uniform() < transform.p:
            window = window._replace(flip=not window.flip)
    return window


def fixed_size(transforms: Sequence[Transform]) -> tuple[int, int] | None:
    """Return the height and width that every result has, None if it depends on the picture.

    Raises OptionError for a chain that cannot be done in one cut, one resize and one cut.
    """
    size: tuple[int, int] | None = None
    resized = cut = False
    for transform in transforms:
        if isinstance(transform, RandomResizedCrop | Resize):
            if resized:
                raise OptionError(
                    f"{transform!r} resizes what was resized already",
                    way_out="Resize once, or do it in ShardDataset(transform=...)",
                )
            resized, cut = True, False
            keeps_aspect = isinstance(transform, Resize) and isinstance(transform.size, int)
            size = None if keeps_aspect else _pair(transform.size)
        elif isinstance(transform, CenterCrop):
            if cut:
                raise OptionError(
                    f"{transform!r} cuts what was cut already", way_out="Cut once, to the last size"
                )
            cut = True
            size = _pair(transform.size)
    return size


def same_window(window: Window, height: int, width: int) -> Window:
    """Return a window for another picture of the same scene, such as a mask of another size."""
    if (height, width) == window.picture:
        return window
    down, across = height / window.picture[0], width / window.picture[1]
    if abs(down - across) * max(window.picture) > 1 + 1e-9 + max(down, across):
        raise DecodeError(
            f"{width}x{height} pixels do not fit the {window.picture[1]}x{window.picture[0]} "
            "pixels of the picture it belongs to"
        )
    left, top = round(window.crop.x * across), round(window.crop.y * down)
    crop = Box(
        min(left, width - 1),
        min(top, height - 1),
        max(1, min(round(window.crop.w * across), width - left)),
        max(1, min(round(window.crop.h * down), height - top)),
    )
    return window._replace(picture=(height, width), crop=crop)


def _random_part(transform: RandomResizedCrop, part: Box, draw: Draw) -> Box:
    """Draw as torchvision does: ten tries, then the middle at the nearest allowed ratio."""
    low, high = math.log(transform.ratio[0]), math.log(transform.ratio[1])
    for _ in range(10):
        area = part.w * part.h * draw.uniform(*transform.scale)
        ratio = math.exp(draw.uniform(low, high))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= part.w and 0 < height <= part.h:
            left, top = draw.below(part.w - width + 1), draw.below(part.h - height + 1)
            return Box(part.x + left, part.y + top, width, height)
    ratio = min(max(part.w / part.h, transform.ratio[0]), transform.ratio[1])
    width = min(part.w, max(1, round(part.h * ratio)))
    height = min(part.h, max(1, round(part.w / ratio)))
    return Box(part.x + (part.w - width) // 2, part.y + (part.h - height) // 2, width, height)


def _resized(window: Window, size: tuple[int, int], crop: Box) -> Window:
    return Window(window.picture, crop, size, Box(0, 0, size[1], size[0]), window.flip)


def _scaled(size: int | tuple[int, int], part: Box) -> tuple[int, int]:
    if not isinstance(size, int):
        return size
    if part.w <= part.h:
        return max(1, int(size * part.h / part.w)), size
    return size, max(1, int(size * part.w / part.h))


def _centre(window: Window, size: tuple[int, int]) -> Window:
    height, width = window.shape
    # torchvision fills up a smaller picture first, with the odd pixel at the end, then rounds.
    fill_x, fill_y = max(0, size[1] - width), max(0, size[0] - height)
    left = -(fill_x // 2) if fill_x else round((width - size[1]) / 2)
    top = -(fill_y // 2) if fill_y else round((height - size[0]) / 2)
    if window.flip:  # the middle of what is seen, which is flipped at the end
        left = width - size[1] - left
    untouched = window.is_whole and window.size == (window.crop.h, window.crop.w)
    if untouched and not fill_x and not fill_y:  # nothing is resized: cut before decoding
        crop = Box(window.crop.x + left, window.crop.y + top, size[1], size[0])
        return _resized(window, size, crop)
    final = Box(window.final.x + left, window.final.y + top, size[1], size[0])
    return window._replace(final=final)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return (size[0], size[-1])
