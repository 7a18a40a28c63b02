"""What users say of the outputs they want: kinds of fields, and transforms of pictures.

These are descriptions only: frozen, cheap, checked when they are made, and free of any library.
`decoding/` turns them into work.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, TypeAlias

from fastfeed.errors import OptionError

MAX_PIXELS: Final = 178_956_970
"""Pixels of a picture before it is refused as a bomb: Pillow's own limit, about 13,400 squared."""

Names: TypeAlias = "str | tuple[str, ...]"


def _names(name: Names) -> tuple[str, ...]:
    names = (name,) if isinstance(name, str) else name
    sequence = isinstance(names, tuple | list)
    if not sequence or not names or not all(isinstance(one, str) and one for one in names):
        raise OptionError(
            f"{name!r} names no field",
            way_out='Write the part after the key, as in Image("jpg"), or alternatives in a tuple',
        )
    return tuple(names)


# Transforms of pictures


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random part of the picture, resized to `size` (an int, or height and width in pixels).

    The part covers `scale` of the area and has an aspect `ratio` (width to height) drawn as
    torchvision draws them. The filter is antialiased bilinear.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        _check_size(self.size)
        for limits in (self.scale, self.ratio):
            if not (_are_numbers(limits) and len(limits) == 2 and 0 < limits[0] <= limits[1]):
                raise OptionError(f"{self!r}: scale and ratio go from a smaller to a larger number")


@dataclass(frozen=True, slots=True)
class Resize:
    """The whole picture at another size: height and width, or an int for the shorter side."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        _check_size(self.size)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of the picture, `size` pixels (an int, or height and width).

    A picture that is smaller is filled up with zeros around it, as torchvision does.
    """

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        _check_size(self.size)


@dataclass(frozen=True, slots=True)
class HorizontalFlip:
    """Left and right exchanged with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not _are_numbers((self.p,)) or not 0 <= self.p <= 1:
            raise OptionError(f"{self!r}: a probability lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class Normalize:
    """Values divided by their maximum, less `mean`, over `std` (one each a channel).

    They are computed in float32 and rounded to `dtype`: "float32", "bfloat16" or "float16".
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    _: KW_ONLY
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def __post_init__(self) -> None:
        _choice("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        numbers = _are_numbers(self.mean) and _are_numbers(self.std)
        if not numbers or len(self.mean) != len(self.std) or not self.mean or not all(self.std):
            raise OptionError(f"{self!r}: give one mean and one std, not zero, for each channel")


Transform: TypeAlias = RandomResizedCrop | Resize | CenterCrop | HorizontalFlip | Normalize


def _check_size(size: int | tuple[int, int]) -> None:
    sides = size if isinstance(size, tuple | list) else (size,)
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    if len(sides) not in {1, 2} or not whole or not all(0 < side < 1 << 16 for side in sides):
        raise OptionError(f"{size!r} is no size of a picture: an int, or (height, width)")


def _are_numbers(values: object) -> bool:
    return isinstance(values, tuple | list) and all(
        isinstance(value, int | float) and math.isfinite(value) for value in values
    )


def _check_budget(max_pixels: int) -> None:
    if not isinstance(max_pixels, int) or max_pixels < 1:
        raise OptionError(f"max_pixels={max_pixels!r} is no number of pixels")


# Kinds of fields


@dataclass(frozen=True, slots=True, init=False)
class Image:
    """A picture: uint8 [channels, height, width], in memory with the channels last.

    With transforms that fix the size (RandomResizedCrop, Resize to (h, w), CenterCrop) pictures
    are stacked; without, a batch holds a list of them. Only the part that is wanted is decoded.
    The field may also be an `.npy` of uint8 or uint16, [h, w] or [h, w, 1, 3 or 4]: no decoding.

    Args:
        name: the field, or alternatives of which the first that a sample has is used.
        transforms: applied in order; the random ones draw from (seed, epoch, sample).
        mode: "RGB", "RGBA" or "L".
        dtype: "uint8" (16-bit pictures are scaled) or "uint16" (they are kept, others scaled up).
        exif: "apply" turns pictures as their EXIF orientation says, "ignore" leaves them.
        like: output whose draw this one shares, for fields that belong together.
        max_pixels: pictures with more are refused.
        truncated: "error", or "keep" to use what there is of a JPEG that was cut short.
    """

    names: tuple[str, ...]
    transforms: tuple[Transform, ...]
    mode: Literal["RGB", "RGBA", "L"]
    dtype: Literal["uint8", "uint16"]
    exif: Literal["apply", "ignore"]
    like: str | None
    max_pixels: int
    truncated: Literal["error", "keep"]

    def __init__(  # noqa: PLR0913 - each is a property of a picture
        self,
        name: Names,
        *transforms: Transform,
        mode: Literal["RGB", "RGBA", "L"] = "RGB",
        dtype: Literal["uint8", "uint16"] = "uint8",
        exif: Literal["apply", "ignore"] = "apply",
        like: str | None = None,
        max_pixels: int = MAX_PIXELS,
        truncated: Literal["error", "keep"] = "error",
    ) -> None:
        _choice("mode", mode, ("RGB", "RGBA", "L"))
        _choice("dtype", dtype, ("uint8", "uint16"))
        _choice("exif", exif, ("apply", "ignore"))
        _choice("truncated", truncated, ("error", "keep"))
        _check_transforms(transforms, channels={"L": 1, "RGB": 3, "RGBA": 4}[mode])
        _check_budget(max_pixels)
        if like is not None and not all(isinstance(t, Normalize) for t in transforms):
            raise OptionError(
                f"Image({name!r}, like={like!r}) has a geometry of its own",
                way_out=f"Leave its transforms out; it takes those of {like!r}",
            )
        for field, value in (
            ("names", _names(name)),
            ("transforms", tuple(transforms)),
            ("mode", mode),
            ("dtype", dtype),
            ("exif", exif),
            ("like", like),
            ("max_pixels", max_pixels),
            ("truncated", truncated),
        ):
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True, init=False)
class Mask:
    """A picture of class numbers: uint8 [height, width], resized to the nearest, never blended.

    Palette pictures give their indices. With `like` it shares window and flip with that output.
    """

    names: tuple[str, ...]
    transforms: tuple[Transform, ...]
    like: str | None
    exif: Literal["apply", "ignore"]
    max_pixels: int

    def __init__(
        self,
        name: Names,
        *transforms: Transform,
        like: str | None = None,
        exif: Literal["apply", "ignore"] = "apply",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        _choice("exif", exif, ("apply", "ignore"))
        _check_budget(max_pixels)
        _check_transforms(transforms, channels=1)
        if any(isinstance(t, Normalize) for t in transforms):
            raise OptionError(f"Mask({name!r}): class numbers are not normalised")
        if like is not None and transforms:
            raise OptionError(
                f"Mask({name!r}, like={like!r}) has a geometry of its own",
                way_out=f"Leave its transforms out; it takes those of {like!r}",
            )
        for field, value in (
            ("names", _names(name)),
            ("transforms", tuple(transforms)),
            ("like", like),
            ("exif", exif),
            ("max_pixels", max_pixels),
        ):
            object.__setattr__(self, field, value)


@dataclass(frozen=True, slots=True, init=False)
class Boxes:
    """Boxes in the picture `like`: float32 [n, 4] as x0, y0, x1, y1 in pixels of the result.

    They are cut at the edges of the window; one that lies outside keeps its row, with no area.
    The field is a JSON list of lists or an `.npy`, in "xyxy" or "xywh" of the stored picture as
    displayed.
    """

    names: tuple[str, ...]
    like: str
    format: Literal["xyxy", "xywh"]

    def __init__(
        self,
        name: Names,
        *,
        like: str,
        format: Literal["xyxy", "xywh"] = "xyxy",  # noqa: A002
    ) -> None:
        _choice("format", format, ("xyxy", "xywh"))
        object.__setattr__(self, "names", _names(name))
        object.__setattr__(self, "like", like)
        object.__setattr__(self, "format", format)


@dataclass(frozen=True, slots=True, init=False)
class Keypoints:
    """Points in the picture `like`: float32 [n, 2] as x, y in pixels of the result, not cut."""

    names: tuple[str, ...]
    like: str

    def __init__(self, name: Names, *, like: str) -> None:
        object.__setattr__(self, "names", _names(name))
        object.__setattr__(self, "like", like)


@dataclass(frozen=True, slots=True, init=False)
class Int:
    """A whole number as text: int64."""

    names: tuple[str, ...]

    def __init__(self, name: Names) -> None:
        object.__setattr__(self, "names", _names(name))


@dataclass(frozen=True, slots=True, init=False)
class Float:
    """A number as text: float64."""

    names: tuple[str, ...]

    def __init__(self, name: Names) -> None:
        object.__setattr__(self, "names", _names(name))


@dataclass(frozen=True, slots=True, init=False)
class Text:
    """Text in UTF-8: str."""

    names: tuple[str, ...]

    def __init__(self, name: Names) -> None:
        object.__setattr__(self, "names", _names(name))


@dataclass(frozen=True, slots=True, init=False)
class Json:
    """A JSON document: the Python objects in it."""

    names: tuple[str, ...]

    def __init__(self, name: Names) -> None:
        object.__setattr__(self, "names", _names(name))


@dataclass(frozen=True, slots=True, init=False)
class Bytes:
    """The bytes as they are: a batch holds a `Ragged` of uint8 views, without a copy."""

    names: tuple[str, ...]

    def __init__(self, name: Names) -> None:
        object.__setattr__(self, "names", _names(name))


@dataclass(frozen=True, slots=True, init=False)
class Array:
    """An `.npy`, or a dict of the members of an `.npz`; never a pickle.

    With `shape` and `dtype` given, arrays are checked against them and stacked; without, a batch
    holds a list.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...] | None
    dtype: str | None

    def __init__(
        self, name: Names, *, shape: tuple[int, ...] | None = None, dtype: str | None = None
    ) -> None:
        if (shape is None) != (dtype is None):
            raise OptionError(f"Array({name!r}): shape and dtype go together")
        if shape is not None and not (
            isinstance(shape, tuple | list) and all(isinstance(s, int) and s >= 0 for s in shape)
        ):
            raise OptionError(f"Array({name!r}): shape={shape!r} is no tuple of whole numbers")
        object.__setattr__(self, "names", _names(name))
        object.__setattr__(self, "shape", shape if shape is None else tuple(shape))
        object.__setattr__(self, "dtype", dtype)


Field: TypeAlias = Image | Mask | Boxes | Keypoints | Int | Float | Text | Json | Bytes | Array


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")


def _check_transforms(transforms: tuple[Transform, ...], *, channels: int) -> None:
    for place, transform in enumerate(transforms):
        if not isinstance(
            transform, RandomResizedCrop | Resize | CenterCrop | HorizontalFlip | Normalize
        ):
            raise OptionError(
                f"{transform!r} is no transform of pictures",
                way_out="Anything else goes into ShardDataset(transform=...)",
            )
        if isinstance(transform, Normalize):
            if place != len(transforms) - 1:
                raise OptionError("Normalize comes last")
            if len(transform.mean) != channels:
                raise OptionError(
                    f"{transform!r} is for {len(transform.mean)} channels, not {channels}"
                )
