"""Field descriptions made ready to work: what to read, what shape comes out, and the decoding."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from fastfeed.decoding.defer import Deferred, DeviceSide, defer_image
from fastfeed.decoding.draw import Draw
from fastfeed.decoding.kept import recipe_of
from fastfeed.decoding.outputs import outputs_of, row_of
from fastfeed.decoding.picture import (
    JPEG_DECODERS,
    cut_mask,
    decode_part,
    deliver,
    mask_pixels,
)
from fastfeed.decoding.values import (
    decode_array,
    decode_coordinates,
    decode_float,
    decode_int,
    decode_json,
    decode_text,
    move_boxes,
    move_points,
    unpack,
)
from fastfeed.decoding.window import Window, draw_window, same_window
from fastfeed.errors import (
    DecodeError,
    FastfeedError,
    MissingFieldError,
    OptionError,
    located,
)
from fastfeed.fields import (
    Array,
    Boxes,
    Bytes,
    Field,
    Float,
    Image,
    Int,
    Json,
    Keypoints,
    Mask,
    Normalize,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from fastfeed.decoding.kept import Keeper, Recipe
    from fastfeed.decoding.outputs import Output, Row

PACKED: Final = ".zst"
"""Ends the name of a field that is compressed with zstd by itself."""

_NOTHING_LEFT: Final = MappingProxyType[str, Deferred]({})


class SampleDecoder:
    """Decodes the fields of one sample; may be used by several threads at a time.

    `sources` names the fields of the shard to read; `layout` the outputs whose rows have one shape.
    Of the fields that the shards have, `held`, those that are compressed stand for others:
    `seg.npy.zst` for `seg.npy`. What is dear to decode goes by way of `keeper`, if there is one.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        *,
        jpeg_decoders: Sequence[str] = JPEG_DECODERS,
        held: Collection[str] = (),
        keeper: Keeper | None = None,
    ) -> None:
        unknown = set(jpeg_decoders) - set(JPEG_DECODERS)
        if unknown:
            raise OptionError(f"no such JPEG decoder: {', '.join(sorted(unknown))}")
        self._decoders = tuple(jpeg_decoders)
        self._outputs = outputs_of(fields)
        names = dict.fromkeys(n for f in fields.values() for n in f.names)
        packed = [name + PACKED for name in names if name + PACKED in held]
        self.sources = tuple(dict.fromkeys([*names, *packed]))
        self._keeper = keeper
        self._recipes = {} if keeper is None else _recipes(fields, self._decoders)
        rows = {output.name: row_of(output, fields) for output in self._outputs}
        self.layout: Mapping[str, Row] = MappingProxyType(
            {name: row for name, row in rows.items() if row is not None}
        )
        self._pictures = tuple(
            (output, output.field)
            for output in self._outputs
            if output.name in self.layout
            and isinstance(output.field, Image)
            and self.layout[output.name].dtype == np.uint8
        )

    def channels_last(self, name: str) -> bool:
        """Say whether an output is a picture with its channels as the last axis."""
        return any(o.name == name and isinstance(o.field, Image) for o in self._outputs)

    def is_bfloat16(self, name: str) -> bool:
        """Say whether the memory of an output holds bfloat16, which numpy calls uint16."""
        return any(
            o.name == name and o.normalize is not None and o.normalize.dtype == "bfloat16"
            for o in self._outputs
        )

    @property
    def pictures(self) -> list[str]:
        """Outputs that a device may decode: pictures whose rows have one shape, of 8 bits."""
        return [output.name for output, _ in self._pictures]

    def defer(
        self,
        sources: Mapping[str, memoryview | None],
        *,
        draw: tuple[int, int, int],
        side: DeviceSide,
    ) -> dict[str, Deferred] | None:
        """Return a sample's `pictures` for a device to decode; None if one is not for it."""
        left: dict[str, Deferred] = {}
        for output, field in self._pictures:
            there = (sources.get(name) for name in field.names)
            data = next((one for one in there if one is not None), None)
            leader = left[output.leader].window if output.leader in left else None
            if data is None or (output.leader is not None and leader is None):
                return None
            window_of = self._window_of(output, draw, leader)
            try:
                found = defer_image(data, field, window_of, side)
            except FastfeedError:  # the CPU says it again, with all that belongs to it
                return None
            if found is None:
                return None
            left[output.name] = found
        return left

    @staticmethod
    def _window_of(
        output: Output, draw: tuple[int, int, int], leader: Window | None
    ) -> Callable[[int, int], Window]:
        """Return the function that gives a picture's window once its size is known."""

        def window_of(height: int, width: int) -> Window:
            if leader is not None:
                return same_window(leader, height, width)
            field = cast("Image | Mask", output.field)
            return draw_window(field.transforms, height, width, Draw(draw, output.name))

        return window_of

    def decode(
        self,
        sources: Mapping[str, memoryview | None],
        *,
        draw: tuple[int, int, int],
        rows: Mapping[str, NDArray[Any]],
        left: Mapping[str, Deferred] = _NOTHING_LEFT,
    ) -> dict[str, Any]:
        """Decode one sample: outputs of `layout` into `rows`, the others returned by name.

        `draw` is (seed, epoch, sample); outputs that are `left` to a device are passed over.
        Raises MissingFieldError and DecodeError with the field.
        """
        values: dict[str, Any] = {}
        windows = {name: picture.window for name, picture in left.items()}
        for output in self._outputs:
            if output.name in left:
                continue
            source, data = _find(output, sources, self._keeper)
            with located(field=source):
                value = self._value(output, data, draw, rows.get(output.name), windows)
            if output.name in self.layout:
                if not isinstance(output.field, Image):
                    rows[output.name][...] = value
            else:
                values[output.name] = value
        return values

    def _value(
        self,
        output: Output,
        data: memoryview,
        draw: tuple[int, int, int],
        row: NDArray[Any] | None,
        windows: dict[str, Window],
    ) -> Any:
        field = output.field
        if isinstance(field, Image | Mask):
            draw_one = self._window_of(output, draw, windows.get(output.leader or ""))

            def window_of(height: int, width: int) -> Window:
                windows[output.name] = window = draw_one(height, width)
                return window

            return self._picture(output, data, window_of, row)
        if isinstance(field, Boxes):
            boxes = decode_coordinates(data, 4)
            return move_boxes(boxes, windows[field.like], field.format)
        if isinstance(field, Keypoints):
            return move_points(decode_coordinates(data, 2), windows[field.like])
        if isinstance(field, Array):
            return _checked(decode_array(data), field)
        return _PLAIN[type(field)](data)

    def _picture(
        self,
        output: Output,
        data: memoryview,
        window_of: Callable[[int, int], Window],
        row: NDArray[Any] | None,
    ) -> NDArray[Any]:
        field, keeper = output.field, self._keeper
        if isinstance(field, Mask):
            if keeper is None:
                return cut_mask(mask_pixels(data, field), window_of)
            return cut_mask(keeper.mask(data, field, self._recipes[output.name]), window_of)
        field = cast("Image", field)
        if keeper is None:
            part = decode_part(data, field, window_of, self._decoders)
        else:
            part = keeper.part(data, field, window_of, self._recipes[output.name])
        return deliver(part, field, out=row, normalize=output.normalize)


_PLAIN: dict[type[Field], Callable[[memoryview], Any]] = {
    Int: decode_int,
    Float: decode_float,
    Text: decode_text,
    Json: decode_json,
    Bytes: bytes,
}


def compile_fields(
    fields: Mapping[str, Field],
    *,
    jpeg_decoders: Sequence[str] = JPEG_DECODERS,
    held: Collection[str] = (),
    keeper: Keeper | None = None,
) -> SampleDecoder:
    """Return the decoder of a sample's fields; OptionError if they do not fit together."""
    return SampleDecoder(fields, jpeg_decoders=jpeg_decoders, held=held, keeper=keeper)


def _recipes(fields: Mapping[str, Field], decoders: Sequence[str]) -> dict[str, Recipe]:
    """Return how each picture is decoded, so far as it is the same in every epoch."""
    recipes = {}
    for name, field in fields.items():
        if isinstance(field, Image | Mask):
            leader = field if field.like is None else cast("Image | Mask", fields[field.like])
            recipes[name] = recipe_of(field, leader.transforms, decoders)
    return recipes


def without_normalize(
    fields: Mapping[str, Field],
) -> tuple[dict[str, Field], dict[str, Normalize]]:
    """Return the fields with pictures of a fixed size left as uint8, and what they then lack."""
    layout = compile_fields(fields).layout
    bare: dict[str, Field] = dict(fields)
    normalize: dict[str, Normalize] = {}
    for name, field in fields.items():
        if not isinstance(field, Image) or name not in layout or field.dtype != "uint8":
            continue
        if field.transforms and isinstance(field.transforms[-1], Normalize):
            normalize[name] = field.transforms[-1]
            bare[name] = Image(
                field.names,
                *field.transforms[:-1],
                mode=field.mode,
                dtype=field.dtype,
                exif=field.exif,
                like=field.like,
                max_pixels=field.max_pixels,
                truncated=field.truncated,
            )
    return bare, normalize


def _find(
    output: Output, sources: Mapping[str, memoryview | None], keeper: Keeper | None
) -> tuple[str, memoryview]:
    if keeper is not None and isinstance(output.field, Array):
        unpacking = keeper.unpacked
    else:  # the picture made of it is kept, and of other kinds unpacking is the lesser part
        unpacking = unpack
    for name in output.field.names:
        data = sources.get(name)
        if data is not None:
            as_is = isinstance(output.field, Bytes) or not name.endswith(PACKED)
            return name, data if as_is else _unpacked(name, data, unpacking)
        data = sources.get(name + PACKED)
        if data is not None:
            return name + PACKED, _unpacked(name + PACKED, data, unpacking)
    asked = " or ".join(f"`{name}`" for name in output.field.names)
    there = ", ".join(f"`{name}`" for name, data in sources.items() if data is not None)
    raise MissingFieldError(
        f"the sample has no field {asked}; of those asked for it has {there or 'none'}",
        field=output.field.names[0],
        way_out="Pack the field, name an alternative, or use on_error='skip'",
    )


def _unpacked(
    name: str, data: memoryview, unpacking: Callable[[memoryview], memoryview]
) -> memoryview:
    with located(field=name):
        return unpacking(data)


def _checked(value: Any, field: Array) -> Any:
    if field.shape is None:
        return value
    if not isinstance(value, np.ndarray) or value.shape != field.shape:
        raise DecodeError(
            f"an array of shape {getattr(value, 'shape', None)}, not {field.shape} as declared"
        )
    if value.dtype.newbyteorder("=") != np.dtype(field.dtype).newbyteorder("="):
        raise DecodeError(f"an array of {value.dtype}, not {field.dtype} as declared")
    return value
