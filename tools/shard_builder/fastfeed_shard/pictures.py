"""Pictures stored decoded, at about the size they are trained at: `npy` in the place of `jpg`."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from fastfeed.errors import DecodeError, OptionError, located
from fastfeed.fields import MAX_PIXELS, CenterCrop, Resize
from fastfeed_shard.decode import PICTURES
from fastfeed_shard.pool import run_tasks
from fastfeed_shard.samples import FilePart, MadePart, Sample, Source, make_of, read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeGuard

    from numpy.typing import NDArray

    from fastfeed.decoding.window import Window
    from fastfeed_shard.samples import Part

    Size = tuple[int, int]

RAW_FIELD = "npy"
# What stands in an .npy of three short axes before its values.
_HEADER = 128
# Photos tell their size within this, unless a thumbnail or a colour profile is very large.
_HEAD = 64 << 10
_PICTURES_A_TASK = 256


@dataclass(frozen=True, slots=True)
class RawPictures:
    """How a picture becomes an array: uint8 [height, width, 3], turned as its EXIF block says.

    The shorter side gets `side` pixels, by the antialiased filter that training has too; with
    `square` the middle is kept. So it is what `Resize(side)` and `CenterCrop(side)` give.
    """

    side: int
    square: bool = False

    def __post_init__(self) -> None:
        Resize(self.side)  # refuses what is no size

    def nbytes(self, height: int, width: int) -> int:
        """Return how many bytes a picture becomes that is displayed at this size."""
        rows, columns = self._window(height, width).shape
        return _HEADER + rows * columns * 3

    def make(self, data: bytes) -> bytes:
        """Return the `.npy` of a picture's bytes; DecodeError if they are none."""
        import numpy as np
        from PIL import Image

        pixels = _decode(memoryview(data))
        window = self._window(*pixels.shape[:2])
        x, y, w, h = window.crop
        pixels = pixels[y : y + h, x : x + w]
        if window.size != pixels.shape[:2]:
            height, width = window.size
            # Pillow's bilinear filter is the antialiased one when it makes pictures smaller.
            resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(resized)
        x, y, w, h = window.final
        file = io.BytesIO()
        part = np.ascontiguousarray(pixels[y : y + h, x : x + w])
        np.lib.format.write_array(file, part, allow_pickle=False)
        return file.getvalue()

    def _window(self, height: int, width: int) -> Window:
        from fastfeed.decoding.draw import Draw
        from fastfeed.decoding.window import draw_window

        cut = (CenterCrop(self.side),) if self.square else ()
        window = draw_window((Resize(self.side), *cut), height, width, Draw((0, 0, 0), ""))
        if window.size[0] * window.size[1] > MAX_PIXELS:
            raise DecodeError(
                f"{width}x{height} pixels would become more than the budget of {MAX_PIXELS:,}"
            )
        return window


def make_raw(
    source: Source, recipe: RawPictures, *, jobs: int, progress: Callable[[int], None]
) -> Source:
    """Return the source with its pictures to be made raw: their field becomes `npy`.

    Those are the fields named `jpg`, `png` and so on. One with a dot, such as `seg.png`, stays as
    it is: it is a mask most likely, which must not be blended. Sizes are looked up by `jobs`
    processes; `progress` is called with the number of bytes of the files that are done.
    """
    found = [
        (sample.key, part)
        for sample in source.samples
        for part in sample.parts
        if _is_picture(part)
    ]
    if not found:
        raise OptionError(
            "no field is a picture that can be made raw",
            way_out=f"Such fields are {', '.join(sorted(PICTURES))}; leave --pictures out",
        )
    sizes = iter(_sizes(found, recipe, jobs=jobs, progress=progress))

    def changed(sample: Sample) -> Sample:
        parts = [
            MadePart(RAW_FIELD, part, next(sizes), recipe) if _is_picture(part) else part
            for part in sample.parts
        ]
        parts.sort(key=lambda part: part.field)
        for one, other in pairwise(parts):
            if one.field == other.field:
                raise OptionError(
                    f"the sample has two fields that would be {RAW_FIELD}",
                    way_out="Give masks a name such as NAME.seg.png: they stay as they are",
                    key=sample.key,
                    field=RAW_FIELD,
                )
        return Sample(sample.key, tuple(parts))

    return replace(source, samples=[changed(sample) for sample in source.samples])


def _is_picture(part: Part) -> TypeGuard[FilePart]:
    return isinstance(part, FilePart) and part.field in PICTURES


def _sizes(
    pictures: Sequence[tuple[str, FilePart]],
    recipe: RawPictures,
    *,
    jobs: int,
    progress: Callable[[int], None],
) -> list[int]:
    """Return the bytes that each picture becomes, from its header; DecodeError if it has none."""
    tasks = range(0, len(pictures), _PICTURES_A_TASK)

    def work(number: int) -> list[int]:
        some = pictures[tasks[number] : tasks[number] + _PICTURES_A_TASK]
        sizes = []
        for key, part in some:
            with located(key=key):
                sizes.append(_size_of(part, recipe))
        return sizes

    done: dict[int, list[int]] = {}
    labels = [f"the size of {pictures[start][1].path!r} and following" for start in tasks]
    with closing(run_tasks(work, labels, jobs=jobs)) as results:
        for number, sizes in results:
            done[number] = sizes
            some = pictures[tasks[number] : tasks[number] + _PICTURES_A_TASK]
            progress(sum(part.size for _, part in some))
    return [size for number in sorted(done) for size in done[number]]


def _size_of(part: FilePart, recipe: RawPictures) -> int:
    if recipe.square:
        return recipe.nbytes(recipe.side, recipe.side)
    from fastfeed.decoding.jpeg_header import is_jpeg

    head = read_head(part, _HEAD)
    if is_jpeg(memoryview(head)):
        try:
            return recipe.nbytes(*_displayed_size(memoryview(head)))
        except DecodeError:
            pass  # all of it may say more
    return make_of(part, lambda data: recipe.nbytes(*_displayed_size(memoryview(data))))


def _displayed_size(data: memoryview) -> Size:
    """Return height and width from the header; some formats must be decoded for it."""
    from fastfeed.decoding.exif import jpeg_orientation
    from fastfeed.decoding.jpeg_header import is_jpeg
    from fastfeed.decoding.pillow import open_picture, orientation_of

    picture = open_picture(data, max_pixels=MAX_PIXELS)
    width, height = picture.size
    if is_jpeg(data):
        return (width, height) if jpeg_orientation(data) >= 5 else (height, width)
    if orientation_of(picture) == 1:
        return height, width
    height, width = _decode(data).shape[:2]
    return height, width


def _decode(data: memoryview) -> NDArray[Any]:
    """Return the pixels [height, width, 3] as displayed, refusing what training would refuse."""
    from fastfeed.decoding.exif import jpeg_orientation, turn
    from fastfeed.decoding.jpeg_header import check_scans, is_complete, is_jpeg
    from fastfeed.decoding.pillow import decode_picture, open_picture, orientation_of

    jpeg = is_jpeg(data)
    if jpeg:
        check_scans(data)
        if not is_complete(data):
            raise DecodeError(f"the JPEG is cut short: {len(data):,} bytes hold no end of it")
    picture = open_picture(data, max_pixels=MAX_PIXELS)
    stored = jpeg_orientation(data) if jpeg else orientation_of(picture)
    pixels = decode_picture(picture, mode="RGB", wide=False)
    # Pillow turns TIFFs by itself.
    turned = not jpeg and stored != 1 and orientation_of(picture) != stored
    return pixels if turned else turn(pixels, stored)
