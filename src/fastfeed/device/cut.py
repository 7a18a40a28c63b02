"""Decoded pictures of any size into the rows of a batch: cut, resized, turned and flipped at once.

On a GPU one Triton kernel does a whole batch, in a microsecond a picture; without Triton torch
does one picture after the other. Both are Pillow's antialiased bilinear filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastfeed.decoding.defer import CUT_FIELDS
from fastfeed.device.triton_kernels import triton_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_PLACE = {name: place for place, name in enumerate(CUT_FIELDS)}
_FROM = [_PLACE[name] for name in ("box_h", "box_w", "size_h", "size_w")]
_WAY = [_PLACE[name] for name in ("yy", "yx", "y0", "xy", "xx", "x0")]
# Pixels that one program of the kernel makes.
_BLOCK = 512


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Pictures [channels, h, w] of uint8 on a device, as a kernel finds them."""

    addresses: NDArray[np.int64]
    strides: NDArray[np.int64]
    """Of channels, lines and columns: [pictures, 3]."""
    view: Callable[[int], torch.Tensor]
    """Returns one as a tensor; for where there is no kernel."""

    def __len__(self) -> int:
        return len(self.addresses)

    @classmethod
    def of(cls, pictures: Sequence[torch.Tensor]) -> Sources:
        """Return the sources that tensors are."""
        addresses = np.array([picture.data_ptr() for picture in pictures], np.int64)
        strides = np.array([picture.stride() for picture in pictures], np.int64).reshape(-1, 3)
        return cls(addresses, strides, pictures.__getitem__)


def cut_into(
    out: torch.Tensor,
    rows: NDArray[np.int64],
    sources: Sources,
    cuts: NDArray[np.int32],
    *,
    whole: bool,
) -> None:
    """Write pictures into rows of `out` [n, h, w, channels], uint8.

    Row i of `cuts` says what is wanted of picture i, see `CUT_FIELDS`; with `whole` false the
    pictures are their boxes already. The work goes to the current stream.
    """
    if not len(rows):
        return
    kernels = triton_kernels() if out.is_cuda else None
    if kernels is None:
        for i, (row, cut) in enumerate(zip(rows.tolist(), cuts.tolist(), strict=True)):
            told = dict(zip(CUT_FIELDS, cut, strict=True))
            _cut_one(out[row], sources.view(i), told, whole=whole)
        return
    launch(kernels, out, rows, sources, cuts, whole=whole)


def launch(
    kernels: Any,
    out: torch.Tensor,
    rows: NDArray[np.int64],
    sources: Sources,
    cuts: NDArray[np.int32],
    *,
    whole: bool,
) -> None:
    """Do what `cut_into` does, by the kernel."""
    strides, addresses = sources.strides, sources.addresses
    if whole:
        corner = cuts[:, [_PLACE["box_y"], _PLACE["box_x"]]].astype(np.int64)
        addresses = addresses + (corner * strides[:, 1:]).sum(axis=1)
    table = np.empty((len(rows), kernels.COLUMNS), np.int32)
    table[:, 0] = rows
    table[:, 1:5] = cuts[:, _FROM]
    table[:, 5:8] = strides[:, [1, 2, 0]]
    table[:, 8:14] = cuts[:, _WAY]
    about, at = (torch.from_numpy(one).to(out.device) for one in (table, addresses))
    _, height, width, channels = out.shape
    kernels.cut[(-(-height * width // _BLOCK), len(rows))](
        at, about, out, height, width, channels, _BLOCK, num_warps=4
    )


def _cut_one(out: torch.Tensor, picture: torch.Tensor, cut: dict[str, int], *, whole: bool) -> None:
    """Write one picture into its row [h, w, channels]."""
    if whole:
        top, left = cut["box_y"], cut["box_x"]
        picture = picture[:, top : top + cut["box_h"], left : left + cut["box_w"]]
    size = (cut["size_h"], cut["size_w"])
    if picture.shape[1:] != size:
        # On the CPU the kernel for uint8 is the one that decoding there uses.
        exact = picture[None] if picture.device.type == "cpu" else picture[None].float()
        exact = torch.nn.functional.interpolate(exact, size=size, mode="bilinear", antialias=True)
        picture = exact[0] if exact.dtype == torch.uint8 else exact[0].round_().to(torch.uint8)
    y = torch.arange(out.shape[0], device=out.device)[:, None]
    x = torch.arange(out.shape[1], device=out.device)[None, :]
    line = cut["yy"] * y + cut["yx"] * x + cut["y0"]
    column = cut["xy"] * y + cut["xx"] * x + cut["x0"]
    inside = (line >= 0) & (line < size[0]) & (column >= 0) & (column < size[1])
    found = picture[:, line.clamp(0, size[0] - 1), column.clamp(0, size[1] - 1)]
    out.copy_((found * inside).permute(1, 2, 0))


def normalize(
    levels: torch.Tensor,
    told: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write (level / 255 - mean) / std of uint8 pictures [n, channels, h, w] into `out`.

    `told` is float32 [2, channels], mean and std, on the same device. Computed as float32 as on
    the CPU, then rounded to the type of `out`.
    """
    channels_last = levels.permute(0, 2, 3, 1).is_contiguous() and out.stride() == levels.stride()
    kernels = triton_kernels() if levels.is_cuda and channels_last else None
    if kernels is None:
        shape = (1, -1, 1, 1)
        exact = levels.to(torch.float32).div_(255.0)
        out.copy_(exact.sub_(told[0].view(shape)).div_(told[1].view(shape)))
        return
    with torch.cuda.device(out.device):  # Triton goes by the current device, as torch does not
        launch_normalize(kernels, levels, told, out)


def launch_normalize(
    kernels: Any, levels: torch.Tensor, told: torch.Tensor, out: torch.Tensor
) -> None:
    """Do what `normalize` does, by the kernel; both tensors have their channels last in memory."""
    count, block = levels.numel(), 1024
    kernels.normalize[(-(-count // block),)](
        levels, told[0], told[1], out, count, levels.shape[1], block
    )
