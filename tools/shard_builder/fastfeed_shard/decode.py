"""Try whether the data of a field can be decoded, for `verify --decode`."""

from __future__ import annotations

import io
import json
import warnings

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
    from PIL import Image

    with warnings.catch_warnings():
        # A picture so large that Pillow warns of it is one that training would refuse.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()


def _decode_array(data: bytes) -> None:
    import numpy as np

    np.load(io.BytesIO(data), allow_pickle=False)
