"""The walk of a batch: storage -> staging -> reading -> decoding -> collating -> slots.

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
from torch.utils.data import default_collate

from fastfeed.collating.assemble import Assembly, Left, kept_of
from fastfeed.decoding.compile import compile_fields, without_normalize
from fastfeed.decoding.kept import Keeper
from fastfeed.errors import FastfeedError, IndexDamagedError, SampleError, ShardError, located
from fastfeed.fields import Bytes
from fastfeed.options import SUBSTITUTE_TRIES
from fastfeed.plan import substitute
from fastfeed.policy import BadSample, FeedReport
from fastfeed.reading.read import Records, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fastfeed.collating.collate import Writer
    from fastfeed.collating.ragged import Ragged
    from fastfeed.decoding.defer import Deferred, DeviceSide
    from fastfeed.decoding.kept_file import KeptFile
    from fastfeed.fields import Field
    from fastfeed.policy import OnError
    from fastfeed.readahead import ReadAhead
    from fastfeed.reading.shards import ShardSet
    from fastfeed.transform import Transform

    Values = dict[str, Any]


_PAGE = 4096


_T = TypeVar("_T")


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
    decoded: KeptFile | None = None
    """Where decoded samples are kept, if they are; what the device decodes is not."""


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
        self._keeper = None if options.decoded is None else Keeper(options.decoded)
        self._decoder = compile_fields(fields, held=shards.fields, keeper=self._keeper)
        self._raw = {n: f for n, f in options.fields.items() if isinstance(f, Bytes)}
        self._only_raw = len(self._raw) == len(options.fields) and options.transform is None
        self._pictures = frozenset(self._decoder.pictures if options.device is not None else ())
        self._assembly = Assembly(self._decoder, options.fields, self._pictures)
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
            if self._ahead is not None:
                self._ahead.arrived()
        if self._only_raw and isinstance(records, Records) and bool((records.sizes >= 0).all()):
            return {name: self._view(records, name) for name in self._raw}
        if self._options.transform is not None:
            with self._timed("decode"):
                return default_collate(kept_of(self._decode_all(records, wanted, epoch, {}, {})))
        rows = self._assembly.rows(len(wanted), writer, but=self._pictures)
        left: dict[int, tuple[dict[str, Deferred], Values]] = {}
        if share > 0:
            with self._timed("defer"):
                left = self._defer(records, wanted, epoch, rows, share=share)
        rows |= self._assembly.rows(len(wanted) - len(left), writer, only=self._pictures)
        with self._timed("decode"):
            values = self._decode_all(records, wanted, epoch, rows, left)
        with self._timed("collate"):
            return self._assembly.batch(rows, values, writer, Left(left, wanted, epoch))

    def samples(self, indices: Sequence[int], epoch: int) -> list[Values]:
        """Return samples one by one, as tensors of their own memory, in the order asked for."""
        wanted = np.asarray(indices, dtype=np.int64)
        records = self._read(wanted, lambda n: np.empty(n, dtype=np.uint8))
        samples = []
        for i, index in enumerate(wanted):
            rows = self._assembly.rows_of_one()
            values = self._usable(records, i, int(index), epoch, rows)
            if values is not None:
                transformed = self._options.transform is not None
                samples.append(values if transformed else self._assembly.sample(rows, values))
        return samples

    def restart(self, *, told: int | None) -> None:  # noqa: ARG002 - each job says its epoch
        """Begin an epoch, which may have the number of the one before."""
        if self._ahead is not None:
            self._ahead.restart()

    def take_report(self) -> FeedReport:
        """Return what happened since the last call: seconds by step, and bad samples."""
        report, self._report = self._report, FeedReport()
        if self._keeper is not None:
            report.decoded = self._keeper.take_facts()
        return report

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._ahead is not None:
            self._ahead.close()

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
        except IndexDamagedError:
            raise
        except ShardError:
            if self._options.on_error == "raise":
                raise
        found: list[Records | ShardError] = []
        for i in range(len(wanted)):
            try:
                found.append(read_some(wanted[i : i + 1], lambda n: np.empty(n, dtype=np.uint8)))
            except IndexDamagedError:
                raise
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
            return self._usable(
                records, i, int(wanted[i]), epoch, own or self._assembly.rows_of_one()
            )

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
            except IndexDamagedError:
                raise
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
            with located(shard=self._shards.shown(place), key=self._shards.key(place, int(row[0]))):
                raise error from error.__cause__
        if self._options.transform is None:
            return values
        return self._options.transform(self._assembly.sample(rows, values), draw)

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

    def _view(self, records: Records, name: str) -> Ragged:
        column = self._columns[self._raw[name].names[0]]
        starts, sizes = records.starts[:, column], records.sizes[:, column]
        return self._assembly.view(records.buffer, starts, sizes)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self._report.steps_s[step] = self._report.steps_s.get(step, 0.0) + seconds
