"""zstd-read: our session with the consumer's time apart, and `zstd` itself on the same shards."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed_bench.commands import run_command
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems import shard_read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Evidence, Settings

# As the builder compresses, and of so many shards.
_LEVEL, _COMPARED = 3, 8


class _ReadApart:
    """A session in this process that also says what it reaches without the reading of batches."""

    def __init__(self, session: LoaderSession) -> None:
        self._read = session.consume
        self._session = replace(session, consume=self._consume)
        self._reading_s = 0.0

    @property
    def note(self) -> str:
        """Version and settings."""
        return self._session.note

    def run(self) -> Mapping[str, float]:
        """Consume one epoch."""
        self._reading_s = 0.0
        figures = self._session.run()
        samples = self._session.samples
        return {**figures, "unread": samples / (samples / figures["value"] - self._reading_s)}

    def evidence(self) -> Evidence:
        """Describe what is delivered."""
        return self._session.evidence()

    def close(self) -> None:
        """End what was started."""
        self._session.close()

    def _consume(self, batch: Any) -> int:
        begin = time.perf_counter()
        samples = self._read(batch)
        self._reading_s += time.perf_counter() - begin
        return samples


def fastfeed_session(settings: Settings) -> _ReadApart:
    """Return our session in one process, on one core."""
    _keep_to_one_core()
    return _ReadApart(shard_read.fastfeed_session(settings))


def plain_session(settings: Settings) -> LoaderSession:
    """Return the session of `zstd -d` on one core, whose output is thrown away."""
    _keep_to_one_core()  # it has threads that read and write
    shards = sorted(Path(settings["folder"]).glob("*.tar.zst"))
    version = run_command("zstd", "-q", "--version").strip()

    def consume(_: None) -> int:
        command = ["zstd", "-d", "-q", "-f", *map(str, shards), "-o", "/dev/null"]
        subprocess.run(command, check=True)  # noqa: S603 - paths of our own
        return int(settings["samples"])

    return LoaderSession(
        note=f"zstd {version} -d to /dev/null; the shards take {_relative_size(shards):.3f} of "
        "what it makes of whole tars",
        samples=settings["samples"],
        epoch=lambda: [None],
        consume=consume,
        # It knows of no samples; that it decompresses all shards is all there is to say.
        describe=lambda: {"samples": consume(None)},
    )


def _keep_to_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _relative_size(shards: list[Path]) -> float:
    """Return how large shards are beside their tars compressed whole, at the same level."""
    import zstandard

    from fastfeed.storage.compressed import open_shard

    ours = whole = 0
    for path in shards[:_COMPARED]:
        with open_shard(path) as shard:
            tar = shard.read_at(0, shard.size)
        ours += path.stat().st_size
        whole += len(zstandard.ZstdCompressor(_LEVEL).compress(tar))
    return ours / whole
