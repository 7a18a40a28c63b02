"""The one door to Pillow: every kind of picture that is no plain JPEG."""

from __future__ import annotations

import io
import re
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fastfeed.errors import DecodeError, OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

# Formats that decode in this process: none that runs a program (as EPS does) or opens other files.
_FORMATS = (
    "JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "JPEG2000", "AVIF", "PPM", "TGA", "ICO",
    "PCX", "SGI", "QOI", "DDS", "MPO",
)  # fmt: skip

# Their names in Pillow; what unpacks PNG gives the same in any version.
_LIBRARIES = ("jpg", "libjpeg_turbo", "jpg_2000", "libtiff", "webp", "avif")

Mode = Literal["RGB", "RGBA", "L", "index"]


@cache
def _pillow() -> Any:
    """Return Pillow's Image module, unless two Pillows lie over each other."""
    installed = []
    for name in ("pillow", "pillow-simd"):
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        installed.append(name)
    if len(installed) == 2:
        raise OptionError(
            "pillow and pillow-simd are both installed: each has overwritten files of the other",
            way_out="Keep one: pip uninstall pillow pillow-simd, then install the one you want",
        )
    from PIL import Image

    Image.init()
    return Image


def version() -> str:
    """Return which Pillow it is, with which libraries: others may decode otherwise."""
    found = [str(_pillow().__version__)]
    from PIL import features

    known = {*features.codecs, *features.modules, *features.features}
    found += [f"{name} {features.version(name)}" for name in _LIBRARIES if name in known]
    return ", ".join(found)


def open_picture(data: memoryview, *, max_pixels: int) -> Image:
    """Return a picture whose header is read; its size is checked before anything is decoded."""
    pillow = _pillow()
    try:
        known = [name for name in _FORMATS if name in pillow.OPEN]
        picture: Image = pillow.open(io.BytesIO(data), formats=known)
        width, height = picture.size
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise DecodeError(
            f"more pixels than Pillow allows: {error}",
            way_out="If it is meant to be so, raise PIL.Image.MAX_IMAGE_PIXELS and max_pixels",
        ) from error
    except Exception as error:  # a decoder of many formats raises anything on rubbish
        raise DecodeError(_reason(error)) from error
    if width * height > max_pixels:
        raise DecodeError(
            f"{width}x{height} pixels are more than the budget of {max_pixels:,}",
            way_out="If the picture is meant to be so large, raise max_pixels of the field",
        )
    if width < 1 or height < 1:
        raise DecodeError(f"a picture of {width}x{height} pixels")
    return picture


def orientation_of(picture: Image) -> int:
    """Return the EXIF orientation, 1 where there is none that is right."""
    try:
        value = picture.getexif().get(0x0112, 1)
    except Exception:  # noqa: BLE001 - a broken EXIF block says nothing
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def check_depth(picture: Image) -> None:
    """Refuse 16-bit colour, which Pillow would cut to 8 bits; to be asked before anything else.

    Pillow forgets the stored depth when it decodes, and looking for EXIF may make it decode.
    """
    if picture.mode in {"RGB", "RGBA", "LA"} and _is_deep(picture):
        raise DecodeError(
            "16-bit colour would be cut to 8 bits",
            way_out="Ask for dtype='uint8', or store the picture as .npy",
        )


def decode_picture(picture: Image, *, mode: Mode, wide: bool) -> NDArray[Any]:
    """Return [height, width, channels] as uint8, or as uint16 with `wide`.

    16-bit values are scaled to 8 bits as value / 257, and 8-bit ones to 16 bits as value * 257;
    nothing is clipped.
    """
    try:
        picture.load()
        return _convert(picture, mode=mode, wide=wide)
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(_reason(error)) from error


def _convert(picture: Image, *, mode: Mode, wide: bool) -> NDArray[Any]:
    channels = {"L": 1, "index": 1, "RGB": 3, "RGBA": 4}[mode]
    if picture.mode.startswith("I"):  # 16 bits of gray, in 16 or 32 bits of memory
        values = np.asarray(picture)
        if mode == "index":
            return _narrow(values)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise DecodeError("32-bit values are no picture", way_out="Store them as .npy")
        gray = values.astype(np.uint16)
        if not wide:
            gray = ((gray.astype(np.uint32) + 128) // 257).astype(np.uint8)
        return _spread(gray, channels)
    if picture.mode == "F":
        raise DecodeError("floating-point values are no picture", way_out="Store them as .npy")
    if mode == "index":
        if picture.mode not in {"P", "L", "1"}:
            picture = picture.convert("L")
        return np.array(picture, dtype=np.uint8)[..., None]
    if picture.mode in {"LA", "PA", "RGBa", "La"} or isinstance(
        picture.info.get("transparency"), bytes
    ):
        picture = picture.convert("RGBA")  # Pillow warns of, or refuses, the direct way
    narrow = np.array(picture.convert(mode), dtype=np.uint8)
    narrow = narrow[..., None] if narrow.ndim == 2 else narrow
    return narrow.astype(np.uint16) * 257 if wide else narrow


def _is_deep(picture: Image) -> bool:
    """Say whether a picture that is not loaded yet stores 16 bits a channel."""
    tiles = getattr(picture, "tile", None) or [()]
    return any(";16" in str(part) for part in tiles[0])


def _narrow(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.min() < 0 or values.max() > 255:
        raise DecodeError(
            "class numbers beyond 255", way_out="Store the mask as .npy and use Array"
        )
    return values.astype(np.uint8)[..., None]


def _spread(gray: NDArray[Any], channels: int) -> NDArray[Any]:
    """Return gray in as many channels as asked for, the fourth opaque."""
    picture = np.repeat(gray[..., None], channels, axis=2)
    if channels == 4:
        picture[..., 3] = np.iinfo(picture.dtype).max
    return picture


def _reason(error: Exception) -> str:
    # Pillow names the file, which is memory here, by its address.
    text = re.sub(r" ?<_io\.BytesIO[^>]*>", "", str(error))
    return f"Pillow: {type(error).__name__}: {text[:300]}"
