"""Names the user's code that makes samples: data set, transform and collate function."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset, default_collate, default_convert

from fastfeed.dataset import ShardDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

# Data sets within data sets that are looked through.
_LAYERS: Final = 8
_NOT_THE_USERS: Final = ("torch.", "fastfeed.")


def code_of(loader: Any) -> str:
    """Return the functions of the user's that make a loader's samples, empty if none is known."""
    return " and ".join(_functions(loader))


def _functions(loader: Any) -> Iterator[str]:
    dataset = getattr(loader, "dataset", None)
    for _ in range(_LAYERS):
        if isinstance(dataset, ShardDataset):
            if dataset.transform is not None:
                yield f"transform={_placed(dataset.transform)}"
            break
        kind = type(dataset)
        if dataset is not None and not kind.__module__.startswith(_NOT_THE_USERS):
            whole = "__getitems__" if hasattr(kind, "__getitems__") else "__getitem__"
            name = "__iter__" if isinstance(dataset, IterableDataset) else whole
            if hasattr(kind, name):
                yield _placed(getattr(kind, name))
        dataset = getattr(dataset, "dataset", None)
    collate = getattr(loader, "collate_fn", None)
    if callable(collate) and collate is not default_collate and collate is not default_convert:
        yield f"collate_fn={_placed(collate)}"


def _placed(function: Any) -> str:
    """Return a function's name, with the file and the line where it begins if these are known."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    function = getattr(function, "func", function)  # of a partial
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = "" if code is None else f" ({Path(code.co_filename).name}:{code.co_firstlineno})"
    return f"{name}{place}"
