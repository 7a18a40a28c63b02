"""Region, writer and lender together, in one process."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from fastfeed.collating.collate import HeapWriter
from fastfeed.slots.lease import Lender
from fastfeed.slots.region import Region
from fastfeed.slots.writer import SlotWriter

MIB = 1 << 20


@pytest.fixture
def region():
    """A region of four MiB."""
    region = Region(4 * MIB)
    yield region
    region.close_descriptor()


def make(writer, *shapes):
    writer.begin()
    arrays = [writer.empty(shape, np.float32) for shape in shapes]
    for number, array in enumerate(arrays):
        array[...] = number
    return arrays


def lend(lender, writer, arrays):
    places = [writer.place_of(a.__array_interface__["data"][0], a.nbytes) for a in arrays]
    lease = lender.open(writer.commit())
    tensors = [
        torch.from_numpy(lease.array(a.shape, a.dtype, place))
        for a, place in zip(arrays, places, strict=True)
    ]
    lease.seal()
    return tensors


def test_both_sides_see_the_same_memory(region):
    """What the writer writes is what the lender's tensors hold, and the other way round."""
    writer, lender = SlotWriter(region), Lender(region)
    arrays = make(writer, (3, 5), (7,))
    tensors = lend(lender, writer, arrays)
    assert tensors[1].tolist() == [1.0] * 7
    tensors[0][0, 0] = 9
    assert arrays[0][0, 0] == 9


def test_c49_a_batch_is_lent_until_its_last_view_died(region):
    """Views, slices, numpy arrays and lists keep the extents; the last one's death frees them."""
    writer, lender = SlotWriter(region), Lender(region)
    arrays = make(writer, (100,), (100,))
    a, b = lend(lender, writer, arrays)
    view = a[10:20].numpy()[2:]
    del a
    assert lender.returned() == []
    del b
    assert lender.returned() == []
    assert lender.lent == 1
    del view, arrays
    freed = lender.returned()
    assert freed
    assert lender.lent == 0
    writer.give_back(freed)
    assert writer._extents.free == region.capacity


def test_cycles_are_freed_by_the_collector(region):
    """A tensor in a reference cycle keeps its batch until the garbage collector runs."""
    writer, lender = SlotWriter(region), Lender(region)
    (tensor,) = lend(lender, writer, make(writer, (100,)))
    loop = [tensor]
    loop.append(loop)
    del tensor, loop
    gc.collect()
    assert lender.returned()


def test_saving_a_tensor_saves_only_itself(region):
    """Each tensor has a storage of its own size."""
    writer, lender = SlotWriter(region), Lender(region)
    small, _ = lend(lender, writer, make(writer, (4,), (10_000,)))
    assert small.untyped_storage().nbytes() == 16


def test_steady_batches_use_the_same_pages(region):
    """Batch after batch lands in the same extent once its predecessor is gone."""
    writer, lender = SlotWriter(region), Lender(region)
    starts = set()
    for _ in range(50):
        tensors = lend(lender, writer, make(writer, (1000,), (10,), (300,)))
        starts.add(tensors[0].data_ptr())
        del tensors
        writer.give_back(lender.returned())
    assert len(starts) == 1


def test_full_region_gives_private_memory(region):
    """The writer never waits: beyond the region it gives ordinary memory and counts it."""
    writer = SlotWriter(region)
    inside, outside = make(writer, (MIB // 2,), (MIB,))
    assert writer.place_of(inside.__array_interface__["data"][0], inside.nbytes) is not None
    assert writer.place_of(outside.__array_interface__["data"][0], outside.nbytes) is None
    assert writer.spilled == outside.nbytes


def test_uncommitted_batches_leave_nothing(region):
    """A batch that failed half-way gives its memory back at the next begin."""
    writer = SlotWriter(region)
    for _ in range(20):
        make(writer, (100_000,), (200_000,))
    writer.begin()
    assert writer._extents.free == region.capacity


def test_empty_arrays_need_no_memory(region):
    """Arrays of no elements are ordinary ones."""
    writer = SlotWriter(region)
    writer.begin()
    assert writer.empty((0, 3), np.uint8).shape == (0, 3)
    assert writer.commit() == []


def test_memory_outlives_region_and_descriptor():
    """Tensors stay valid when the region is dropped and its descriptor closed; then it is gone."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    region = Region(MIB)
    writer, lender = SlotWriter(region), Lender(region)
    (tensor,) = lend(lender, writer, make(writer, (1000,)))
    region.close_descriptor()
    del region, writer, lender
    gc.collect()
    assert tensor.sum() == 0
    tensor.fill_(3)
    del tensor
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_a_worker_keeps_is_not_overwritten(region):
    """A tensor that a collate function stored in the worker keeps its memory out of use."""
    writer, lender = SlotWriter(region), Lender(region)
    kept = make(writer, (100,))
    del lend(lender, writer, kept)[:]
    writer.give_back(lender.returned())
    assert writer._extents.free < region.capacity
    kept.clear()
    writer.give_back([])
    assert writer._extents.free == region.capacity


def test_large_pieces_begin_at_a_page_and_steady_batches_keep_one_extent(region):
    """A large piece after a small one begins at a page; its batches still take one extent each."""
    writer, lender = SlotWriter(region), Lender(region)
    for number in range(5):
        arrays = make(writer, (10,), (MIB // 4,), (3,), (MIB // 4 + 1,))
        addresses = [a.__array_interface__["data"][0] for a in arrays]
        assert addresses[1] % 4096 == addresses[3] % 4096 == 0
        assert not writer.spilled
        assert number < 2 or len(writer._taken) == 1  # the second one learns the gaps
        tensors = lend(lender, writer, arrays)
        del arrays, tensors
        writer.give_back(lender.returned())


@pytest.mark.parametrize("shape", [(), (3,), (MIB,), (MIB // 2, 3), (0, MIB)])
def test_large_memory_of_the_heap_begins_at_a_page(shape):
    """Without workers large arrays lie at pages too, with their shape and type."""
    array = HeapWriter().empty(shape, np.int16)
    array[...] = 1
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.int16, True)
    assert array.nbytes < MIB or array.__array_interface__["data"][0] % 4096 == 0
