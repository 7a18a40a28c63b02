"""The order of samples: a permutation, shuffled inside windows, another one each epoch."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.plan import Plan, permute, substitute


def plan_of(counts, *, window=1 << 40, seed=0, epoch=0, size=100):
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Plan(starts, np.full(len(counts), size, dtype=np.int64), window, seed, epoch)


def order_of(plan):
    return np.concatenate([*plan.order(), np.empty(0, dtype=np.int64)])


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 600), st.integers(0, 2**70))
def test_order_is_a_permutation(counts, window, seed):
    """Every sample comes exactly once, whatever the shards, the window and the seed."""
    order = order_of(plan_of(counts, window=window, seed=seed))
    assert sorted(order.tolist()) == list(range(sum(counts)))


def test_windows_bound_the_shards_in_use():
    """A window holds the shards that begin within its bytes, and samples do not leave it."""
    plan = plan_of([10] * 9, window=300)
    windows = plan.windows()
    assert [len(window) for window in windows] == [3, 3, 3]
    for window, order in zip(windows, plan.order(), strict=True):
        assert set((order // 10).tolist()) == set(window.tolist())


def test_c52_epochs_and_seeds_differ_and_repeat():
    """Epochs 0, 1, 2 and seeds differ from each other; the same pair gives the same order."""
    orders = {
        (seed, epoch): tuple(order_of(plan_of([50, 50], seed=seed, epoch=epoch)).tolist())
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len(set(orders.values())) == 6
    assert tuple(order_of(plan_of([50, 50], seed=1, epoch=2)).tolist()) == orders[1, 2]


def test_c55_shuffle_mixes():
    """Neighbours are far apart: no rank correlation, and batches draw from many shards."""
    order = order_of(plan_of([100] * 100))
    correlation = np.corrcoef(np.arange(len(order)), order)[0, 1]
    assert abs(correlation) < 0.05
    batches = (order // 100)[: len(order) // 64 * 64].reshape(-1, 64)
    assert np.mean([len(np.unique(batch)) for batch in batches]) > 20


def test_order_never_changes_between_versions():
    """A stored digest: a change of the order breaks every resumed run."""
    order = order_of(plan_of([7, 0, 13, 5], window=200, seed=3, epoch=2))
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16] == "3d9a87ab8b3cd461"


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_substitutes_stay_in_range_and_vary(count):
    """Substitutes are samples of the data set, the same when asked again."""
    found = [substitute(5, count=count, seed=1, epoch=0, attempt=a) for a in range(16)]
    assert all(0 <= index < count for index in found)
    assert found == [substitute(5, count=count, seed=1, epoch=0, attempt=a) for a in range(16)]
    if count == 1000:
        assert len(set(found)) > 10


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation(count, key):
    """Every place is reached once, whatever the range and the key."""
    found = permute(np.arange(count), count, key=np.uint64(key))
    assert sorted(found.tolist()) == list(range(count))


def test_permute_is_even():
    """Over many keys each of the orders of four comes about as often as any other."""
    seen = {}
    for key in range(4800):
        found = tuple(permute(np.arange(4), 4, key=np.uint64(key)).tolist())
        seen[found] = seen.get(found, 0) + 1
    assert len(seen) == 24
    assert max(abs(count - 200) for count in seen.values()) < 70


def test_long_windows_come_in_pieces():
    """The order of millions of samples begins without computing all of it."""
    first = next(plan_of([3_000_000, 2_000_000]).order())
    assert len(first) < 100_000
    assert len(np.unique(first)) == len(first)
