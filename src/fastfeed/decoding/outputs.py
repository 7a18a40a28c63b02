"""The outputs of a sample: in which order they are decoded, and what each takes in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.decoding.picture import normalized_type
from fastfeed.decoding.window import fixed_size
from fastfeed.errors import OptionError
from fastfeed.fields import Array, Field, Float, Image, Int, Mask, Normalize

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


@dataclass(frozen=True, slots=True)
class Row:
    """What one sample's output takes in a batch, where that is the same for every sample."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    channels_last: bool = False
    """Whether the last axis is the channels, which users see before height and width."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a sample."""

    name: str
    field: Field
    normalize: Normalize | None
    """What makes numbers of its levels, if anything does."""
    leader: str | None
    """Output whose window and draw this one takes."""


def outputs_of(fields: Mapping[str, Field]) -> list[Output]:
    """Return the outputs, those that lead a window before those that follow it."""
    outputs = []
    for name, field in fields.items():
        if not isinstance(field, Field):
            raise OptionError(
                f"{name!r}: {field!r} describes no field", way_out='Write for example ff.Int("cls")'
            )
        transforms = field.transforms if isinstance(field, Image | Mask) else ()
        fixed_size(transforms)
        last = transforms[-1] if transforms else None
        normalize = last if isinstance(last, Normalize) else None
        leader = getattr(field, "like", None)
        outputs.append(Output(name, field, normalize, leader))
        if leader is None:
            continue
        leading = fields.get(leader)
        if not isinstance(leading, Image | Mask) or leading.like is not None or leader == name:
            raise OptionError(
                f"{name!r} is like {leader!r}, which is no picture with a geometry of its own",
                way_out="Name the output that has the transforms",
            )
    return sorted(outputs, key=lambda output: output.leader is not None)


def row_of(output: Output, fields: Mapping[str, Field]) -> Row | None:
    """Return an output's row; None if each sample's may have a shape of its own."""
    field = output.field
    if isinstance(field, Int):
        return Row((), np.dtype(np.int64))
    if isinstance(field, Float):
        return Row((), np.dtype(np.float64))
    if isinstance(field, Array) and field.shape is not None:
        return Row(field.shape, _numeric(output.name, field))
    if isinstance(field, Image | Mask):
        return _picture_row(output, field, fields)
    return None


def _numeric(name: str, field: Array) -> np.dtype[Any]:
    """Return the type of an array's row, which torch must know."""
    try:
        kind = np.dtype(field.dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "biufc":
        raise OptionError(
            f"{name!r}: dtype={field.dtype!r} is no type of numbers",
            way_out='Write for example dtype="float32"',
        )
    return kind.newbyteorder("=")


def _picture_row(output: Output, field: Image | Mask, fields: Mapping[str, Field]) -> Row | None:
    leading = fields[output.leader] if output.leader else field
    size = fixed_size(leading.transforms) if isinstance(leading, Image | Mask) else None
    if size is None:
        return None
    if isinstance(field, Mask):
        return Row(size, np.dtype(np.uint8))
    kind = normalized_type(output.normalize) if output.normalize else np.dtype(field.dtype)
    return Row((*size, _CHANNELS[field.mode]), kind, channels_last=True)
