"""Merging ranges: every byte is there, few requests, no more waste than allowed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.reading.ranges import merge


def merged(*ranges, gap=0):
    offsets, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
    runs = merge(offsets, sizes, gap=gap)
    return list(zip(runs.offsets.tolist(), runs.sizes.tolist(), strict=True)), runs.places.tolist()


def test_touching_and_near_ranges_become_one():
    """Ranges at most `gap` apart are one request, one byte more makes two."""
    assert merged((0, 10), (10, 10)) == ([(0, 20)], [0, 10])
    assert merged((0, 10), (15, 5), gap=5) == ([(0, 20)], [0, 15])
    assert merged((0, 10), (16, 5), gap=5) == ([(0, 10), (16, 5)], [0, 10])


def test_order_overlap_and_repeats():
    """Ranges in any order keep their places; shared bytes are read once."""
    assert merged((50, 10), (0, 10)) == ([(0, 10), (50, 10)], [10, 0])
    assert merged((0, 100), (10, 5), (90, 20)) == ([(0, 110)], [0, 10, 90])
    assert merged((5, 5), (5, 5)) == ([(5, 5)], [0, 0])


def test_a_long_range_hides_short_ones():
    """After a range that ends within a longer one, the longer one still counts."""
    assert merged((0, 100), (10, 1), (99, 5)) == ([(0, 104)], [0, 10, 99])


def test_nothing_and_empty_ranges():
    """No ranges give no requests; empty ranges have a place but need no bytes."""
    assert merged() == ([], [])
    runs, places = merged((5, 0), (100, 3))
    assert sum(size for _, size in runs) == 3
    assert places == [0, 0]


def test_c07_offsets_beyond_32_bits():
    """Positions are 64-bit."""
    far = 2**40
    assert merged((far, 10), (far + 10, 2**33)) == ([(far, 2**33 + 10)], [0, 10])


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=30),
    st.integers(0, 50),
)
def test_every_range_is_in_the_buffer(ranges, gap):
    """Reading the runs one after the other puts each range's bytes at its place."""
    file = np.random.default_rng(0).bytes(600)
    runs, places = merged(*ranges, gap=gap)
    buffer = b"".join(file[offset : offset + size] for offset, size in runs)
    for (offset, size), place in zip(ranges, places, strict=True):
        assert buffer[place : place + size] == file[offset : offset + size]
    for (offset, size), (following, _) in pairwise(runs):
        assert following > offset + size + gap
    assert len(buffer) <= sum(size for _, size in ranges) + gap * len(ranges)
