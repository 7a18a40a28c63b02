"""staging: what nobody can beat on the same link, and what other rules of eviction would give."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import local
from typing import TYPE_CHECKING

import numpy as np

from fastfeed.staging.eviction import hits_at_best, hits_by_recency
from fastfeed_bench.link import Link, in_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastfeed_bench.model import Evidence, Settings

_CONNECTIONS = 16
_PIECE = 4 << 20
_RULES: dict[str, Callable[..., int]] = {"optimum": hits_at_best, "lru": hits_by_recency}


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of one file."""

    path: str
    offset: int
    size: int


class Plain:
    """Ranges of bytes by plain requests, several at a time, each connection kept."""

    def __init__(self, settings: Settings, *, connections: int) -> None:
        self._link = Link(settings["folder"], rate=settings["rate"], latency=settings["latency"])
        self._pool = ThreadPoolExecutor(connections)
        self._own = local()
        self._connections: list[http.client.HTTPConnection] = []
        self.take_log = self._link.take_log

    def fetch(self, ranges: Iterable[_Range]) -> int:
        """Read all of some ranges and return their bytes."""
        return sum(self._pool.map(self._one, ranges))

    def _one(self, wanted: _Range) -> int:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._link.port)
            self._own.connection = connection
            self._connections.append(connection)
            self._own.buffer = bytearray(_PIECE)
        last = wanted.offset + wanted.size - 1
        headers = {"Range": f"bytes={wanted.offset}-{last}"}
        connection.request("GET", f"/{wanted.path}", headers=headers)
        answer = connection.getresponse()
        done = 0
        while count := answer.readinto(self._own.buffer):
            done += count
        return done

    def close(self) -> None:
        """End the threads, their connections and the server."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()
        self._link.close()


class Download:
    """One run reads all shards in pieces; its figure is MB/s: what the link gives."""

    note = f"plain ranged requests of {_PIECE >> 20} MiB, {_CONNECTIONS} at a time"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._plain = Plain(settings, connections=_CONNECTIONS)
        self._ranges = [
            _Range(path.name, offset, min(_PIECE, path.stat().st_size - offset))
            for path in sorted(Path(settings["folder"]).glob("*.tar"))
            for offset in range(0, path.stat().st_size, _PIECE)
        ]

    def run(self) -> Mapping[str, float]:
        """Read every byte of the shards once."""
        begin = time.perf_counter()
        nbytes = self._plain.fetch(self._ranges)
        seconds = time.perf_counter() - begin
        if nbytes != self._settings["nbytes"]:
            raise RuntimeError(f"{nbytes:,} bytes came, not {self._settings['nbytes']:,}")
        return {"value": nbytes / seconds / 1e6}

    def evidence(self) -> Evidence:
        """It knows of no samples; that all bytes come is all there is to say."""
        self.run()
        return {"samples": self._settings["samples"]}

    def close(self) -> None:
        """End the server."""
        self._plain.close()


class Steps:
    """One run asks for what a first batch takes, in three rounds of requests, and nothing else.

    The manifest, the indexes of the batch's shards at once, then its samples at once.
    """

    note = "plain requests in three rounds: manifest, indexes, samples"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._plain = Plain(settings, connections=settings["batch"])
        self._rounds = _rounds(settings)

    def run(self) -> Mapping[str, float]:
        """Send the requests of each round at once."""
        self._plain.take_log()
        begin = time.perf_counter()
        for ranges in self._rounds:
            self._plain.fetch(ranges)
        seconds = time.perf_counter() - begin
        asked = self._plain.take_log()
        return {"value": seconds, "requests": len(asked), "in_series": in_series(asked)}

    def evidence(self) -> Evidence:
        """Tell how much there is in the last round."""
        samples = self._rounds[-1]
        return {
            "samples": len(samples),
            "bytes": sum(one.size for one in samples),
            "in_series": self.run()["in_series"],
        }

    def close(self) -> None:
        """End the server."""
        self._plain.close()


def _rounds(settings: Settings) -> list[list[_Range]]:
    """Return the ranges of the first batch of our plan, in the three rounds."""
    import fastfeed as ff

    folder = Path(settings["folder"])
    data = ff.ShardDataset(
        folder, fields={"bin": ff.Bytes("bin")}, shuffle_window=settings["window_bytes"]
    )
    first = next(data.plan(0).order())[: settings["batch"]]
    numbers, rows = data.shards.locate(np.asarray(first, np.int64))

    def whole(name: str) -> _Range:
        return _Range(name, 0, (folder / name).stat().st_size)

    samples = []
    names = {}
    for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
        opened = data.shards.open(number)
        names[number] = Path(data.shards.name(number)).name
        _, offset, size, _ = opened.cells[row, opened.columns["bin"]].tolist()
        samples.append(_Range(names[number], offset, size))
    indexes = [whole(name.replace(".tar", ".ffx")) for name in names.values()]
    return [[whole("dataset.json")], indexes, samples]


class Simulated:
    """Hits of a shelf of half the data set under some rule, computed over the plan's own order."""

    def __init__(self, settings: Settings) -> None:
        import fastfeed as ff

        self.note = f"computed, {settings['rule']}"
        self._epochs: int = settings["epochs"]
        self._rule = _RULES[settings["rule"]]
        data = ff.ShardDataset(settings["folder"], shuffle_window=settings["window_bytes"])
        self._shards = data.shards.shard_count
        windows = chain.from_iterable(data.plan(n).windows() for n in range(self._epochs))
        self._needs = [int(shard) for window in windows for shard in window]

    def run(self) -> Mapping[str, float]:
        """Count; in the first epoch nothing hits."""
        hits = self._rule(self._needs, self._shards // 2)
        return {"value": 100 * hits / (len(self._needs) - self._shards)}

    def evidence(self) -> Evidence:
        """Say of how many needs of a shard the figure tells."""
        return {"needs": len(self._needs) - self._shards}

    def close(self) -> None:
        """Nothing is open."""


class Bound:
    """A figure that was set as the aim, to stand beside what is measured."""

    def __init__(self, settings: Settings) -> None:
        self.note = str(settings["why"])
        self._value: float = settings["value"]
        self._samples: int = settings["samples"]

    def run(self) -> Mapping[str, float]:
        """Give the figure."""
        return {"value": self._value}

    def evidence(self) -> Evidence:
        """Claim the epoch, of which it is a bound."""
        return {"samples": self._samples}

    def close(self) -> None:
        """Nothing is open."""
