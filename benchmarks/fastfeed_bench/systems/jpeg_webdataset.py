"""jpeg-cpu by webdataset: its pipeline in its own loader, decoding with Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import webdataset

from fastfeed_bench.probe import examine
from fastfeed_bench.sessions import LoaderSession
from fastfeed_bench.systems.jpeg_torch import consume, pictures_of, pillow_recipe, stack_as_stored

if TYPE_CHECKING:
    from fastfeed_bench.model import Evidence, Settings

_SHUFFLE = 500


def session(settings: Settings) -> LoaderSession:
    """Return the session."""
    loader = _loader(settings["shards"] * settings["repeats"], settings)
    return LoaderSession(
        note=(
            f"webdataset {webdataset.__version__}; num_workers={settings['workers']}, "
            f"batched({settings['batch']}), shuffle({_SHUFFLE})"
        ),
        samples=settings["count"] * settings["repeats"],
        epoch=lambda: loader,
        consume=consume,
        describe=lambda: _describe(settings),
    )


def _describe(settings: Settings) -> Evidence:
    probe = next(Path(settings["probe"]).rglob("*.jpg")).read_bytes()
    return examine(pictures_of(_loader(settings["probe_shards"], settings)), probe)


def _loader(shards: list[str], settings: Settings) -> Any:
    recipe = pillow_recipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = (
            webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
            .shuffle(_SHUFFLE)
            .to_tuple("jpg", "cls")
            .map_tuple(recipe, int)
            .batched(settings["batch"], collation_fn=stack_as_stored)
        )
    return webdataset.WebLoader(
        samples,
        batch_size=None,
        num_workers=settings["workers"],
        persistent_workers=True,
    )
