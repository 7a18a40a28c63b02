"""Everything that a loader needs for its device, made once at its first iterator."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fastfeed.collating.fetch import has_own_fetcher
from fastfeed.decoding.compile import compile_fields, without_normalize
from fastfeed.decoding.defer import DeviceSide
from fastfeed.device.decoders.choose import MAKERS, OVERLAPS, SUPPORTS, choose
from fastfeed.device.device import open_device, pci_address
from fastfeed.device.mover import Mover
from fastfeed.device.output import Output
from fastfeed.device.pinning import Pinner
from fastfeed.device.pool import DevicePool
from fastfeed.device.repair import CpuRepair
from fastfeed.device.share import Share
from fastfeed.device.stage import Stage
from fastfeed.errors import OptionError
from fastfeed.fields import Image
from fastfeed.options import parse_size
from fastfeed.stats import DeviceFacts
from fastfeed.topology import local_rank, memlock_limit, memory_limit, pinned_budget, place_workers
from fastfeed.tuner.split import SplitTuner

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastfeed.arrival import Pool
    from fastfeed.collating.fetch import Source
    from fastfeed.device.decoders.protocol import PictureDecoder
    from fastfeed.device.device import Device
    from fastfeed.device.output import OutputKind
    from fastfeed.topology import Placement

log = logging.getLogger("fastfeed")

Decode = Literal["auto", "cpu", "gpu", "nvjpeg", "nvimagecodec", "torchvision", "dali"]
_DECODERS = ("nvjpeg", "nvimagecodec", "torchvision", "dali")
# Where the tuner begins: both sides are measured at once, and neither is far off on any machine.
_START = 0.5


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the user says of the device."""

    device: Any
    decode: Decode | float
    output: OutputKind
    transform: Callable[[Any], Any] | None
    pinned_budget: int | str | None
    workers: int

    def check(self) -> None:
        """Raise OptionError for what cannot be meant."""
        number = isinstance(self.decode, int | float) and not isinstance(self.decode, bool)
        if number and not 0 <= self.decode <= 1:  # type: ignore[operator]
            raise OptionError(
                f"decode={self.decode!r} is no share of the pictures", way_out="Write 0.0 to 1.0"
            )
        if not number and self.decode not in {"auto", "cpu", "gpu", *_DECODERS}:
            raise OptionError(
                f"decode={self.decode!r} is no way to decode",
                way_out='Write "auto", "cpu", "gpu", a share from 0.0 to 1.0, or a decoder: '
                + ", ".join(_DECODERS),
            )
        if self.output not in {"fresh", "static"}:
            raise OptionError(f'output={self.output!r} is neither "fresh" nor "static"')
        if self.transform is not None and not callable(self.transform):
            raise OptionError(f"batch_transform={self.transform!r} is not callable")
        if self.pinned_budget is not None:
            parse_size(self.pinned_budget, name="pinned_budget")
        if self.device is None:
            for name, given in (
                ("decode", self.decode != "auto"),
                ("output", self.output != "fresh"),
                ("batch_transform", self.transform is not None),
                ("pinned_budget", self.pinned_budget is not None),
            ):
                if given:
                    raise OptionError(
                        f"{name}= says what happens on the device, and there is none",
                        way_out='Add device="cuda"',
                    )


@dataclass(frozen=True, slots=True)
class _Lane:
    """A stream of the device, and the decoder that works on it."""

    device: Device
    decoder: PictureDecoder | None
    turns: threading.Lock = field(default_factory=threading.Lock)
    """Two iterators may be alive, and share the decoder."""


def _decodes_itself(source: Source) -> bool:
    """Say whether batches are made of shards with nothing of the user's between."""
    return has_own_fetcher(source) and source.dataset.transform is None


class DevicePath:
    """The device of a loader, with its decoder, its share and its output; kept over epochs."""

    def __init__(self, options: DeviceOptions, source: Source) -> None:
        self.device: Device = open_device(options.device)
        self._source = source
        self.side: DeviceSide | None = None
        self.decoder: PictureDecoder | None = None
        self.pinner: Pinner | None = None
        """Of the last iterator."""
        self.rejected: tuple[tuple[str, str], ...] = ()
        """Decoders that are not used, each with the reason."""
        fields = source.dataset.fields if _decodes_itself(source) else {}
        bare, normalizes = without_normalize(fields)
        if compile_fields(bare).pictures:
            self._choose(options.decode)
            self.side = DeviceSide(None if self.decoder is None else SUPPORTS[self.decoder.name])
        elif options.decode not in {"auto", "cpu", 0}:
            raise OptionError(
                f"decode={options.decode!r}: nothing here is for a GPU to decode",
                way_out="It decodes the Image fields of a ShardDataset that have one size, where "
                "there is no transform= and no collate_fn; leave decode= out otherwise",
            )
        self._losing = threading.Lock()
        lanes = (_Lane(self.device, self.decoder), self._second_lane())
        self._lanes = [lane for lane in lanes if lane is not None]
        start, fixed = self._start(options.decode)
        self.tuner = SplitTuner(max(1, options.workers), start, fixed=fixed)
        self.output = Output(
            self.device, normalizes, kind=options.output, transform=options.transform
        )
        asked = options.pinned_budget
        self.pinned = pinned_budget(
            limit=memory_limit(),
            rlimit_memlock=memlock_limit(),
            local_ranks=local_rank(os.environ).size,
            asked=None if asked is None else parse_size(asked, name="pinned_budget"),
        )

    def _choose(self, decode: Decode | float) -> None:
        """Find a decoder, unless all is decoded on the CPU."""
        if decode in {"cpu", 0}:
            return
        named = str(decode) if decode in _DECODERS else None
        gray = any(
            isinstance(field, Image) and field.mode == "L"
            for field in self._source.dataset.fields.values()
        )
        choice = choose(named, self.device.target.index or 0, gray=gray)
        self.decoder, self.rejected = choice.decoder, choice.rejected
        if self.decoder is None:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.rejected) or "none is here"
            if decode != "auto":
                raise OptionError(
                    f"decode={decode!r}: no decoder for {self.device.target} can be used ({why})",
                    way_out="Install nvidia-nvjpeg (the extra fastfeed[cuda13]), or decode='cpu'",
                )
            log.info("pictures are decoded on the CPU alone; of the GPU's decoders: %s", why)

    def _second_lane(self) -> _Lane | None:
        """Return a lane more, if batches can be got ready there while the decoder is busy."""
        if self.decoder is None:
            return None
        overlaps = OVERLAPS.get(self.decoder.name)
        if overlaps is None or not overlaps():
            return None
        try:
            device = open_device(self.device.target)
            return _Lane(device, MAKERS[self.decoder.name](device.target))
        except Exception as error:  # noqa: BLE001 - foreign libraries raise anything
            log.info("pictures are decoded in one lane, a second one does not start: %s", error)
            return None

    def _start(self, decode: Decode | float) -> tuple[float, bool]:
        """Return the first share, and whether it stays."""
        if self.side is None or decode in {"cpu", 0}:
            return 0.0, True
        if decode == "gpu":
            return 1.0, True
        if isinstance(decode, int | float):
            return float(decode), True
        return _START, False

    def placement(self) -> Placement | None:
        """Return which cores the workers belong on, None if the machine does not say."""
        address = pci_address(self.device)
        if address is None:
            return None
        return place_workers(address, environment=os.environ)

    def _stage(self, lane: _Lane, pinner: Pinner | None = None) -> Stage:
        """Return what moves batches; for one thread."""
        return Stage(
            lane.device,
            pinner=pinner,
            decoder=None if self.decoder is None else lane.decoder,
            repair=None if self.side is None else CpuRepair(self._source.dataset, self.side),
            turns=lane.turns,
            lost=self._lose_decoder,
        )

    def _lose_decoder(self, why: str) -> None:
        """Go on with the CPU alone."""
        with self._losing:
            lost, self.decoder = self.decoder, None
        if lost is None:  # the other lane's was before
            return
        log.warning("the GPU's decoder is given up, pictures are decoded on the CPU: %s", why)
        self.rejected = (*self.rejected, (why.partition(":")[0], why))
        self.tuner.share, self.tuner.fixed = 0.0, True

    def facts(self) -> DeviceFacts:
        """Return how the device is used now; other threads may lose the decoder meanwhile."""
        decoder, pinner = self.decoder, self.pinner
        return DeviceFacts(
            name=str(self.device.target),
            decoder=None if decoder is None else decoder.name,
            rejected=self.rejected,
            share=self.tuner.share,
            pinned_nbytes=0 if pinner is None else pinner.nbytes,
            unpinned_why=None if pinner is None else pinner.refused,
        )

    def mover(self) -> Mover:
        """Return what moves batches one by one, for a loop without workers."""
        return Mover(self._stage(self._lanes[0]), self.output, self.tuner)

    def _is_beside(self, *, shared: bool) -> bool:
        """Say whether threads of their own move batches, not the loop's."""
        # A copy from memory that is not pinned holds up whoever asks for it, as decoding does.
        refused = self.pinner is not None and self.pinner.refused is not None
        return self.decoder is not None or not shared or not self.pinned.nbytes or refused

    def pool(self, workers: Pool, *, prefetch: int, shared: bool) -> DevicePool:
        """Return the workers with a stage behind them; `shared` if their memory can be pinned."""
        beside = self._is_beside(shared=shared)
        # A worker's batches: those that wait, one that is copied, one that is being made.
        self.pinner = Pinner(
            self.device, budget=self.pinned.nbytes, batches=prefetch + 2, regions=workers.most
        )
        stages = [self._stage(lane, self.pinner) for lane in self._lanes]
        share = Share(self.tuner, lanes=len(stages))
        return DevicePool(workers, stages, self.output, share, prefetch=prefetch, beside=beside)
