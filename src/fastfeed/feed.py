"""The walk of a batch: storage -> reading -> decoding -> collating -> slots.

`Feed.fetch` is the walk; everything else here serves it. A feed lives in one worker process (or in
the trainer's, without workers), is built after the fork, and knows nothing of processes: the
threads it is given decode the samples of one batch side by side.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.utils.data import default_collate

from fastfeed.collating.collate import HeapWriter
from fastfeed.collating.partly import partly
from fastfeed.collating.ragged import Ragged, gather
from fastfeed.decoding.compile import compile_fields, without_normalize
from fastfeed.errors import EmptyBatchError, FastfeedError, SampleError, ShardError, located
from fastfeed.fields import Bytes
from fastfeed.options import SUBSTITUTE_TRIES
from fastfeed.plan import substitute
from fastfeed.policy import BadSample, FeedReport
from fastfeed.reading.read import Records, read

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fastfeed.collating.collate import Writer
    from fastfeed.collating.partly import PartlyDecoded
    from fastfeed.decoding.defer import Deferred, DeviceSide
    from fastfeed.fields import Field
    from fastfeed.policy import OnError
    from fastfeed.readahead import ReadAhead
    from fastfeed.reading.shards import ShardSet
    from fastfeed.transform import Transform

    Values = dict[str, Any]


_PAGE = 4096


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Left:
    """What of a batch is left to the device, by place in the batch."""

    pictures: Mapping[int, tuple[dict[str, Deferred], Values]]
    wanted: NDArray[np.int64]
    epoch: int

    def closed_up(self, good: NDArray[np.bool_]) -> Left:
        """Return the same without the samples that are not good, none of which is left."""
        places = np.cumsum(good) - 1
        moved = {int(places[place]): one for place, one in self.pictures.items()}
        return Left(moved, self.wanted[good], self.epoch)

    def partly(
        self, name: str, rows: NDArray[np.uint8], writer: Writer, *, count: int
    ) -> PartlyDecoded:
        """Return one output of a batch of `count` samples."""
        pictures = [
            (place, int(self.wanted[place]), found[name])
            for place, (found, _) in self.pictures.items()
        ]
        return partly(rows, pictures, writer, count=count, epoch=self.epoch)


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What a data set asks of its feed."""

    fields: Mapping[str, Field]
    transform: Transform | None
    seed: int
    on_error: OnError
    verify: bool
    device: DeviceSide | None = None
    """What the trainer's device does, if batches go there."""


class Feed:
    """Turns sample indices into a batch; one `fetch` at a time."""

    def __init__(
        self,
        shards: ShardSet,
        options: FeedOptions,
        *,
        threads: int = 1,
        ahead: ReadAhead | None = None,
    ) -> None:
        self._shards = shards
        self._options = options
        fields = options.fields
        if options.device is not None and options.transform is None:
            fields, _ = without_normalize(fields)
        self._decoder = compile_fields(fields)
        self._raw = {n: f for n, f in options.fields.items() if isinstance(f, Bytes)}
        self._only_raw = len(self._raw) == len(options.fields) and options.transform is None
        self._pictures = frozenset(self._decoder.pictures if options.device is not None else ())
        self._columns = {name: i for i, name in enumerate(self._decoder.sources)}
        self._pool = ThreadPoolExecutor(threads, "fastfeed-decode") if threads > 1 else None
        self._threads = threads
        self._scratch = np.empty(0, dtype=np.uint8)
        self._report = FeedReport()
        self._ahead = ahead

    def fetch(
        self, indices: Sequence[int], epoch: int, writer: Writer, *, share: float = 0.0
    ) -> Any:
        """Return the batch of these samples; the tensors lie in memory that `writer` lent.

        The pictures of the last `share` of it are left to the GPU, where that can be.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        with self._timed("read"):
            if self._ahead is not None:
                self._ahead.follow(wanted, epoch)
            # Bytes that nobody decodes are read straight into the batch's memory.
            allocate = (lambda n: writer.empty((n,), np.uint8)) if self._only_raw else self._borrow
            records = self._read(wanted, allocate)
        if self._only_raw and isinstance(records, Records) and bool((records.sizes >= 0).all()):
            return {name: self._view(records, name) for name in self._raw}
        if self._options.transform is not None:
            with self._timed("decode"):
                return default_collate(_kept(self._decode_all(records, wanted, epoch, {}, {})))
        rows = self._rows(len(wanted), writer, but=self._pictures)
        with self._timed("defer"):
            left = self._defer(records, wanted, epoch, rows, share=share)
        rows |= self._rows(len(wanted) - len(left), writer, only=self._pictures)
        with self._timed("decode"):
            values = self._decode_all(records, wanted, epoch, rows, left)
        with self._timed("collate"):
            return self._collate(rows, values, writer, Left(left, wanted, epoch))

    def samples(self, indices: Sequence[int], epoch: int) -> list[Values]:
        """Return samples one by one, as tensors of their own memory, in the order asked for."""
        wanted = np.asarray(indices, dtype=np.int64)
        records = self._read(wanted, lambda n: np.empty(n, dtype=np.uint8))
        samples = []
        for i, index in enumerate(wanted):
            rows = self._rows_of_one()
            values = self._usable(records, i, int(index), epoch, rows)
            if values is not None:
                transformed = self._options.transform is not None
                samples.append(values if transformed else self._as_sample(rows, values))
        return samples

    def take_report(self) -> FeedReport:
        """Return what happened since the last call: seconds by step, and bad samples."""
        report, self._report = self._report, FeedReport()
        return report

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    # Reading

    def _read(
        self, wanted: NDArray[np.int64], allocate: Any
    ) -> Records | list[Records | ShardError]:
        """Read a batch in few large requests; where that fails, tell good samples from bad."""

        def read_some(some: NDArray[np.int64], memory: Any) -> Records:
            return read(
                self._shards,
                some,
                fields=self._decoder.sources,
                allocate=memory,
                verify=self._options.verify,
            )

        try:
            return read_some(wanted, allocate)
        except ShardError:
            if self._options.on_error == "raise":
                raise
        found: list[Records | ShardError] = []
        for i in range(len(wanted)):
            try:
                found.append(read_some(wanted[i : i + 1], lambda n: np.empty(n, dtype=np.uint8)))
            except ShardError as error:
                found.append(error)
        return found

    def _borrow(self, nbytes: int) -> NDArray[np.uint8]:
        """Return scratch memory that is valid until the next batch."""
        if len(self._scratch) < nbytes:
            # At the start of a page: reads into memory just above it can be many times slower.
            memory = np.empty(nbytes + nbytes // 4 + _PAGE, dtype=np.uint8)
            self._scratch = memory[-memory.ctypes.data % _PAGE :]
        return self._scratch[:nbytes]

    # Decoding

    def _defer(
        self,
        records: Records | list[Records | ShardError],
        wanted: NDArray[np.int64],
        epoch: int,
        rows: Mapping[str, NDArray[Any]],
        *,
        share: float,
    ) -> dict[int, tuple[dict[str, Deferred], Values]]:
        """Return, by place in the batch, what is left to the device: of the last `share` of it.

        All else of those samples is decoded here; one that fails is left out, and so comes to the
        policy for bad samples where all of it is decoded.
        """
        side = self._options.device
        first = len(wanted) - round(len(wanted) * share)
        if side is None or not self._pictures or first == len(wanted):
            return {}

        def defer(i: int) -> tuple[dict[str, Deferred], Values] | None:
            try:
                sources, draw = self._sources(records, i, int(wanted[i]), epoch)
                pictures = self._decoder.defer(sources, draw=draw, side=side)
                if pictures is None:
                    return None
                own = {name: row[i, ...] for name, row in rows.items()}
                values = self._decoder.decode(sources, draw=draw, rows=own, left=pictures)
            except FastfeedError:
                return None
            return pictures, values

        places = range(first, len(wanted))
        found = zip(places, self._map(defer, places), strict=True)
        left = {place: one for place, one in found if one is not None}
        self._report.deferred += len(left)
        self._report.refused += len(places) - len(left)
        return left

    def _decode_all(
        self,
        records: Records | list[Records | ShardError],
        wanted: NDArray[np.int64],
        epoch: int,
        rows: Mapping[str, NDArray[Any]],
        left: Mapping[int, tuple[dict[str, Deferred], Values]],
    ) -> list[Values | None]:
        """Decode every sample into its row; None stands for one that was skipped."""
        places = [i for i in range(len(wanted)) if i not in left]

        def decode(turn: int) -> Values | None:
            i = places[turn]
            own = {
                name: row[turn if name in self._pictures else i, ...] for name, row in rows.items()
            }
            return self._usable(records, i, int(wanted[i]), epoch, own or self._rows_of_one())

        values: list[Values | None] = [None] * len(wanted)
        for place, (_, value) in left.items():
            values[place] = value
        for place, decoded in zip(places, self._map(decode, range(len(places))), strict=True):
            values[place] = decoded
        return values

    def _map(self, function: Callable[[int], _T], places: Iterable[int]) -> Iterable[_T]:
        return map(function, places) if self._pool is None else self._pool.map(function, places)

    def _usable(
        self,
        records: Records | list[Records | ShardError],
        i: int,
        index: int,
        epoch: int,
        rows: Mapping[str, NDArray[Any]],
    ) -> Values | None:
        """Decode one sample, or do what the policy says if it is bad."""
        try:
            return self._decode(records, i, index, epoch, rows)
        except (SampleError, ShardError) as error:
            if self._options.on_error == "raise":
                raise
            self._report.bad.append(BadSample.of(index, error))
            if self._options.on_error == "skip":
                self._report.skipped += 1
                return None
            last: FastfeedError = error
        for attempt in range(SUBSTITUTE_TRIES):
            other = substitute(
                index,
                count=len(self._shards),
                seed=self._options.seed,
                epoch=epoch,
                attempt=attempt,
            )
            try:
                spare = self._read(
                    np.array([other], dtype=np.int64), lambda n: np.empty(n, dtype=np.uint8)
                )
                return self._decode(spare, 0, other, epoch, rows)
            except (SampleError, ShardError) as error:
                self._report.bad.append(BadSample.of(other, error))
                last = error
        raise SampleError(
            f"sample {index} is bad, and so were {SUBSTITUTE_TRIES} substitutes",
            way_out="Run `fastfeed-shard verify --decode` on the data set",
        ) from last

    def _decode(
        self,
        records: Records | list[Records | ShardError],
        i: int,
        index: int,
        epoch: int,
        rows: Mapping[str, NDArray[Any]],
    ) -> Values:
        """Decode one sample: fixed outputs into `rows`, the others as values; then transform."""
        sources, draw = self._sources(records, i, index, epoch)
        try:
            values = self._decoder.decode(sources, draw=draw, rows=rows)
        except FastfeedError as error:
            shard, row = self._shards.locate(np.array([index], dtype=np.int64))
            place = int(shard[0])
            with located(shard=self._shards.name(place), key=self._shards.key(place, int(row[0]))):
                raise error from error.__cause__
        if self._options.transform is None:
            return values
        return self._options.transform(self._as_sample(rows, values), draw)

    def _sources(
        self, records: Records | list[Records | ShardError], i: int, index: int, epoch: int
    ) -> tuple[dict[str, memoryview | None], tuple[int, int, int]]:
        """Return the bytes of a sample's fields, and what its random numbers are drawn from."""
        if isinstance(records, list):
            found, i = records[i], 0
            if isinstance(found, ShardError):
                raise found
            records = found
        sources = {name: records.data(i, column) for name, column in self._columns.items()}
        return sources, (self._options.seed, epoch, index)

    # Collating

    def _rows(
        self,
        count: int,
        writer: Writer,
        *,
        only: Collection[str] | None = None,
        but: Collection[str] = (),
    ) -> dict[str, NDArray[Any]]:
        """Return the batch memory of outputs whose shape is known beforehand."""
        return {
            name: writer.empty((count, *row.shape), row.dtype)
            for name, row in self._decoder.layout.items()
            if name not in but and (only is None or name in only)
        }

    def _rows_of_one(self) -> dict[str, NDArray[Any]]:
        return {name: row[0, ...] for name, row in self._rows(1, HeapWriter()).items()}

    def _as_sample(self, rows: Mapping[str, NDArray[Any]], values: Values) -> Values:
        """Return one sample as the user sees it: tensors, pictures as [channels, height, width]."""
        sample = {name: self._tensor(name, row) for name, row in rows.items()} | values
        return {name: self._value(name, sample[name]) for name in self._options.fields}

    def _collate(
        self,
        rows: Mapping[str, NDArray[Any]],
        values: list[Values | None],
        writer: Writer,
        left: Left,
    ) -> Any:
        kept = _kept(values)
        if len(kept) < len(values):  # close the gaps that skipped samples left
            good = np.array([v is not None for v in values])
            here = good[[i for i in range(len(values)) if i not in left.pictures]]
            rows = {n: row[here if n in self._pictures else good] for n, row in rows.items()}
            left = left.closed_up(good)
        batch: Values = {}
        for name in self._options.fields:
            if left.pictures and name in self._pictures:
                batch[name] = left.partly(name, rows[name], writer, count=len(kept))
            elif name in rows:
                batch[name] = self._tensor(name, rows[name])
            elif name in self._raw:
                batch[name] = gather([v[name] for v in kept], writer)
            else:
                batch[name] = [self._value(name, v[name]) for v in kept]
        return batch

    def _tensor(self, name: str, memory: NDArray[Any]) -> torch.Tensor:
        """Return a fixed output as a tensor; pictures get their channel axis in torch's place."""
        if self._decoder.layout[name].channels_last:
            return self._picture(name, memory)
        return torch.from_numpy(memory)

    def _picture(self, name: str, memory: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(memory)
        if self._decoder.is_bfloat16(name):
            tensor = tensor.view(torch.bfloat16)
        return tensor.movedim(-1, -3)

    def _value(self, name: str, value: Any) -> Any:
        """Return a variable output as the user sees it."""
        if not isinstance(value, np.ndarray):
            return value
        if self._decoder.channels_last(name):
            return self._picture(name, value)
        try:
            # torch has no foreign byte order.
            return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
        except TypeError:  # dtypes that torch does not have stay arrays
            return value

    def _view(self, records: Records, name: str) -> Ragged:
        """Return a raw field as views of the buffer it was read into."""
        sizes, starts = records.sizes, records.starts
        columns = [self._columns[source] for source in self._raw[name].names]
        column = columns[0]
        return Ragged(
            torch.from_numpy(records.buffer),
            torch.from_numpy(starts[:, column].copy()),
            torch.from_numpy(sizes[:, column].copy()),
        )

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self._report.steps_s[step] = self._report.steps_s.get(step, 0.0) + seconds


def _kept(values: list[Values | None]) -> list[Values]:
    """Return the samples that were not skipped."""
    kept = [v for v in values if v is not None]
    if not kept:
        raise EmptyBatchError(f"all {len(values)} samples of the batch were skipped")
    return kept
