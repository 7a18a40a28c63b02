"""One batch from the host to the device: copies, decoding of what was left, and repair.

`Stage.move` is the walk of a batch on this side of the slots. It is synchronous and belongs to one
thread; `pool.py` and the loop without workers call it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fastfeed.collating.partly import PartlyDecoded
from fastfeed.collating.ragged import Ragged
from fastfeed.decoding.defer import CUT_FIELDS
from fastfeed.device.cut import Sources, cut_into
from fastfeed.device.decoders.places import Planes
from fastfeed.device.decoders.protocol import Decoded, Encoded
from fastfeed.device.transfer import Transfer, map_leaves, moves_itself
from fastfeed.errors import EmptyBatchError
from fastfeed.policy import FeedReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from fastfeed.device.decoders.protocol import PictureDecoder
    from fastfeed.device.device import Device, Mark
    from fastfeed.device.pinning import Pinner

log = logging.getLogger("fastfeed")

_SHAPE = [CUT_FIELDS.index(name) for name in ("height", "width")]
_BOX = [CUT_FIELDS.index(name) for name in ("box_x", "box_y", "box_w", "box_h")]
_CHANNELS = CUT_FIELDS.index("channels")
# Memory that pictures of a batch may take on the device between decoder and cut; beyond it they are
# decoded in turns.
_MOST_DECODED = 1 << 30


class Repair(Protocol):
    """Makes samples again on the CPU that the device's decoder failed at."""

    def make(self, sample: int, epoch: int) -> Mapping[str, Any] | None:
        """Return a batch of this one sample, None if it is left out; may raise what is wrong."""
        ...

    def take_report(self) -> FeedReport:
        """Return what was met since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Moved:
    """A batch on the device."""

    batch: Any
    sent: list[torch.Tensor]
    """All that lies on the device."""
    mark: Mark
    """When it is complete."""
    seconds: float
    """What the host spent, without waiting while another lane's batch was decoded."""
    held_s: float
    """The part of it in which no other batch could be decoded."""
    report: FeedReport
    """Bad samples, and what the decoder failed at."""


class Stage:
    """Moves batches to one device, in the order of its calls; others may work beside it."""

    def __init__(
        self,
        device: Device,
        *,
        pinner: Pinner | None = None,
        decoder: PictureDecoder | None = None,
        repair: Repair | None = None,
        turns: AbstractContextManager[object] | None = None,
        lost: Callable[[str], None] = log.warning,
    ) -> None:
        """`turns` is a lock of the decoder, which other stages may have too.

        `lost` is told why the decoder is given up.
        """
        self.device = device
        self.pinner = pinner
        self._decoder = decoder
        self._turns = threading.Lock() if turns is None else turns
        self._repair = repair
        self._lost = lost
        self._waited_s = self._held_s = 0.0

    def move(self, batch: Any) -> tuple[Moved, list[Any]]:
        """Give the device all its work for a batch; DeviceError if it fails.

        Beside it comes what the copies read of the host: to be kept until the mark. Bad pictures
        come to the data set's policy, which may raise what is wrong with them.
        """
        started = time.perf_counter()
        self._waited_s = self._held_s = 0.0
        with self.device.work():
            transfer = Transfer(self.device, self.pinner)
            failed: dict[int, tuple[int, int]] = {}
            held: list[Any] = []  # each by itself: a container may be changed in place

            def change(leaf: Any) -> Any:
                held.append(leaf)
                if isinstance(leaf, torch.Tensor):
                    return transfer.send(leaf)
                if isinstance(leaf, PartlyDecoded):
                    rows, bad = self._finish(leaf, transfer)
                    failed.update(bad)
                    return rows
                return _other(leaf, transfer)

            moved = map_leaves(batch, change)
            report = self._mend(moved, failed, transfer) if failed else FeedReport()
            mark = self.device.mark()
        seconds = time.perf_counter() - started - self._waited_s
        report.steps_s["device"] = seconds
        return Moved(moved, transfer.sent, mark, seconds, self._held_s, report), held

    def take_report(self) -> FeedReport:
        """Return what the repair of a batch met of which nothing was left."""
        return FeedReport() if self._repair is None else self._repair.take_report()

    def _finish(
        self, pictures: PartlyDecoded, transfer: Transfer
    ) -> tuple[torch.Tensor, dict[int, tuple[int, int]]]:
        """Return the pictures of a batch [n, channels, h, w], and those the decoder failed at."""
        _, height, width, channels = pictures.rows.shape
        shape = (pictures.count, height, width, channels)
        rows = torch.empty(shape, dtype=torch.uint8, device=self.device.target)
        self._place_decoded(rows, pictures, transfer)
        left, is_raw = pictures.left.numpy(), pictures.is_raw.numpy()
        self._cut_raw(rows, pictures, np.flatnonzero(is_raw), transfer)
        bad = self._decode(rows, pictures, np.flatnonzero(~is_raw), transfer)
        view = rows.movedim(-1, -3)
        transfer.sent.append(view)
        samples = pictures.samples.numpy()
        return view, {int(left[i]): (int(samples[i]), pictures.epoch) for i in bad}

    @staticmethod
    def _place_decoded(rows: torch.Tensor, pictures: PartlyDecoded, transfer: Transfer) -> None:
        """Copy what the workers decoded; nearly all of it is the first part of the batch."""
        places = pictures.decoded.numpy()
        first = int((places == np.arange(len(places))).sum())
        transfer.fill(rows[:first], pictures.rows[:first])
        if first < len(places):
            others = transfer.send(pictures.rows[first:])
            rows[transfer.send(pictures.decoded[first:])] = others

    def _cut_raw(
        self,
        rows: torch.Tensor,
        pictures: PartlyDecoded,
        chosen: NDArray[np.int64],
        transfer: Transfer,
    ) -> None:
        """Send pixels as they are stored, and cut them on the device."""
        if not len(chosen):
            return
        memory = transfer.send(pictures.encoded.data)
        cuts = pictures.cuts.numpy()[chosen]
        starts = pictures.encoded.starts.numpy()[chosen]
        cut_into(rows, pictures.left.numpy()[chosen], _raw(memory, starts, cuts), cuts, whole=True)

    def _decode(
        self,
        rows: torch.Tensor,
        pictures: PartlyDecoded,
        chosen: NDArray[np.int64],
        transfer: Transfer,
    ) -> list[int]:
        """Decode JPEGs on the device; returns which of `left` failed."""
        cuts = pictures.cuts.numpy()
        if not len(chosen):
            return []
        if self._decoder is None:
            return chosen.tolist()  # type: ignore[no-any-return]
        encoded = Encoded(
            # A decoder copies them as it likes, and knows nothing of pieces.
            transfer.in_one_piece(pictures.encoded.data),
            pictures.encoded.starts.numpy()[chosen],
            pictures.encoded.sizes.numpy()[chosen],
            cuts[chosen][:, _SHAPE],
            cuts[chosen][:, _BOX],
            gray=rows.shape[3] == 1,
        )
        failed: list[int] = []
        for place, part in encoded.parts(_MOST_DECODED):
            some = chosen[place]
            with self._turns:  # until the next call the decoder's memory holds these pictures
                decoded = self._try(part)
                if decoded is None:
                    failed += some.tolist()
                    continue
                self._waited_s += decoded.waited_s
                self._held_s += decoded.held_s
                good, sources = _good_ones(decoded)
                places = pictures.left.numpy()[some[good]]
                cut_into(rows, places, sources, cuts[some[good]], whole=decoded.whole)
            failed += np.delete(some, good).tolist()
        return failed

    def _try(self, encoded: Encoded) -> Decoded | None:
        """Decode, and give the decoder up for good if that raises: the CPU does it from now on."""
        if self._decoder is None:
            return None
        try:
            return self._decoder.decode(encoded)
        except Exception as error:  # noqa: BLE001 - foreign libraries raise anything
            self._lost(f"{self._decoder.name}: {str(error)[:300]}")
            self._decoder = None
            return None

    def _mend(
        self, batch: dict[str, Any], failed: Mapping[int, tuple[int, int]], transfer: Transfer
    ) -> FeedReport:
        """Replace samples in place by what the CPU makes of them.

        EmptyBatchError if none is left. Only a data set over shards has pictures that can fail
        here, so the batch is a dict.
        """
        lost: list[int] = []
        for place, (sample, epoch) in sorted(failed.items()):
            spare = None if self._repair is None else self._repair.make(sample, epoch)
            if spare is None:
                lost.append(place)
                continue
            for name, value in batch.items():
                batch[name] = _with_one(value, place, spare[name], transfer)
        if lost:
            if len(lost) == max(len(value) for value in batch.values()):
                raise EmptyBatchError(f"all {len(lost)} samples of the batch were skipped")
            for name, value in batch.items():
                batch[name] = _without(value, lost)
            transfer.sent += [one for one in batch.values() if isinstance(one, torch.Tensor)]
        report = self.take_report()
        report.failed = len(failed)
        return report


def _good_ones(decoded: Decoded) -> tuple[NDArray[np.int64], Sources]:
    """Return which pictures were decoded, and where they are."""
    pictures = decoded.pictures
    if isinstance(pictures, Planes):
        return np.flatnonzero(pictures.good), pictures.sources()
    good = [i for i, picture in enumerate(pictures) if picture is not None]
    return np.array(good, np.int64), Sources.of([one for one in pictures if one is not None])


def _raw(memory: torch.Tensor, starts: NDArray[np.int64], cuts: NDArray[np.int32]) -> Sources:
    """Return pictures whose pixels lie in memory as files have them, [height, width, channels]."""
    heights, widths, channels = cuts[:, [*_SHAPE, _CHANNELS]].astype(np.int64).T
    strides = np.stack([np.ones_like(widths), widths * channels, channels], axis=1)

    def view(i: int) -> torch.Tensor:
        shape = (int(channels[i]), int(heights[i]), int(widths[i]))
        start = memory.storage_offset() + int(starts[i])
        return memory.as_strided(shape, strides[i].tolist(), start)

    return Sources(memory.data_ptr() + starts, strides, view)


def _other(leaf: Any, transfer: Transfer) -> Any:
    """Return what is no tensor: by its own `to`, or as it is, but not in the slot."""
    if isinstance(leaf, Ragged):
        data = transfer.send(leaf.data)
        return Ragged(data, leaf.starts.clone(), leaf.sizes.clone())
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return transfer.send_object(leaf) if moves_itself(leaf) else leaf


def _with_one(value: Any, place: int, spare: Any, transfer: Transfer) -> Any:
    """Return a field's values with the one of `spare` in a place."""
    if isinstance(value, torch.Tensor):
        value[place] = transfer.send(spare)[0]
    elif isinstance(value, Ragged):
        data = torch.cat([value.data, transfer.send(spare.data)])
        starts, sizes = value.starts.clone(), value.sizes.clone()
        starts[place], sizes[place] = len(value.data) + spare.starts[0], spare.sizes[0]
        transfer.sent.append(data)
        return Ragged(data, starts, sizes)
    else:
        one = spare[0]
        value[place] = transfer.send(one) if isinstance(one, torch.Tensor) else one
    return value


def _without(value: Any, places: list[int]) -> Any:
    """Return a field's values without some places."""
    kept = np.delete(np.arange(len(value)), places)
    if isinstance(value, torch.Tensor):
        return value[torch.from_numpy(kept).to(value.device)]
    if isinstance(value, Ragged):
        here = torch.from_numpy(kept)
        return Ragged(value.data, value.starts[here], value.sizes[here])
    return [value[i] for i in kept]
