"""Raw samples of warm shards, compressed ones too, by fastfeed, webdataset and plain reads."""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed_bench.consume import digest, read_array, read_tensor
from fastfeed_bench.sessions import LoaderSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from fastfeed_bench.model import Evidence, Settings


def fastfeed_session(settings: Settings) -> LoaderSession:
    """Return our session: batches of byte strings, in order or, with `window_bytes`, shuffled."""
    import fastfeed as ff

    workers, window = settings["workers"], settings.get("window_bytes", 0)
    windowed = {"shuffle_window": window} if window else {}
    loader: Any = ff.DataLoader(
        ff.ShardDataset(settings["folder"], fields={"bin": ff.Bytes("bin")}, **windowed),
        batch_size=settings["batch"],
        shuffle=bool(window),
        num_workers=workers,
        persistent_workers=workers > 0,
    )

    def consume(batch: dict[str, Any]) -> int:
        read_tensor(batch["bin"].data)
        return len(batch["bin"])

    def samples() -> Iterator[bytes]:
        for batch in loader:
            yield from batch["bin"].to_list()

    return LoaderSession(
        note=f"fastfeed {ff.__version__}; num_workers={workers}, batch_size={settings['batch']}",
        samples=settings["samples"],
        epoch=lambda: loader,
        consume=consume,
        describe=lambda: _describe(samples()),
    )


def webdataset_session(settings: Settings) -> LoaderSession:
    """Return webdataset's session; without workers its samples come one by one.

    It reads compressed shards through a pipe from `zstd`, a process beside each worker. With
    `buffer` shards are shuffled, and samples in a buffer of so many, one for each worker.
    """
    import webdataset

    workers, batch, buffer = settings["workers"], settings["batch"], settings.get("buffer", 0)
    shards = list(map(_opened_by_webdataset, _shards(settings)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader: Any = webdataset.WebDataset(shards, shardshuffle=len(shards) if buffer else False)
        if buffer:
            loader = loader.shuffle(buffer, initial=buffer)
        loader = loader.to_tuple("bin")
        if workers:
            batches = loader.batched(batch, collation_fn=None)
            loader = webdataset.WebLoader(
                batches, batch_size=None, num_workers=workers, persistent_workers=True
            )

    def samples() -> Iterator[bytes]:
        for item in loader:
            if workers:
                for sample in item:
                    yield sample[0]
            else:
                yield item[0]

    def consume(sample: bytes) -> int:
        read_array(np.frombuffer(sample, np.uint8))
        return 1

    return LoaderSession(
        note=f"webdataset {webdataset.__version__}; num_workers={workers}"
        + (f", batched({batch})" if workers else "")
        + (f", shuffle({buffer})" if buffer else "")
        + (", zstd -d" if shards[0].startswith("pipe:") else ""),
        samples=settings["samples"],
        epoch=samples,
        consume=consume,
        describe=lambda: _describe(samples()),
    )


def plain_session(settings: Settings) -> LoaderSession:
    """Return the session of plain large reads: the bytes of the shards, headers and all."""
    chunk = settings["chunk"]
    buffer = np.empty(chunk, np.uint8)
    shards = _shards(settings)
    per_shard: int = settings["samples"] // len(shards)

    def read(path: Path) -> int:
        for piece in _pieces(path, buffer):
            read_array(piece)
        return per_shard

    return LoaderSession(
        note=f"os.preadv of {chunk >> 10} KiB into one buffer, one thread",
        samples=per_shard * len(shards),
        epoch=lambda: shards,
        consume=read,
        # It knows of no samples; that it reads the shards to their ends is all there is to say.
        describe=lambda: {"samples": sum(map(read, shards))},
    )


def _pieces(path: Path, buffer: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    descriptor = os.open(path, os.O_RDONLY)
    with closing(os.fdopen(descriptor, "rb", buffering=0)):
        offset = 0
        while count := os.preadv(descriptor, [buffer.data], offset):
            yield buffer[:count]
            offset += count


def _shards(settings: Settings) -> list[Path]:
    folder = Path(settings["folder"])
    return sorted([*folder.glob("*.tar"), *folder.glob("*.tar.zst")])


def _opened_by_webdataset(shard: Path) -> str:
    return f"pipe:zstd -dcq {shard}" if shard.suffix == ".zst" else str(shard)


def _describe(samples: Iterable[bytes]) -> Evidence:
    kept = list(samples)
    return {"samples": len(kept), "digest": f"{digest(kept):016x}"}
