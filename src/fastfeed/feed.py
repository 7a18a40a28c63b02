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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from fastfeed.collating.collate import HeapWriter
from fastfeed.collating.ragged import Ragged
from fastfeed.decoding.compile import compile_fields
from fastfeed.errors import EmptyBatchError, FastfeedError, SampleError, ShardError, located
from fastfeed.fields import Bytes
from fastfeed.options import SUBSTITUTE_TRIES
from fastfeed.plan import substitute
from fastfeed.policy import BadSample, FeedReport
from fastfeed.reading.read import Records, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fastfeed.collating.collate import Writer
    from fastfeed.fields import Field
    from fastfeed.policy import OnError
    from fastfeed.readahead import ReadAhead
    from fastfeed.reading.shards import ShardSet
    from fastfeed.transform import Transform

    Values = dict[str, Any]


_PAGE = 4096


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What a data set asks of its feed."""

    fields: Mapping[str, Field]
    transform: Transform | None
    seed: int
    on_error: OnError
    verify: bool


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
        self._decoder = compile_fields(options.fields)
        self._raw = {n: f for n, f in options.fields.items() if isinstance(f, Bytes)}
        self._only_raw = len(self._raw) == len(options.fields) and options.transform is None
        self._columns = {name: i for i, name in enumerate(self._decoder.sources)}
        self._pool = ThreadPoolExecutor(threads, "fastfeed-decode") if threads > 1 else None
        self._threads = threads
        self._scratch = np.empty(0, dtype=np.uint8)
        self._report = FeedReport()
        self._ahead = ahead

    def fetch(self, indices: Sequence[int], epoch: int, writer: Writer) -> Any:
        """Return the batch of these samples; the tensors lie in memory that `writer` lent."""
        wanted = np.asarray(indices, dtype=np.int64)
        with self._timed("read"):
            if self._ahead is not None:
                self._ahead.follow(wanted, epoch)
            # Bytes that nobody decodes are read straight into the batch's memory.
            allocate = (lambda n: writer.empty((n,), np.uint8)) if self._only_raw else self._borrow
            records = self._read(wanted, allocate)
        if self._only_raw and isinstance(records, Records) and bool((records.sizes >= 0).all()):
            return {name: self._view(records, name) for name in self._raw}
        rows = {} if self._options.transform else self._rows(len(wanted), writer)
        with self._timed("decode"):
            values = self._decode_all(records, wanted, epoch, rows)
        with self._timed("collate"):
            return self._collate(rows, values, writer)

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

    def _decode_all(
        self,
        records: Records | list[Records | ShardError],
        wanted: NDArray[np.int64],
        epoch: int,
        rows: Mapping[str, NDArray[Any]],
    ) -> list[Values | None]:
        """Decode every sample into its row; None stands for one that was skipped."""

        def decode(i: int) -> Values | None:
            own = {name: row[i, ...] for name, row in rows.items()} or self._rows_of_one()
            return self._usable(records, i, int(wanted[i]), epoch, own)

        if self._pool is None:
            return [decode(i) for i in range(len(wanted))]
        return list(self._pool.map(decode, range(len(wanted))))

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
        if isinstance(records, list):
            found, i = records[i], 0
            if isinstance(found, ShardError):
                raise found
            records = found
        sources = {name: records.data(i, column) for name, column in self._columns.items()}
        draw = (self._options.seed, epoch, index)
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

    # Collating

    def _rows(self, count: int, writer: Writer) -> dict[str, NDArray[Any]]:
        """Return the batch memory of every output whose shape is known beforehand."""
        return {
            name: writer.empty((count, *row.shape), row.dtype)
            for name, row in self._decoder.layout.items()
        }

    def _rows_of_one(self) -> dict[str, NDArray[Any]]:
        return {name: row[0, ...] for name, row in self._rows(1, HeapWriter()).items()}

    def _as_sample(self, rows: Mapping[str, NDArray[Any]], values: Values) -> Values:
        """Return one sample as the user sees it: tensors, pictures as [channels, height, width]."""
        sample = {name: self._tensor(name, row) for name, row in rows.items()} | values
        return {name: self._value(name, sample[name]) for name in self._options.fields}

    def _collate(
        self, rows: Mapping[str, NDArray[Any]], values: list[Values | None], writer: Writer
    ) -> Any:
        kept = [v for v in values if v is not None]
        if not kept:
            raise EmptyBatchError(f"all {len(values)} samples of the batch were skipped")
        if self._options.transform is not None:
            return default_collate(kept)
        if len(kept) < len(values):  # close the gaps that skipped samples left
            good = np.array([v is not None for v in values])
            rows = {name: row[good] for name, row in rows.items()}
        batch: Values = {}
        for name in self._options.fields:
            if name in rows:
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


def gather(pieces: Sequence[Any], writer: Writer) -> Ragged:
    """Copy byte strings of any lengths into one buffer that goes to the trainer."""
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    starts = np.zeros(len(pieces), dtype=np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    data = writer.empty((int(sizes.sum()),), np.uint8)
    for start, size, piece in zip(starts, sizes, pieces, strict=True):
        data[start : start + size] = np.frombuffer(piece, dtype=np.uint8)
    return Ragged(torch.from_numpy(data), torch.from_numpy(starts), torch.from_numpy(sizes))
