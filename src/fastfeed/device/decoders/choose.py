"""Chooses a GPU decoder: the first in order that imports, starts and passes the check."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from fastfeed.device.at_work import at_work
from fastfeed.device.decoders import dali, nvimagecodec, nvjpeg, torchvision
from fastfeed.device.decoders.check import Canary, Report, check_decoder
from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from fastfeed.decoding.jpeg_kind import Kind
    from fastfeed.device.decoders.check import Upsampling
    from fastfeed.device.decoders.protocol import PictureDecoder

MAKERS: Final[Mapping[str, Callable[[torch.device], PictureDecoder]]] = {
    "nvjpeg": nvjpeg.NvjpegDecoder,
    "nvimagecodec": nvimagecodec.NvimagecodecDecoder,
    "torchvision": torchvision.TorchvisionDecoder,
    "dali": dali.DaliDecoder,
}
"""In the order of preference: those with a status for each picture come first."""

SUPPORTS: Final[Mapping[str, Callable[[Kind], bool]]] = {
    "nvjpeg": nvjpeg.supports,
    "nvimagecodec": nvimagecodec.supports,
    "torchvision": torchvision.supports,
    "dali": dali.supports,
}
"""What workers ask by the name of the decoder that the trainer chose."""

OVERLAPS: Final[Mapping[str, Callable[[], bool]]] = {"nvjpeg": nvjpeg.overlaps}
"""Says whether a batch is to be got ready, and cut, while another decoder has the engines."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The decoder that is used, if any, and why those before it are not."""

    decoder: PictureDecoder | None
    rejected: tuple[tuple[str, str], ...]
    """Name and reason of each that was tried before."""
    upsampling: Upsampling = "interpolated"
    """How the decoder makes colours: as libjpeg-turbo does, or plain, which shows at edges."""


def choose(name: str | None, device_index: int, *, gray: bool = False) -> Choice:
    """Return the first decoder that passes its check on this GPU, or the one of that `name`.

    With `gray`, it must decode to one channel as well. A named one that does not pass is an
    OptionError; nothing else is raised, whatever a library does.
    """
    return choose_among(MAKERS, name, device=torch.device("cuda", device_index), gray=gray)


def choose_among(
    makers: Mapping[str, Callable[[torch.device], PictureDecoder]],
    name: str | None,
    *,
    device: torch.device,
    gray: bool,
) -> Choice:
    """Do what `choose` does, with other decoders or on another device."""
    if name is not None and name not in makers:
        raise OptionError(
            f"there is no GPU decoder {name!r}", way_out=f"Use one of {', '.join(makers)}"
        )
    rejected: list[tuple[str, str]] = []
    for one in makers if name is None else [name]:
        decoder, report = _try(makers[one], device, gray=gray)
        if decoder is not None:
            return Choice(decoder, tuple(rejected), report.upsampling)
        rejected.append((one, report.reason or "it failed"))
    if name is not None:
        raise OptionError(
            f"the GPU decoder {name!r} cannot be used: {rejected[0][1]}",
            way_out="Use another one, or leave the choice to fastfeed",
        )
    return Choice(None, tuple(rejected))


def _try(
    make: Callable[[torch.device], PictureDecoder], device: torch.device, *, gray: bool
) -> tuple[PictureDecoder | None, Report]:
    """Return the decoder if it passes, and how it did."""
    decoder: PictureDecoder | None = None
    try:
        # On a stream of its own: nothing here has to wait for what the trainer does.
        with at_work(), _own_stream(device):
            decoder = make(device)
            report = check_decoder(decoder, device, canary=Canary(device))
            if gray and report.reason is None:
                luma = check_decoder(decoder, device, gray=True, canary=Canary(device))
                if luma.reason is not None:
                    report = Report(f"as one channel: {luma.reason}")
    except Exception as error:  # noqa: BLE001  # foreign libraries raise anything
        report = Report(f"{type(error).__name__}: {error}")
    if decoder is None or report.reason is None:
        return decoder, report
    with suppress(Exception):
        decoder.close()
    return None, report


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(stream)
