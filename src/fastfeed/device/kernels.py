"""The two kernels of the device, in Triton: cut, resize and turn pictures; normalise a batch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917, D103, N803

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 15
"""Numbers of each picture that `cut` is told; see `fastfeed.device.cut`."""


@triton.jit
def cut(addresses, table, out, height, width, CHANNELS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    # One program makes BLOCK neighbouring pixels of one row of the batch, all channels of each, so
    # that what it writes is contiguous.
    picture = tl.program_id(1)
    cells = table + picture * 15
    row = tl.load(cells).to(tl.int64)
    box_h, box_w = tl.load(cells + 1), tl.load(cells + 2)
    size_h, size_w = tl.load(cells + 3), tl.load(cells + 4)
    step_y, step_x, step_c = tl.load(cells + 5), tl.load(cells + 6), tl.load(cells + 7)
    yy, yx, y0 = tl.load(cells + 8), tl.load(cells + 9), tl.load(cells + 10)
    xy, xx, x0 = tl.load(cells + 11), tl.load(cells + 12), tl.load(cells + 13)
    source = tl.load(addresses + picture).to(tl.pointer_type(tl.uint8))

    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = pixel < height * width
    y, x = pixel // width, pixel % width
    line = yy * y + yx * x + y0
    column = xy * y + xx * x + x0
    inside = live & (line >= 0) & (line < size_h) & (column >= 0) & (column < size_w)

    # Pillow's bilinear filter: a triangle as wide as a pixel of the result, but two at the least.
    ratio_y = box_h.to(tl.float32) / size_h.to(tl.float32)
    ratio_x = box_w.to(tl.float32) / size_w.to(tl.float32)
    reach_y, reach_x = tl.maximum(ratio_y, 1.0), tl.maximum(ratio_x, 1.0)
    middle_y = (line.to(tl.float32) + 0.5) * ratio_y
    middle_x = (column.to(tl.float32) + 0.5) * ratio_x
    first_y = tl.maximum((middle_y - reach_y + 0.5).to(tl.int32), 0)
    first_x = tl.maximum((middle_x - reach_x + 0.5).to(tl.int32), 0)
    last_y = tl.minimum((middle_y + reach_y + 0.5).to(tl.int32), box_h)
    last_x = tl.minimum((middle_x + reach_x + 0.5).to(tl.int32), box_w)

    channel = tl.arange(0, 4)
    real = channel < CHANNELS
    total = tl.zeros([BLOCK, 4], tl.float32)
    weights = tl.zeros([BLOCK], tl.float32)
    # So many pixels of the source can lie within reach on both sides.
    for turn_y in range(tl.ceil(2.0 * reach_y).to(tl.int32)):
        at_y = first_y + turn_y
        weight_y = tl.maximum(1.0 - tl.abs((at_y.to(tl.float32) + 0.5 - middle_y) / reach_y), 0.0)
        weight_y = tl.where(at_y < last_y, weight_y, 0.0)
        for turn_x in range(tl.ceil(2.0 * reach_x).to(tl.int32)):
            at_x = first_x + turn_x
            weight_x = 1.0 - tl.abs((at_x.to(tl.float32) + 0.5 - middle_x) / reach_x)
            weight = weight_y * tl.where(at_x < last_x, tl.maximum(weight_x, 0.0), 0.0)
            # A picture may be larger than 2 GiB, a line of it is not.
            place = at_y.to(tl.int64) * step_y + at_x * step_x
            value = tl.load(
                source + (place[:, None] + channel[None, :].to(tl.int64) * step_c),
                mask=(inside & (weight > 0.0))[:, None] & real[None, :],
                other=0,
            )
            total += weight[:, None] * value.to(tl.float32)
            weights += weight
    level = total / tl.where(weights > 0.0, weights, 1.0)[:, None]
    target = out + row * height * width * CHANNELS
    tl.store(
        target + (pixel[:, None] * CHANNELS + channel[None, :]),
        tl.minimum(level + 0.5, 255.0).to(tl.uint8),
        mask=live[:, None] & real[None, :],
    )


@triton.jit
def normalize(levels, mean, std, out, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    # The same operations in the same order as on the CPU, each rounded as there.
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = place < count
    channel = (place % CHANNELS).to(tl.int32)
    value = tl.load(levels + place, mask=live, other=0).to(tl.float32)
    value = tl.div_rn(value, 255.0) - tl.load(mean + channel)
    value = tl.div_rn(value, tl.load(std + channel))
    tl.store(out + place, value.to(out.dtype.element_ty), mask=live)


@triton.jit
def _marks_of(cells, CHANNELS: tl.constexpr):
    # Places and values of the marks of one picture, which of them there are, and the same of the
    # guard behind it; see `fastfeed.device.decoders.places`.
    start, pitch, plane = tl.load(cells), tl.load(cells + 1), tl.load(cells + 2)
    height, width = tl.load(cells + 3), tl.load(cells + 4)
    line = tl.arange(0, 16)
    channel, third = line // 4, line % 4
    row = (height - 1) * third // 3
    step = tl.arange(0, 8)
    column = (tl.maximum(width - 8, 0) * (3 - third) // 3)[:, None] + step[None, :]
    column = tl.minimum(column, width - 1)
    place = (start + channel * plane + row * pitch)[:, None] + column
    value = (row[:, None] * 11 + column * 37 + 0xA5) & 0xFF
    live = (channel < CHANNELS)[:, None] & (step >= 0)[None, :]
    return place, value, live, start + plane * CHANNELS + step, (step * 48 + 0xA5) & 0xFF


@triton.jit
def put_marks(memory, table, CHANNELS: tl.constexpr) -> None:
    place, value, live, guard, kept = _marks_of(table + tl.program_id(0) * 5, CHANNELS)
    tl.store(memory + place, value.to(tl.uint8), mask=live)
    tl.store(memory + guard, kept.to(tl.uint8))


@triton.jit
def read_marks(memory, table, seen, CHANNELS: tl.constexpr) -> None:
    place, value, live, guard, kept = _marks_of(table + tl.program_id(0) * 5, CHANNELS)
    same = (tl.load(memory + place, mask=live, other=0).to(tl.int64) == value) & live
    left = tl.max(tl.min(same.to(tl.int32), axis=1), axis=0)
    spilled = tl.max((tl.load(memory + guard).to(tl.int32) != kept).to(tl.int32), axis=0)
    result = seen + tl.program_id(0) * 2
    tl.store(result, left)
    tl.store(result + 1, spilled)
