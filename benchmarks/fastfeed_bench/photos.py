"""An ImageNet-like set of photos, made from a few source photos and the same for everyone.

Photos of about 500x375 pixels and 110 kB are what published figures of loaders are about. Each one
is a random part of a source photo, with fine grain so that no two are equal and their size as
files is that of camera pictures. All draws come from one seed.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from PIL import Image

SOURCES = Path(__file__).resolve().parents[2] / "examples" / "photos"
"""The photos of the repository; a wheel does not carry them."""

_SUFFIXES = (".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class PhotoSet:
    """What a set of photos looks like; the defaults are ImageNet's."""

    count: int = 1000
    width: int = 500
    height: int = 375
    portrait: float = 0.25
    """Share of photos with width and height exchanged."""
    jitter: float = 0.05
    """Each side is scaled by up to this much, up or down."""
    quality: int = 96
    grain: float = 3.0
    """Standard deviation of the grain, in levels."""
    seed: int = 0


IMAGENET_LIKE = PhotoSet()


def find_sources(folder: Path | None) -> list[Path]:
    """Return the source photos in name order: those of `folder`, or of the repository."""
    chosen = folder or SOURCES
    found = sorted(p for p in chosen.rglob("*") if p.suffix.lower() in _SUFFIXES)
    if not found:
        raise OptionError(
            f"there are no source photos (*.jpg) in {folder}"
            if folder
            else "this installation carries no source photos",
            way_out="Name a folder of a dozen photos or more with --data, such as examples/photos "
            "of the repository",
        )
    return found


def make_photos(sources: Sequence[Path], parent: Path, photo_set: PhotoSet = IMAGENET_LIKE) -> Path:
    """Return the folder of the finished set inside `parent`; it is made once for each content.

    The set lies in class folders, named after the folders of the sources. An interrupted run
    leaves nothing under the final name.
    """
    folder = parent / f"photos-{_content_key(sources, photo_set)}"
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name, content in photos(sources, photo_set):
        path = partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    partial.rename(folder)
    return folder


def photos(sources: Sequence[Path], photo_set: PhotoSet) -> Iterator[tuple[str, bytes]]:
    """Yield relative name and JPEG bytes of each photo of the set."""
    import numpy as np
    from PIL import Image

    opened: list[tuple[str, Image.Image]] = []
    for source in sources:
        with Image.open(source) as file:
            opened.append((source.parent.name, file.convert("RGB")))
    for index in range(photo_set.count):
        # A generator for each photo: a longer set begins with the shorter one.
        random = np.random.default_rng([photo_set.seed, index])
        label, image = opened[index % len(opened)]
        yield f"{label}/{index:06d}.jpg", _photo(image, random, photo_set)


def _photo(image: Image.Image, random: np.random.Generator, photo_set: PhotoSet) -> bytes:
    import numpy as np
    from PIL import Image

    sides = (photo_set.width, photo_set.height)
    if random.random() < photo_set.portrait:
        sides = sides[::-1]
    low, high = 1 - photo_set.jitter, 1 + photo_set.jitter
    width, height = (round(side * random.uniform(low, high)) for side in sides)
    # The largest window of this shape, made a little smaller so that it can lie somewhere.
    scale = min(image.width / width, image.height / height) * random.uniform(0.75, 1.0)
    left = random.uniform(0, image.width - width * scale)
    top = random.uniform(0, image.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    picture = image.resize((width, height), Image.Resampling.BICUBIC, box=box)
    # Grain is the same in all three channels, as luminance noise of a camera mostly is.
    grain = random.normal(0.0, photo_set.grain, (height, width, 1))
    levels = np.clip(np.rint(np.asarray(picture) + grain), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "jpeg", quality=photo_set.quality, subsampling="4:2:0")
    return file.getvalue()


def _content_key(sources: Sequence[Path], photo_set: PhotoSet) -> str:
    digest = hashlib.sha256(repr(photo_set).encode())
    for source in sources:
        digest.update(source.parent.name.encode() + b"\0")
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16]
