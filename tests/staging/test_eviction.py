"""What leaves the shelf first, and that nothing could do better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.plan import Plan
from fastfeed.staging.eviction import (
    Kept,
    Upcoming,
    hits_at_best,
    hits_by_recency,
    next_uses,
    order_of_eviction,
)

NAMES = st.sampled_from("abcdefgh")
UPCOMING = st.builds(Upcoming, st.lists(NAMES, max_size=12).map(tuple), zone=st.integers(0, 6))
KEPT = st.lists(
    st.builds(Kept, NAMES, st.integers(1, 9), st.integers(0, 99)), unique_by=lambda one: one.name
)


@given(st.lists(UPCOMING, max_size=3))
def test_the_nearest_use_of_anybody_counts(upcoming):
    """A shard is as far ahead as for the one who needs it first; zones count as nothing ahead."""
    uses = next_uses(upcoming)
    assert set(uses) == {name for one in upcoming for name in one.names}
    for name, ahead in uses.items():
        each = [one.names.index(name) - one.zone + 1 for one in upcoming if name in one.names]
        assert ahead == max(0, min(each))


@given(KEPT, st.lists(UPCOMING, max_size=3), NAMES, st.sets(NAMES))
def test_the_order(kept, upcoming, incoming, keep):
    """Unneeded ones go first, the longest unused of them before; then the furthest, if urgent."""
    uses = next_uses(upcoming)
    order = order_of_eviction(kept, uses, incoming=incoming, keep=keep)
    gone = [one.name for one in order]
    assert len(set(gone)) == len(gone)
    assert not set(gone) & (keep | {incoming})
    needed = [name in uses for name in gone]
    assert needed == sorted(needed)
    ages = [one.last_used for one in order if one.name not in uses]
    assert ages == sorted(ages)
    ahead = [uses[name] for name in gone if name in uses]
    assert ahead == sorted(ahead, reverse=True)
    if uses.get(incoming) != 0:
        assert ahead == []
    assert all(ahead)  # nothing within a zone goes
    unneeded = {one.name for one in kept} - set(uses) - keep - {incoming}
    assert unneeded <= set(gone)


@given(st.lists(st.integers(0, 5), max_size=14), st.integers(1, 5))
def test_the_optimum_is_one(accesses, capacity):
    """No choice of what to keep serves more accesses; found by trying all of them."""
    states = {frozenset(): 0}
    for shard in accesses:
        after = {}
        for shelf, hits in states.items():
            now = hits + (shard in shelf)
            held = shelf | {shard}
            drops = held if len(held) > capacity else [None]
            for drop in drops:
                rest = held - {drop}
                after[rest] = max(now, after.get(rest, 0))
        states = after
    assert hits_at_best(accesses, capacity) == max(states.values())
    assert hits_by_recency(accesses, capacity) <= max(states.values())


def windows_of(shards, per_window, epochs, *, seed=0):
    """Return the windows of some epochs as the plan makes them."""
    starts, sizes = np.arange(shards + 1) * 10, np.full(shards, 100)
    return [
        [window.tolist() for window in Plan(starts, sizes, 100 * per_window, seed, e).windows()]
        for e in range(epochs)
    ]


@pytest.mark.parametrize(("shards", "per_window"), [(200, 1), (100, 1), (200, 4), (592, 16)])
def test_a_half_size_shelf_serves_what_the_optimum_does(shards, per_window):
    """Within 2 points of the optimum for the plan, where dropping the oldest has a third of it."""
    epochs = 5
    plans = windows_of(shards, per_window, epochs + 1)
    capacity = shards // 2
    shelf: set[str] = set()
    brought: set[str] = set()
    hits = 0
    for epoch in range(epochs):
        order = [str(i) for window in plans[epoch] + plans[epoch + 1] for i in window]
        place = 0
        for number, window in enumerate(plans[epoch]):
            zone = sum(map(len, plans[epoch][number : number + 2]))
            uses = next_uses([Upcoming(tuple(order[place:]), zone)])
            for name in order[place:]:
                if name not in shelf:
                    if len(shelf) == capacity:
                        kept = [Kept(one, 1, 0) for one in sorted(shelf)]
                        gone = order_of_eviction(kept, uses, incoming=name)
                        if not gone:
                            break
                        shelf.remove(gone[0].name)
                    shelf.add(name)
                    brought.add(name)
            for name in map(str, window):
                hits += name in shelf and name not in brought
                brought.discard(name)
            place += len(window)
    accesses = [i for plan in plans[:epochs] for window in plan for i in window]
    best = hits_at_best(accesses, capacity) / len(accesses)
    oldest = hits_by_recency(accesses, capacity) / len(accesses)
    assert hits / len(accesses) >= best - 0.02
    assert oldest < best / 2
