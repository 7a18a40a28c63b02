"""Free space of a region: nothing is lent twice, everything comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.slots.extents import ALIGNMENT, LARGE, PAGE, Extent, Extents


@pytest.mark.parametrize("capacity", [40 * ALIGNMENT, 4 * LARGE])
@given(data=st.data())
def test_lent_pieces_never_overlap_and_all_space_comes_back(capacity, data):
    """Random takes and gives: pieces are disjoint, sums are right, and at the end all is free."""
    moves = data.draw(
        st.lists(st.tuples(st.booleans(), st.integers(0, capacity // 4)), max_size=60)
    )
    extents, lent = Extents(capacity), []
    for take, number in moves:
        if take or not lent:
            piece = extents.take(number)
            if piece is not None:
                assert piece.stop - piece.start >= number
                assert number < LARGE or piece.start % PAGE == 0
                assert all(piece.stop <= a.start or a.stop <= piece.start for a in lent)
                lent.append(piece)
        else:
            extents.give(lent.pop(number % len(lent)))
        assert extents.free == extents.capacity - sum(a.stop - a.start for a in lent)
    for piece in lent:
        extents.give(piece)
    assert extents.take(extents.capacity) == Extent(0, extents.capacity)


def test_lowest_address_first():
    """A returned low piece is lent again before untouched memory is."""
    extents = Extents(10 * ALIGNMENT)
    first, _ = extents.take(64), extents.take(64)
    extents.give(first)
    assert extents.take(64) == first


@pytest.mark.parametrize("extent", [(0, 64), (64, 128), (640, 704), (128, 64)])
def test_giving_what_is_not_lent_is_an_error(extent):
    """Free space, space outside and backward pieces are refused."""
    extents = Extents(10 * ALIGNMENT)
    extents.give(extents.take(64))
    with pytest.raises(ValueError, match="not lent"):
        extents.give(Extent(*extent))


def test_full_is_none():
    """A request beyond the space is answered at once."""
    extents = Extents(2 * ALIGNMENT)
    assert extents.take(3 * ALIGNMENT) is None
    assert Extents(0).take(1) is None
