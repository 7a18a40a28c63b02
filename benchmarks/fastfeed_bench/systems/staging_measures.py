"""staging: what is measured of any library's way to read shards behind a link."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fastfeed.staging.transfer import PIECE
from fastfeed_bench.consume import digest
from fastfeed_bench.link import Link, in_series
from fastfeed_bench.processes import anonymous_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastfeed_bench.model import Evidence, Session, Settings

_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class Reader:
    """One library's way to read the shards of a case, in shuffled batches."""

    note: str
    settings: Settings
    open: Callable[[str, Path | None], Iterable[Any]]
    """Takes a folder or URL, and the folder for copies; each iteration is an epoch."""
    samples: Callable[[Any], list[bytes]]
    """The samples of a batch."""
    consume: Callable[[Any], int]
    """Reads every byte of a batch and returns its samples."""

    def epoch(self, batches: Iterable[Any]) -> None:
        """Consume an epoch; RuntimeError if it is not whole."""
        count = sum(map(self.consume, batches))
        if count != self.settings["samples"]:
            raise RuntimeError(f"an epoch had {count:,} samples, not {self.settings['samples']:,}")

    def describe(self, batches: Iterable[Any]) -> Evidence:
        """Say what an epoch delivers."""
        count = total = 0
        for batch in batches:
            found = self.samples(batch)
            count, total = count + len(found), total + digest(found)
        return {"samples": count, "digest": f"{total & (2**64 - 1):016x}"}

    def opened(self, link: Link | None) -> Opened:
        """Open the data set as one that nobody has read here."""
        return Opened(self, link)


class Opened:
    """A data set of which no copy and no index was on this machine, until it is closed.

    Without a link it is a copy, written as a stager writes: so both lie in the page cache alike.
    """

    def __init__(self, reader: Reader, link: Link | None) -> None:
        settings = reader.settings
        # A thread may still write while it ends.
        self._scratch = tempfile.TemporaryDirectory(
            dir=settings["work"], ignore_cleanup_errors=True
        )
        os.environ["XDG_CACHE_HOME"] = f"{self._scratch.name}/indexes"
        copies = Path(self._scratch.name) / "copies"
        if link is None:
            _copy(Path(settings["folder"]), copies)
        self.batches = (
            reader.open(str(copies), None) if link is None else reader.open(link.url, copies)
        )
        """Each iteration is an epoch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.batches = ()  # workers and stagers end with it, some of them by the collector
        gc.collect()
        self._scratch.cleanup()


class FirstEpoch:
    """One run is the first epoch, from opening the data set on; its figure is MB of shards/s."""

    def __init__(self, reader: Reader) -> None:
        self.note = reader.note
        self._reader = reader
        self._link = _link(reader.settings)

    def run(self) -> Mapping[str, float]:
        """Read everything from afar, once."""
        nbytes = self._reader.settings["nbytes"]
        begin = time.perf_counter()
        with self._reader.opened(self._link) as data:
            self._reader.epoch(data.batches)
            seconds = time.perf_counter() - begin
        asked = sum(request.nbytes for request in self._link.take_log())
        return {"value": nbytes / seconds / 1e6, "fetched_over_size": asked / nbytes}

    def evidence(self) -> Evidence:
        """Describe a first epoch."""
        with self._reader.opened(self._link) as data:
            return self._reader.describe(data.batches)

    def close(self) -> None:
        """End the server."""
        self._link.close()


class LaterEpoch:
    """One run is an epoch of a data set that was read before; its figure is MB of shards/s."""

    def __init__(self, reader: Reader) -> None:
        self.note = reader.note
        self._reader = reader
        self._stack = ExitStack()
        self._link = None
        if not reader.settings.get("local"):
            self._link = self._stack.enter_context(Link(reader.settings["folder"]))
        self._data = self._stack.enter_context(reader.opened(self._link))
        reader.epoch(self._data.batches)

    def run(self) -> Mapping[str, float]:
        """Read an epoch that needs nothing from afar."""
        nbytes = self._reader.settings["nbytes"]
        if self._link is not None:
            self._link.take_log()
        begin = time.perf_counter()
        self._reader.epoch(self._data.batches)
        seconds = time.perf_counter() - begin
        asked = [] if self._link is None else self._link.take_log()
        return {"value": nbytes / seconds / 1e6, "requests": len(asked)}

    def evidence(self) -> Evidence:
        """Describe such an epoch."""
        return self._reader.describe(self._data.batches)

    def close(self) -> None:
        """Close the data set, then the server."""
        self._stack.close()


class FirstBatch:
    """One run opens the data set and takes one batch; its figure is the seconds of both."""

    def __init__(self, reader: Reader) -> None:
        self.note = reader.note
        self._reader = reader
        self._link = _link(reader.settings)

    def run(self) -> Mapping[str, float]:
        """Take the first batch, and see which requests it took."""
        figures, _ = self._first()
        return figures

    def evidence(self) -> Evidence:
        """Tell the size of the batch, and its requests in series."""
        figures, samples = self._first()
        return {
            "samples": len(samples),
            "bytes": sum(map(len, samples)),
            "in_series": figures["in_series"],
        }

    def _first(self) -> tuple[dict[str, float], list[bytes]]:
        self._link.take_log()
        begin, began = time.perf_counter(), time.monotonic()
        with self._reader.opened(self._link) as data:
            for batch in data.batches:
                samples = self._reader.samples(batch)
                seconds, ended = time.perf_counter() - begin, time.monotonic()
                break
        asked = [one for one in self._link.take_log() if began <= one.begin and one.end <= ended]
        return {
            "value": seconds,
            "requests": len(asked),
            "in_series": in_series(asked),
            "mb": sum(one.nbytes for one in asked) / 1e6,
        }, samples

    def close(self) -> None:
        """End the server."""
        self._link.close()


class HalfShelf:
    """One run is several epochs with a shelf of half the data set; its figure is percent of hits.

    What was fetched after the first epoch, over what was read since then, is what missed.
    """

    def __init__(self, reader: Reader) -> None:
        self.note = reader.note
        self._reader = reader
        self._link = _link(reader.settings)

    def run(self) -> Mapping[str, float]:
        """Read the epochs; the first fills the shelf."""
        settings = self._reader.settings
        with self._reader.opened(self._link) as data:
            self._reader.epoch(data.batches)
            self._link.take_log()
            for _ in range(settings["epochs"] - 1):
                self._reader.epoch(data.batches)
            asked = sum(one.nbytes for one in self._link.take_log())
        needed = settings["nbytes"] * (settings["epochs"] - 1)
        return {"value": 100 * (1 - asked / needed)}

    def evidence(self) -> Evidence:
        """Say of how many needs of a shard the figure tells."""
        settings = self._reader.settings
        with self._reader.opened(self._link) as data:
            self._reader.epoch(data.batches)
        return {"needs": settings["shards"] * (settings["epochs"] - 1)}

    def close(self) -> None:
        """End the server."""
        self._link.close()


class Memory:
    """One run is a first epoch; its figure is by how many MiB the process was larger at most.

    Larger than before it read anything. Its own memory counts, and pages of files do not.
    """

    def __init__(self, reader: Reader) -> None:
        self.note = reader.note
        self._reader = reader
        self._link = Link(reader.settings["folder"])
        self._before = anonymous_bytes(os.getpid())

    def run(self) -> Mapping[str, float]:
        """Read an epoch, and look at the memory all the time."""
        peak = 0
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(_EVERY_S):
                peak = max(peak, anonymous_bytes(os.getpid()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with self._reader.opened(self._link) as data:
                self._reader.epoch(data.batches)
        finally:
            done.set()
            watcher.join()
        return {"value": (peak - self._before) / 2**20}

    def evidence(self) -> Evidence:
        """Describe the epoch."""
        with self._reader.opened(self._link) as data:
            return self._reader.describe(data.batches)

    def close(self) -> None:
        """End the server."""
        self._link.close()


MEASURES: dict[str, Callable[[Reader], Session]] = {
    "first epoch": FirstEpoch,
    "later epoch": LaterEpoch,
    "first batch": FirstBatch,
    "half shelf": HalfShelf,
    "memory": Memory,
}


def _copy(folder: Path, to: Path) -> None:
    """Copy a data set in pieces as large as a stager's.

    What was written by few bytes at a time is read from the page cache at half the rate.
    """
    to.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file, (to / path.name).open("wb", buffering=0) as copy:
                while piece := file.read(PIECE):
                    copy.write(piece)


def _link(settings: Settings) -> Link:
    return Link(settings["folder"], rate=settings["rate"], latency=settings["latency"])
