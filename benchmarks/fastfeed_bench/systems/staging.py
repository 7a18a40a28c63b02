"""staging: shards behind a link, by fastfeed with a shelf and by webdataset."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed_bench.consume import read_array, read_tensor
from fastfeed_bench.systems.staging_measures import MEASURES, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastfeed_bench.model import Session, Settings


def fastfeed_session(settings: Settings) -> Session:
    """Return our session: `ff.Cache`, batches of byte strings, shuffled within the window."""
    import aiohttp  # noqa: F401 - what is imported on use is not to be timed
    import fsspec  # noqa: F401

    import fastfeed as ff

    workers = settings["workers"]

    def open_set(source: str, copies: Path | None) -> Iterable[Any]:
        cache = None if copies is None else ff.Cache(copies, settings.get("room", "100GB"))
        data = ff.ShardDataset(
            source,
            fields={"bin": ff.Bytes("bin")},
            shuffle_window=settings["window_bytes"],
            cache=cache,
        )
        loader: Any = ff.DataLoader(
            data,
            batch_size=settings["batch"],
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        return loader  # type: ignore[no-any-return]

    def consume(batch: dict[str, Any]) -> int:
        read_tensor(batch["bin"].data)
        return len(batch["bin"])

    reader = Reader(
        note=f"fastfeed {ff.__version__}; num_workers={workers}, batch_size={settings['batch']}",
        settings=settings,
        open=open_set,
        samples=lambda batch: list(batch["bin"].to_list()),
        consume=consume,
    )
    return MEASURES[settings["measure"]](reader)


def webdataset_session(settings: Settings) -> Session:
    """Return webdataset's session, which reads through curl and may keep the shards it read.

    Its buffer for shuffling holds as many samples as our window.
    """
    import webdataset

    workers, batch, window = settings["workers"], settings["batch"], settings["window"]

    def open_set(source: str, copies: Path | None) -> Iterable[Any]:
        names = sorted(path.name for path in Path(settings["folder"]).glob("*.tar"))
        keep = {} if copies is None or not settings.get("keeps") else {"cache_dir": str(copies)}
        if keep:
            Path(keep["cache_dir"]).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data: Any = webdataset.WebDataset(
                [f"{source}/{name}" for name in names], shardshuffle=len(names), **keep
            )
            data = data.shuffle(window, initial=window).to_tuple("bin")
            return webdataset.WebLoader(  # type: ignore[no-any-return]
                data.batched(batch, collation_fn=None),
                batch_size=None,
                num_workers=workers,
                persistent_workers=workers > 0,
            )

    def samples(found: list[tuple[bytes]]) -> list[bytes]:
        return [sample for (sample,) in found]

    def consume(found: list[tuple[bytes]]) -> int:
        for sample in samples(found):
            read_array(np.frombuffer(sample, np.uint8))
        return len(found)

    reader = Reader(
        note=f"webdataset {webdataset.__version__} and curl; num_workers={workers}, "
        f"shuffle({window}), batched({batch})" + (", cache_dir" if settings.get("keeps") else ""),
        settings=settings,
        open=open_set,
        samples=samples,
        consume=consume,
    )
    return MEASURES[settings["measure"]](reader)
