"""Pictures made on the spot, and one call to decode a field: all in the fixture `kit`."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as Pillow

from fastfeed.decoding.compile import compile_fields

ORDERS = (("turbojpeg", "simplejpeg", "pillow"), ("simplejpeg", "pillow"), ("pillow",))
DRAW = (1, 2, 3)


def scene(height, width, seed=0):
    """Return a picture [h, w, 3] with slopes, edges and some grain, as photos have."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [np.sin(x / 23 + k) * 60 + np.cos(y / 31 - k) * 50 + 128 for k in range(3)]
    picture = np.stack(planes, axis=2)
    picture[height // 3 : height // 2, width // 4 : width // 2] += (60, -40, 20)
    picture += random.normal(0, 3, picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def encode(picture, kind="JPEG", **options):
    """Return the file of an array or of a Pillow picture."""
    if isinstance(picture, np.ndarray):
        picture = Pillow.fromarray(picture)
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def opened(data):
    """Return Pillow's picture of a file."""
    return Pillow.open(io.BytesIO(data))


def decode(fields, sources, *, decoders=ORDERS[0], draw=DRAW):
    """Decode one sample and return its outputs by name, rows and values alike."""
    if not isinstance(fields, dict):
        fields, sources = {"out": fields}, {fields.names[0]: sources}
    decoder = compile_fields(fields, jpeg_decoders=decoders)
    rows = {name: np.full(row.shape, 77, row.dtype) for name, row in decoder.layout.items()}
    views = {name: memoryview(data) for name, data in sources.items()}
    values = decoder.decode(views, draw=draw, rows=rows)
    return {**rows, **values}


def one(field, data, **options):
    """Decode one field and return it."""
    return decode(field, data, **options)["out"]


@pytest.fixture(scope="session")
def kit():
    """The functions above; a fixture, as test files cannot import each other."""
    return SimpleNamespace(scene=scene, encode=encode, opened=opened, decode=decode, one=one)


@pytest.fixture(scope="session", params=ORDERS, ids="-".join)
def decoders(request):
    """Each order of JPEG decoders."""
    return request.param
