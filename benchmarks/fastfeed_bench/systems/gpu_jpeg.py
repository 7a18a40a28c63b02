"""jpeg-gpu by fastfeed, and by torch's workers with torchvision's GPU decoder in the trainer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastfeed_bench.machine import versions
from fastfeed_bench.probe import examine
from fastfeed_bench.systems.files import photos_of
from fastfeed_bench.systems.gpu_meter import DeviceSession, cuda_device, new_stream
from fastfeed_bench.windows import RATIO, SCALE, SIDE, draw_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fastfeed_bench.model import Evidence, Settings
    from fastfeed_bench.systems.files import Photo

    Encoded = tuple[torch.Tensor, list[int], torch.Tensor]


def fastfeed_session(settings: Settings) -> DeviceSession:
    """Return the session of ours: shards, with `decode` as the settings have it."""
    import fastfeed as ff

    device = cuda_device()
    loader = _fastfeed_loader(settings["shards"] * settings["repeats"], settings)
    return DeviceSession(
        note=(
            f"fastfeed {ff.__version__}; num_workers={int(loader.num_workers)}, "
            f'batch_size={settings["batch"]}, device="cuda", decode="{settings["decode"]}"'
        ),
        device=device,
        epoch=lambda: (batch["image"] for batch in loader),
        lead=settings["lead"],
        describe=lambda: _describe_fastfeed(settings),
    )


def _fastfeed_loader(shards: list[str], settings: Settings) -> Any:
    import fastfeed as ff

    fields: dict[str, Any] = {
        "image": ff.Image("jpg", ff.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO)),
        "label": ff.Int("cls"),
    }
    make: Any = ff.DataLoader
    return make(
        ff.ShardDataset(shards, fields=fields),
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=ff.AUTO,
        device="cuda",
        decode=settings["decode"],
        persistent_workers=settings.get("persistent", True),
        drop_last=True,
    )


def _describe_fastfeed(settings: Settings) -> Evidence:
    probe = next(Path(settings["probe"]).rglob("*.jpg")).read_bytes()
    told = {**settings, "persistent": False, "batch": settings["probe_batch"]}
    loader = _fastfeed_loader(settings["probe_shards"], told)
    return _examine((batch["image"] for batch in loader), probe)


def torchvision_session(settings: Settings) -> DeviceSession:
    """Return the session of torchvision: workers read, the trainer's thread decodes."""
    device = cuda_device()
    photos = photos_of(settings["photos"]) * settings["repeats"]
    loader = encoded_loader(photos, settings)
    return DeviceSession(
        note=torchvision_note(settings),
        device=device,
        epoch=lambda: (pictures for pictures, _ in decoded(loader, device)),
        lead=settings["lead"],
        describe=lambda: _describe_torchvision(settings, device),
    )


def torchvision_note(settings: Settings) -> str:
    """Return versions and settings, for the row."""
    used = ", ".join(" ".join(one) for one in versions(("torch", "torchvision")).items())
    return f"{used}; num_workers={settings['workers']} read, decode_jpeg(device='cuda')"


def _describe_torchvision(settings: Settings, device: torch.device) -> Evidence:
    photos = photos_of(settings["probe"])
    told = {**settings, "persistent": False, "batch": settings["probe_batch"]}
    batches = decoded(encoded_loader(photos, told), device)
    return _examine((pictures for pictures, _ in batches), photos[0].path.read_bytes())


def _examine(batches: Iterable[torch.Tensor], probe: bytes) -> Evidence:
    rows = (row for pictures in batches for row in pictures.permute(0, 2, 3, 1).cpu().numpy())
    return examine(rows, probe)


@dataclass(frozen=True, slots=True)
class _Files(Dataset["tuple[torch.Tensor, int]"]):
    """Photos as bytes."""

    files: list[Photo]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), label


def encoded_loader(photos: list[Photo], settings: Settings) -> DataLoader[Any]:
    """Return the loader of photos as bytes."""
    return DataLoader(
        _Files(photos),
        batch_size=settings["batch"],
        shuffle=settings.get("sampler") is None,
        sampler=settings.get("sampler"),
        num_workers=settings["workers"],
        collate_fn=_joined,
        persistent_workers=settings.get("persistent", True),
        prefetch_factor=4,
        drop_last=True,
    )


def _joined(samples: Sequence[tuple[torch.Tensor, int]]) -> Encoded:
    """Join the bytes of a batch: one tensor is sent between processes, not hundreds."""
    parts = [part for part, _ in samples]
    labels = torch.tensor([label for _, label in samples])
    return torch.cat(parts), [len(part) for part in parts], labels


def decoded(
    batches: Iterable[Encoded], device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pictures [N, 3, 224, 224] and labels, decoded, cut and resized on the device.

    The decoder does not wait for work of the caller's stream that may still use the memory it is
    given, so it has a stream of its own, which is empty whenever it is called.
    """
    side = new_stream(device)
    main = torch.cuda.current_stream(device)
    for data, sizes, labels in batches:
        with torch.cuda.stream(side):
            side.synchronize()
            pictures = _decode(torch.split(data, sizes), device)
            moved = labels.to(device, non_blocking=True)
        main.wait_stream(side)
        for tensor in (pictures, moved):
            tensor.record_stream(main)
        yield pictures, moved


def _decode(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    resize = torch.ops.aten._upsample_bilinear2d_aa  # noqa: SLF001 - what torchvision's transform calls
    whole = decode_jpeg(list(parts), mode=ImageReadMode.RGB, device=device)
    torch.cuda.current_stream(device).synchronize()
    shape = (len(parts), 3, SIDE, SIDE)
    made = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    for row, picture in zip(made, whole, strict=True):
        left, top, width, height = draw_window(picture.shape[2], picture.shape[1], random)
        cut = picture[None, :, top : top + height, left : left + width].float()
        row.copy_(resize(cut, [SIDE, SIDE], False)[0].round_())
    return made
