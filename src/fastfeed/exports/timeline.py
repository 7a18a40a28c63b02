"""A trace of every batch for ui.perfetto.dev or chrome://tracing: loop, device stage and workers.

All of it is on one clock, CLOCK_MONOTONIC on Linux, which processes share. The file is whole after
each write: events are added in front of its last line. A full disk leaves what it was before.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastfeed.errors import OptionError, StorageError
from fastfeed.exports.export import Export, collector_of
from fastfeed.exports.join import UNIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastfeed.exports.export import Measured
    from fastfeed.stats import Delivery

log = logging.getLogger("fastfeed")

# Batches are written so many at a time.
_AT_ONCE = 256
_LOOP, _STAGE = (1, 1), (1, 2)
_WORKERS = 2
_PROCESSES: Final = {1: "trainer", _WORKERS: "workers"}
_TAIL = "\n]}\n"

Track = tuple[int, int]
Event = dict[str, Any]


def trace(loader: Measured, path: str | os.PathLike[str], *, batches: int = 100_000) -> Export:
    """Write what happens to each batch from now on to a file, for the first so many batches.

    A batch takes about a kilobyte. StorageError if the file cannot be written.
    """
    if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1:
        raise OptionError(f"batches={batches!r} must be a number from 1 up")
    collector = collector_of(loader)
    recorder = _Recorder(Path(path), batches)
    stop = collector.observe(recorder)

    def end() -> None:
        stop()
        recorder.flush()

    return Export(loader, end)


class _Recorder:
    """Keeps deliveries until there are enough to be written."""

    def __init__(self, path: Path, batches: int) -> None:
        self._path = path.absolute()  # the program may go elsewhere
        self._pid = os.getpid()
        self._left = batches
        self._timeline = Timeline()
        self._fresh: list[Delivery] = []
        try:
            self._path.write_text(_head() + ",\n".join(map(json.dumps, _names())) + _TAIL)
        except OSError as error:
            raise StorageError(
                f"the trace {path.name!r} cannot be written: {error.strerror or error}",
                way_out="Name a file in a folder that can be written",
            ) from error

    def __call__(self, delivery: Delivery) -> None:
        if self._left:
            self._left -= 1
            self._fresh.append(delivery)
            if len(self._fresh) >= _AT_ONCE or not self._left:
                self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        fresh, self._fresh = self._fresh, []
        if not fresh or os.getpid() != self._pid:  # a fork has a copy of what is kept
            return
        text = ",\n".join(map(json.dumps, self._timeline.events(fresh)))
        try:
            _add(self._path, f",\n{text}{_TAIL}".encode())
        except OSError as error:  # a full disk must not end a training
            self._left = 0
            log.warning("the trace %s ends here: %s", self._path.name, error.strerror or error)


def _add(path: Path, data: bytes) -> None:
    """Put `data`, which ends with the tail, in the place of a file's tail: all of it or nothing."""
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        left = memoryview(data)[len(_TAIL) :]
        try:
            while left:
                left = left[file.write(left) :]
            file.seek(size - len(_TAIL))
            file.write(data[: len(_TAIL)])  # only now, as this needs no room
        except BaseException:
            file.truncate(size)
            raise


class Timeline:
    """Turns deliveries into events; spans of one track lie in each other, or beside."""

    def __init__(self) -> None:
        self._ends: dict[Track, int] = {}
        self._got: int | None = None

    def events(self, deliveries: Sequence[Delivery]) -> Iterator[Event]:
        """Yield the events of deliveries, in their order."""
        for one in deliveries:
            asked, got = _ns(one.asked), _ns(one.got)
            about = {"batch": one.number, "samples": one.samples}
            if self._got is not None:
                yield from self._span(_LOOP, "training step", (self._got, asked))
            self._got = got
            steps = one if one.worker < 0 else None
            yield from self._span(_LOOP, "wait for a batch", (asked, got), about, steps)
            if one.worker >= 0:
                yield from self._of_worker(one, about)
            if one.stage is not None:
                began = one.stage.began
                span = (_ns(began), _ns(began + one.stage.busy_s))
                track = (_STAGE[0], _STAGE[1] + one.stage.lane)
                if one.stage.lane and track not in self._ends:
                    yield _name("thread_name", track, f"device stage, lane {one.stage.lane + 1}")
                yield from self._span(track, "to the device", span, about)

    def _of_worker(self, one: Delivery, about: Event) -> Iterator[Event]:
        track = (_WORKERS, one.worker + 1)
        if track not in self._ends:
            yield _name("thread_name", track, f"worker {one.worker}")
        began, blocked_in, blocked_out = one.times[:3]
        waited = began - blocked_in
        yield from self._span(track, "send", (_ns(waited - blocked_out), _ns(waited)))
        yield from self._span(track, "wait for a job", (_ns(waited), _ns(began)))
        span = (_ns(began), _ns(began + one.busy_s))
        yield from self._span(track, f"batch {one.number}", span, about, one)

    def _span(
        self,
        track: Track,
        name: str,
        span: tuple[int, int],
        about: Event | None = None,
        steps: Delivery | None = None,
    ) -> Iterator[Event]:
        """Yield a span and the steps inside, unless it is empty.

        It begins no earlier than the one before ended.
        """
        start, end = max(span[0], self._ends.get(track, span[0])), span[1]
        if end <= start:
            return
        self._ends[track] = end
        yield _event(track, name, (start, end), about)
        if steps is not None:
            yield from _steps(track, steps, (start, end))


def _steps(track: Track, one: Delivery, span: tuple[int, int]) -> Iterator[Event]:
    """Yield the steps of a batch inside of its span, one after the other as they are done."""
    start, end = span
    slots = one.times[3]
    steps = dict(one.steps_s or {"fetch": one.busy_s - slots})
    if one.worker >= 0:
        steps.pop("device", None)  # it has a track of its own
    for name, seconds in steps.items():
        stop = min(end, start + _ns(seconds))
        if stop > start:
            yield _event(track, name, (start, stop))
            start = stop
    last = end - _ns(slots)
    if start <= last < end:
        yield _event(track, "slots", (last, end))


def _event(track: Track, name: str, span: tuple[int, int], about: Event | None = None) -> Event:
    start, end = span
    event = {"ph": "X", "name": name, "pid": track[0], "tid": track[1]}
    event |= {"ts": start / 1e3, "dur": (end - start) / 1e3}  # microseconds
    return event if about is None else event | {"args": about}


def _head() -> str:
    """Return the beginning of the file, which says what its clock is."""
    looks = [(time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()) for _ in range(5)]
    before, unix, after = min(looks, key=lambda look: look[2] - look[0])
    about = {"made by": "fastfeed", "clock": "monotonic", UNIX: unix - (before + after) // 2}
    return f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)},\n"traceEvents": [\n'


def _names() -> Iterator[Event]:
    for process, name in _PROCESSES.items():
        yield _name("process_name", (process, 0), name)
    yield _name("thread_name", _LOOP, "the loop")
    yield _name("thread_name", _STAGE, "device stage")


def _name(kind: str, track: Track, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": track[0], "tid": track[1], "args": {"name": name}}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
