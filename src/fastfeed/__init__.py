"""fastfeed keeps GPUs fed.

The path of a byte, each step a folder of this package:

    storage -> staging -> reading -> decoding -> collating -> slots -> device -> the training loop

`feed.py` connects the steps in one function; `loader.py` is what people use.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastfeed.version import __version__

if TYPE_CHECKING:
    from fastfeed_shard.writer import ShardWriter as ShardWriter
    from fastfeed.collating.ragged import Ragged as Ragged
    from fastfeed.dataset import ShardDataset as ShardDataset
    from fastfeed import exports as exports
    from fastfeed.diagnosis.run import diagnose as diagnose
    from fastfeed.errors import FastfeedError as FastfeedError
    from fastfeed.fields import Array as Array
    from fastfeed.fields import Boxes as Boxes
    from fastfeed.fields import Bytes as Bytes
    from fastfeed.fields import CenterCrop as CenterCrop
    from fastfeed.fields import Float as Float
    from fastfeed.fields import HorizontalFlip as HorizontalFlip
    from fastfeed.fields import Image as Image
    from fastfeed.fields import Int as Int
    from fastfeed.fields import Json as Json
    from fastfeed.fields import Keypoints as Keypoints
    from fastfeed.fields import Mask as Mask
    from fastfeed.fields import Normalize as Normalize
    from fastfeed.fields import RandomResizedCrop as RandomResizedCrop
    from fastfeed.fields import Resize as Resize
    from fastfeed.fields import Text as Text
    from fastfeed.loader import DataLoader as DataLoader
    from fastfeed.options import AUTO as AUTO
    from fastfeed.options import Cache as Cache
    from fastfeed.options import DecodedCache as DecodedCache
    from fastfeed.sampler import ShardSampler as ShardSampler

if os.name != "posix":
    raise ImportError(
        "fastfeed runs on Linux, and with less speed on macOS; on Windows use it in WSL 2"
    )

# CUDA reads this once, when it starts: how many queues of the hardware its streams are spread over.
# In the usual eight, work of the JPEG engines stands behind a training's.
_cuda = getattr(sys.modules.get("torch"), "cuda", None)
if _cuda is None or not _cuda.is_initialized():
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# Public name -> the module that holds it. Modules load on first use, so that `import fastfeed`
# costs nothing and the shard tools never load torch.
_HOMES = {
    "AUTO": "fastfeed.options",
    "Array": "fastfeed.fields",
    "Boxes": "fastfeed.fields",
    "Bytes": "fastfeed.fields",
    "Cache": "fastfeed.options",
    "CenterCrop": "fastfeed.fields",
    "DataLoader": "fastfeed.loader",
    "DecodedCache": "fastfeed.options",
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
    "ShardSampler": "fastfeed.sampler",
    "ShardWriter": "fastfeed_shard.writer",
    "Text": "fastfeed.fields",
    "diagnose": "fastfeed.diagnosis.run",
    "exports": "fastfeed.exports",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - the table above is the list


def __getattr__(name: str) -> Any:
    """Load a public name's module when the name is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastfeed' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    value = home if _HOMES[name] == f"fastfeed.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
