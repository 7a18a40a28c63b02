"""Try whether the data of a field can be decoded, for `verify --decode`."""

from __future__ import annotations

import io
import json
import warnings

from fastfeed.fields import MAX_PIXELS

PICTURES = frozenset(
    {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "avif"}
)


def why_undecodable(field: str, data: bytes) -> str | None:
    """Say why the data of a field cannot be decoded; None if they can, or if nobody knows how."""
    kind = field.rpartition(".")[2]
    try:
        if kind in PICTURES:
            _decode_picture(data)
        elif kind == "json":
            json.loads(data)
        elif kind in {"cls", "cls2", "index", "inx", "id"}:
            int(data)
        elif kind == "npy":
            _decode_array(data)
    except Exception as error:  # noqa: BLE001 - decoders fail in any way they like
        return f"the data cannot be decoded: {error or type(error).__name__}"
    return None


def _decode_picture(data: bytes) -> None:
    from PIL import Image, UnidentifiedImageError

    _decode_strictly(data)

    with warnings.catch_warnings():
        # A picture so large that Pillow warns of it is one that training would refuse.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data)) as picture:
                picture.load()
        except UnidentifiedImageError:  # it would name an object in memory
            raise ValueError("this is no picture of a kind that Pillow knows") from None


def _decode_strictly(data: bytes) -> None:
    """Raise DecodeError for a JPEG whose pixels end too early.

    Pillow fills such a picture up and says nothing, and so do the JPEG engines of a GPU.
    """
    import numpy as np

    from fastfeed.decoding import turbojpeg
    from fastfeed.decoding.jpeg_header import is_jpeg
    from fastfeed.decoding.window import Box

    if not is_jpeg(memoryview(data)) or turbojpeg.shared_library() is None:
        return
    header = turbojpeg.read_header(np.frombuffer(data, np.uint8))
    if header is None or not header.supported or header.height * header.width > MAX_PIXELS:
        return  # Pillow says what is wrong, or can do it
    turbojpeg.decode_region(
        header,
        Box(0, 0, header.width, header.height),
        shrink=1,
        gray=True,
        scratch=lambda nbytes: np.empty(nbytes, np.uint8),
        tolerant=False,
    )


def _decode_array(data: bytes) -> None:
    import numpy as np

    np.load(io.BytesIO(data), allow_pickle=False)
