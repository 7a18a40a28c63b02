"""fastfeed keeps GPUs fed.

The path of a byte, each step a folder of this package:

    storage -> reading -> decoding -> collating -> slots -> the training loop

`feed.py` connects the steps in one function; `loader.py` is what people use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastfeed.version import __version__

if TYPE_CHECKING:
    from fastfeed_shard.writer import ShardWriter

    from fastfeed.collating.ragged import Ragged
    from fastfeed.dataset import ShardDataset
    from fastfeed.errors import FastfeedError
    from fastfeed.fields import (
        Array,
        Boxes,
        Bytes,
        CenterCrop,
        Float,
        HorizontalFlip,
        Image,
        Int,
        Json,
        Keypoints,
        Mask,
        Normalize,
        RandomResizedCrop,
        Resize,
        Text,
    )
    from fastfeed.loader import DataLoader
    from fastfeed.options import AUTO

# Public name -> the module that holds it. Modules load on first use, so that `import fastfeed`
# costs nothing and the shard tools never load torch.
_HOMES = {
    "AUTO": "fastfeed.options",
    "Array": "fastfeed.fields",
    "Boxes": "fastfeed.fields",
    "Bytes": "fastfeed.fields",
    "CenterCrop": "fastfeed.fields",
    "DataLoader": "fastfeed.loader",
    "FastfeedError": "fastfeed.errors",
    "Float": "fastfeed.fields",
    "HorizontalFlip": "fastfeed.fields",
    "Image": "fastfeed.fields",
    "Int": "fastfeed.fields",
    "Json": "fastfeed.fields",
    "Keypoints": "fastfeed.fields",
    "Mask": "fastfeed.fields",
    "Normalize": "fastfeed.fields",
    "Ragged": "fastfeed.collating.ragged",
    "RandomResizedCrop": "fastfeed.fields",
    "Resize": "fastfeed.fields",
    "ShardDataset": "fastfeed.dataset",
    "ShardWriter": "fastfeed_shard.writer",
    "Text": "fastfeed.fields",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the table above is the list


def __getattr__(name: str) -> Any:
    """Load a public name's module when the name is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastfeed' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
