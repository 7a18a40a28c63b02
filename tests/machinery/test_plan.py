"""The order of samples: a permutation, shuffled inside windows, another one each epoch."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.plan import Blocks, Permutation, Plan, substitute


def plan_of(counts, *, window=1 << 40, seed=0, epoch=0, size=100, blocks=None):
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), len(counts))
    return Plan(starts, sizes, window, seed, epoch, blocks)


def order_of(plan):
    return np.concatenate([*plan.order(), np.empty(0, dtype=np.int64)])


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 600), st.integers(0, 2**70))
def test_order_is_a_permutation(counts, window, seed):
    """Every sample comes exactly once, whatever the shards, the window and the seed."""
    order = order_of(plan_of(counts, window=window, seed=seed))
    assert sorted(order.tolist()) == list(range(sum(counts)))


SHARDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), max_size=12)
BLOCKS = st.builds(Blocks, st.integers(60, 900), st.integers(200, 5000))


@settings(max_examples=60, deadline=None)
@given(SHARDS, st.integers(500, 9000), BLOCKS, st.integers(0, 2**70))
def test_order_of_blocks_is_a_permutation(shards, window, blocks, seed):
    """Every sample comes exactly once and in its window, whatever the blocks and groups."""
    counts, sizes = ([shard[i] for shard in shards] for i in (0, 1))
    plan = plan_of(counts, size=sizes, window=window, seed=seed, blocks=blocks)
    order = order_of(plan)
    assert sorted(order.tolist()) == list(range(sum(counts)))
    held = np.searchsorted(plan.starts, order, side="right") - 1
    for shards_in in plan.windows():
        mine, held = np.split(held, [sum(counts[shard] for shard in shards_in)])
        assert set(mine.tolist()) <= set(shards_in.tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.sampled_from([300, 500, 900]), st.integers(1000, 9000))
def test_groups_are_bounded_and_even(shards, block, group):
    """A group exceeds its size by less than a block, and no last one is a small rest."""
    plan = plan_of([90] * shards, size=9000, blocks=Blocks(block, group))
    groups = [int(counts.sum()) * 100 for _, counts in plan._groups()]
    assert sum(groups) == 9000 * shards
    assert max(groups) < group + block
    assert min(groups) > 9000 * shards / -(-9000 * shards // group) - block - len(groups)


def test_a_group_mixes_blocks_of_the_whole_window():
    """Blocks come from everywhere in the window, samples of a batch from nearly all of a group."""
    blocks = Blocks(2000, 64_000)
    plan = plan_of([200] * 100, size=20_000, blocks=blocks)
    order = order_of(plan)
    assert abs(np.corrcoef(np.arange(len(order)), order)[0, 1]) < 0.1
    shards = (order // 200).reshape(-1, 625)
    assert np.mean([len(np.unique(group)) for group in shards]) > 25
    batches = (order // 20)[: len(order) // 64 * 64].reshape(-1, 64)
    # Of 32 blocks, 64 draws meet 28 by chance.
    assert np.mean([len(np.unique(batch)) for batch in batches]) > 26
    # A sample's neighbour in the order is its neighbour in the shard no oftener than by chance.
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.005


def test_a_window_of_one_group_is_shuffled_as_a_whole():
    """Where all of a window fits a group, no two samples stay together."""
    order = order_of(plan_of([100] * 40, size=1000, blocks=Blocks(500, 40_000)))
    batches = (order // 100)[:3968].reshape(-1, 64)
    assert np.mean([len(np.unique(batch)) for batch in batches]) > 29


def test_epochs_put_other_blocks_together():
    """Two epochs share hardly more of a group than chance gives."""
    plans = (
        plan_of([200] * 100, size=20_000, blocks=Blocks(2000, 64_000), epoch=e) for e in (0, 1)
    )
    first, second = (order_of(plan)[:640] // 20 for plan in plans)
    assert len(set(first.tolist()) & set(second.tolist())) < 10


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


def test_order_of_blocks_never_changes_between_versions():
    """The same for blocks, which compressed shards are shuffled in."""
    plan = plan_of([70, 0, 130, 5], window=200, seed=3, epoch=2, blocks=Blocks(10, 60))
    digest = hashlib.sha256(order_of(plan).astype("<i8").tobytes()).hexdigest()[:16]
    assert digest == "63fe5077d59f8bc8"


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_substitutes_stay_in_range_and_vary(count):
    """Substitutes are samples of the data set, the same when asked again."""
    found = [substitute(5, count=count, seed=1, epoch=0, attempt=a) for a in range(16)]
    assert all(0 <= index < count for index in found)
    assert found == [substitute(5, count=count, seed=1, epoch=0, attempt=a) for a in range(16)]
    if count == 1000:
        assert len(set(found)) > 10


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_every_place_is_reached_once(count, key):
    """A permutation leaves nothing out, whatever the range and the key."""
    found = Permutation(count, key=np.uint64(key)).of(np.arange(count))
    assert sorted(found.tolist()) == list(range(count))


@pytest.mark.parametrize(("count", "keys"), [(4, 1200), (128, 4800)])
def test_permutations_are_even(count, keys):
    """Over many keys each of the orders of four places comes about as often as any other."""
    seen = {}
    for key in range(keys):
        places = Permutation(count, key=np.uint64(key)).of(np.arange(4))
        order = tuple(np.argsort(places).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    wanted = keys / 24
    assert max(abs(found - wanted) for found in seen.values()) < 5 * wanted**0.5


def test_long_windows_come_in_pieces():
    """The order of millions of samples begins without computing all of it."""
    first = next(plan_of([3_000_000, 2_000_000]).order())
    assert len(first) < 100_000
    assert len(np.unique(first)) == len(first)


def test_blocks_of_a_large_window_come_in_pieces_too():
    """Of ten million samples in a thousand shards only the blocks of a window are laid out."""
    plan = plan_of([10_000] * 1000, size=25 << 20, window=4 << 30, blocks=Blocks(2 << 20, 64 << 20))
    first = next(plan.order())
    assert len(first) < 100_000
    assert len(np.unique(first)) == len(first)
