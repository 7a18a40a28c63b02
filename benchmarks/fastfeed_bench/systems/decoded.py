"""decoded: PNG photos with a random crop, with and without a cache of what was decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fastfeed as ff
from fastfeed_bench.consume import digest_epoch, read_tensor
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.windows import RATIO, SCALE, SIDE

if TYPE_CHECKING:
    from fastfeed_bench.model import Settings


def session(settings: Settings) -> LoaderSession:
    """Return the session; its first epoch, which fills the cache, is the warm-up."""
    loader = _loader(settings, persistent=True)
    cache = settings["cache"] or "none"
    return LoaderSession(
        note=f"fastfeed {ff.__version__}; num_workers={settings['workers']}, "
        f"batch_size={settings['batch']}, cache {cache}",
        samples=settings["count"],
        epoch=lambda: loader,
        consume=_consume,
        describe=lambda: digest_epoch(_loader(settings, persistent=False)),
    )


def _consume(batch: dict[str, Any]) -> int:
    read_tensor(batch["image"])
    return len(batch["image"])


def _loader(settings: Settings, *, persistent: bool) -> Any:
    crop = ff.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO)
    cache = ff.DecodedCache(settings["cache"]) if settings["cache"] else None
    shards = ff.ShardDataset(
        settings["folder"], {"image": ff.Image("png", crop, ff.HorizontalFlip())}, decoded=cache
    )
    return ff.DataLoader(
        shards,
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        persistent_workers=persistent,
    )
