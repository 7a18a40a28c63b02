"""jpeg-cpu by fastfeed: shards, the crop drawn before decode, batches from worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastfeed as ff
from fastfeed_bench.consume import read_tensor
from fastfeed_bench.probe import examine
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.windows import RATIO, SCALE, SIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from fastfeed_bench.model import Evidence, Settings


def session(settings: Settings) -> LoaderSession:
    """Return the session."""
    loader = _loader(settings["shards"] * settings["repeats"], settings)
    return LoaderSession(
        note=(
            f"fastfeed {ff.__version__}; num_workers={settings['workers']}, "
            f"batch_size={settings['batch']}, shards"
        ),
        samples=settings["count"] * settings["repeats"],
        epoch=lambda: loader,
        consume=_consume,
        describe=lambda: _describe(settings),
    )


def _consume(batch: dict[str, Any]) -> int:
    read_tensor(batch["image"])
    read_tensor(batch["label"])
    return len(batch["image"])


def _describe(settings: Settings) -> Evidence:
    probe = next(Path(settings["probe"]).rglob("*.jpg")).read_bytes()
    loader = _loader(settings["probe_shards"], {**settings, "persistent": False})
    return examine(_pictures(loader), probe)


def _pictures(loader: Any) -> Iterator[NDArray[np.uint8]]:
    for batch in loader:
        yield from batch["image"].permute(0, 2, 3, 1).numpy()


def _loader(shards: list[str], settings: Settings) -> Any:
    fields: dict[str, Any] = {
        "image": ff.Image("jpg", ff.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO)),
        "label": ff.Int("cls"),
    }
    return ff.DataLoader(
        ff.ShardDataset(shards, fields=fields),
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        persistent_workers=settings.get("persistent", True),
    )
