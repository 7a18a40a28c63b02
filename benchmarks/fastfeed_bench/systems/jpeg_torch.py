"""jpeg-cpu by torch's own loader, with each of the usual decoders and resizers."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.consume import read_tensor
from fastfeed_bench.machine import versions
from fastfeed_bench.probe import examine
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.windows import RATIO, SCALE, SIDE, draw_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from fastfeed_bench.model import Evidence, Settings
    from fastfeed_bench.systems.files import Photo

    Recipe = Callable[[bytes], torch.Tensor]


def session(settings: Settings) -> LoaderSession:
    """Return the session of `settings["recipe"]`: pillow, torchvision, cv2 or aten."""
    recipe, packages = _RECIPES[settings["recipe"]]
    make = recipe()
    files = photos_of(settings["photos"])
    loader = _loader(files * settings["repeats"], make, settings)
    used = ", ".join(f"{name} {version}" for name, version in versions(packages).items())
    return LoaderSession(
        note=f"{used}; num_workers={settings['workers']}, batch_size={settings['batch']}",
        samples=len(files) * settings["repeats"],
        epoch=lambda: loader,
        consume=consume,
        describe=lambda: _describe(make, settings),
    )


def consume(batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Read pictures and labels; return how many."""
    pictures, labels = batch
    read_tensor(pictures)
    read_tensor(labels)
    return len(pictures)


def pictures_of(batches: Any) -> Iterator[NDArray[np.uint8]]:
    """Yield each picture of batches of (pictures, labels) as [height, width, 3]."""
    for pictures, _ in batches:
        yield from pictures.permute(0, 2, 3, 1).numpy()


def stack_as_stored(
    samples: Sequence[tuple[torch.Tensor, int]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collate pictures in the order in which they lie in memory, which costs least.

    Most libraries deliver [height, width, 3] shown as [3, height, width]; stacking that the plain
    way would transpose every picture.
    """
    pictures = [picture for picture, _ in samples]
    labels = torch.tensor([label for _, label in samples])
    if pictures[0].stride(0) == 1:
        last = torch.stack([picture.permute(1, 2, 0) for picture in pictures])
        return last.permute(0, 3, 1, 2), labels
    return torch.stack(pictures), labels


def _describe(recipe: Recipe, settings: Settings) -> Evidence:
    files = photos_of(settings["probe"])
    batches = _loader(files, recipe, {**settings, "persistent": False})
    return examine(pictures_of(batches), files[0].path.read_bytes())


def _loader(files: list[Photo], recipe: Recipe, settings: Settings) -> DataLoader[Any]:
    return DataLoader(
        _Photos(files, recipe),
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        collate_fn=stack_as_stored,
        persistent_workers=settings.get("persistent", True),
        worker_init_fn=_init_worker,
    )


def _init_worker(_: int) -> None:
    # As every guide says: a worker is one thread of work, its libraries must not add more.
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(0)


@dataclass(frozen=True, slots=True)
class _Photos(Dataset[tuple[torch.Tensor, int]]):
    """Photos of class folders, as torchvision's ImageFolder has them."""

    files: list[Photo]
    recipe: Recipe

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        return self.recipe(path.read_bytes()), label


def pillow_recipe() -> Recipe:
    """Pillow decodes; torchvision's transform crops and resizes with Pillow."""
    from PIL import Image
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO)

    def make(data: bytes) -> torch.Tensor:
        with Image.open(io.BytesIO(data)) as image:
            picture = np.array(crop(image.convert("RGB")))
        return torch.from_numpy(picture).permute(2, 0, 1)

    return make


def _torchvision_recipe() -> Recipe:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO, antialias=True)

    def make(data: bytes) -> torch.Tensor:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        picture: torch.Tensor = crop(decode_jpeg(encoded, mode=ImageReadMode.RGB))
        return picture

    return make


def _cropped(data: bytes) -> NDArray[np.uint8]:
    import simplejpeg

    picture: NDArray[np.uint8] = simplejpeg.decode_jpeg(data)
    # torch seeds Python's generator in each worker.
    window = draw_window(picture.shape[1], picture.shape[0], random)
    rows = slice(window.top, window.top + window.height)
    return picture[rows, window.left : window.left + window.width]


def _cv2_recipe() -> Recipe:
    import cv2

    def make(data: bytes) -> torch.Tensor:
        # The antialiased filter that OpenCV has for pictures made smaller.
        picture = cv2.resize(_cropped(data), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        return torch.from_numpy(picture).permute(2, 0, 1)

    return make


def _aten_recipe() -> Recipe:
    resize = torch.ops.aten._upsample_bilinear2d_aa  # noqa: SLF001 - torchvision's own, called directly

    def make(data: bytes) -> torch.Tensor:
        picture = torch.from_numpy(_cropped(data)).permute(2, 0, 1)
        resized: torch.Tensor = resize(picture[None], [SIDE, SIDE], False)[0]
        return resized

    return make


_RECIPES: dict[str, tuple[Callable[[], Recipe], tuple[str, ...]]] = {
    "pillow": (pillow_recipe, ("torch", "torchvision", "pillow", "pillow-simd")),
    "torchvision": (_torchvision_recipe, ("torch", "torchvision")),
    "cv2": (_cv2_recipe, ("torch", "simplejpeg", "opencv-python-headless")),
    "aten": (_aten_recipe, ("torch", "simplejpeg")),
}
