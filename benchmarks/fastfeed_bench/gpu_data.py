"""Ready-made pictures: the photos as uint8 of 256 pixels, for benchmarks where nothing is decoded.

The same pictures lie there in three forms, each the one that costs its reader least: shards of
`.npy` members, bare files, and one array that can be mapped.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed_bench.data import shard_tool
from fastfeed_bench.systems.files import photos_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SIDE = 256
_PER_SHARD = 128


@dataclass(frozen=True, slots=True)
class RawData:
    """Where the pictures lie."""

    folder: Path
    labels: list[int]

    @property
    def settings(self) -> dict[str, Any]:
        """The places, as systems are told them."""
        return {
            "shards": [str(path) for path in sorted((self.folder / "shards").glob("*.tar"))],
            "files": str(self.folder / "files"),
            "array": str(self.folder / "pictures.npy"),
            "labels": self.labels,
            "count": len(self.labels),
            "side": SIDE,
        }


def raw_data(photos: str) -> RawData:
    """Return the pictures of a folder of photos, made once, beside it."""
    from pathlib import Path

    source = Path(photos)
    found = photos_of(photos)
    folder = source.with_name(f"{source.name}-raw-{SIDE}")
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        _make(partial, [photo.path for photo in found], [photo.label for photo in found])
        partial.rename(folder)
    return RawData(folder, [photo.label for photo in found])


def _make(folder: Path, photos: list[Path], labels: list[int]) -> None:
    (folder / "shards").mkdir(parents=True)
    (folder / "files").mkdir()
    shape = (len(photos), SIDE, SIDE, 3)
    array = np.lib.format.open_memmap(folder / "pictures.npy", "w+", np.uint8, shape)
    for start in range(0, len(photos), _PER_SHARD):
        name = f"raw-{start // _PER_SHARD:06d}.tar"
        with tarfile.open(folder / "shards" / name, "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(start, min(start + _PER_SHARD, len(photos))):
                array[index] = _picture(photos[index])
                (folder / "files" / f"{index:08d}.bin").write_bytes(array[index].tobytes())
                file = io.BytesIO()
                np.save(file, array[index])
                _add(tar, f"{index:08d}.npy", file.getvalue())
                _add(tar, f"{index:08d}.cls", str(labels[index]).encode())
    array.flush()
    shard_tool("index", str(folder / "shards"))


def _picture(photo: Path) -> NDArray[np.uint8]:
    """Return the square in the middle, resized."""
    from PIL import Image

    with Image.open(photo) as image:
        edge = min(image.size)
        left, top = (image.width - edge) // 2, (image.height - edge) // 2
        box = (left, top, left + edge, top + edge)
        picture = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    return np.asarray(picture)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
