"""zstd-read: samples of `.tar.zst` shards, by fastfeed, by webdataset and by `zstd` itself."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed_bench.commands import run_command
from fastfeed_bench.consume import digest, read_array, read_tensor
from fastfeed_bench.sessions import LoaderSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastfeed_bench.model import Evidence, Settings


def fastfeed_session(settings: Settings) -> LoaderSession:
    """Return our session: batches of byte strings, in order or shuffled within the window."""
    import fastfeed as ff

    workers, window = settings["workers"], settings["window_bytes"]
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
    """Return webdataset's session, which reads compressed shards through a pipe from `zstd`.

    Its buffer for shuffling holds as many samples as our window. Each worker has one, and `zstd` is
    a process beside each.
    """
    import webdataset

    workers, batch, window = settings["workers"], settings["batch"], settings["window"]
    shards = [f"pipe:zstd -dcq {path}" for path in _shards(settings)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader: Any = webdataset.WebDataset(shards, shardshuffle=len(shards) if window else False)
        if window:
            loader = loader.shuffle(window, initial=window)
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
        note=f"webdataset {webdataset.__version__} and zstd -d; num_workers={workers}"
        + (f", batched({batch})" if workers else "")
        + (f", shuffle({window})" if window else ""),
        samples=settings["samples"],
        epoch=samples,
        consume=consume,
        describe=lambda: _describe(samples()),
    )


def plain_session(settings: Settings) -> LoaderSession:
    """Return the session of `zstd -d`, one process, whose output is thrown away."""
    shards = [str(path) for path in _shards(settings)]
    version = run_command("zstd", "-q", "--version").strip()

    def consume(_: None) -> int:
        command = ["zstd", "-d", "-q", "-f", *shards, "-o", "/dev/null"]
        subprocess.run(command, check=True)  # noqa: S603 - paths of our own
        return int(settings["samples"])

    return LoaderSession(
        note=f"zstd {version} -d to /dev/null",
        samples=settings["samples"],
        epoch=lambda: [None],
        consume=consume,
        # It knows of no samples; that it decompresses all shards is all there is to say.
        describe=lambda: {"samples": consume(None)},
    )


def _shards(settings: Settings) -> list[Path]:
    return sorted(Path(settings["folder"]).glob("*.tar.zst"))


def _describe(samples: Iterable[bytes]) -> Evidence:
    kept = list(samples)
    return {"samples": len(kept), "digest": f"{digest(kept):016x}"}
