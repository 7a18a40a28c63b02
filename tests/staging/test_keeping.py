"""What a shelf smaller than the data set keeps, and what a process holds open of it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fastfeed.readahead import InOrder, ReadAhead
from fastfeed.staging.eviction import hits_at_best, hits_by_recency


def run_epochs(shards, epochs, *, settle):
    """Read some epochs, with the stager at rest after every window; return the bytes from afar."""
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
    for epoch in range(epochs):
        seen = []
        for window in shards.plan(epoch).windows():
            ahead.follow(window * 10, epoch)
            ahead.arrived()
            settle(shards.staged)
            for shard in window:
                seen += [shards.sample(shard * 10 + row) for row in range(10)]
        assert sorted(seen) == list(range(10 * shards.shard_count))
    ahead.close()
    return shards.far.count()


def test_half_a_data_set_is_kept_as_well_as_can_be(make_shards, settle):
    """A real shelf of half the data set fetches what the optimum would, within 2 points."""
    epochs, count = 4, 60
    shards = make_shards(count, room=count // 2, window=2)
    fetched = run_epochs(shards, epochs, settle=settle)
    accesses = [int(i) for e in range(epochs) for w in shards.plan(e).windows() for i in w]
    served = len(accesses) - sum(fetched.values()) / shards.sources[0].size
    best = hits_at_best(accesses, count // 2)
    assert served / len(accesses) >= best / len(accesses) - 0.02
    assert hits_by_recency(accesses, count // 2) < 0.6 * best


@pytest.mark.parametrize("room", [1, 2, 4])
def test_c29_a_small_shelf_fetches_nothing_twice(make_shards, settle, room):
    """With a tenth of the room and less, an epoch takes no byte from afar twice but in its start.

    Shards are staged once at most; the ranges of what finds no room are read as they are used.
    """
    shards = make_shards(40, room=room, window=2)
    fetched = run_epochs(shards, 1, settle=settle)
    size = shards.sources[0].size
    assert max(fetched.values()) <= size + 10 * 110
    entry = {f"{n:03d}.tar" for n in shards.plan(0).windows()[0]}
    assert all(fetched[name] <= size for name in set(fetched) - entry)


def test_what_is_held_is_let_go(make_shards, settle, make_shelf):
    """Past windows are let go, so that they may be evicted; without a plan only a few are held."""
    shards = make_shards(8, room=8, window=1)
    ahead = ReadAhead(shards, lambda _: InOrder(8), worker=0, workers=1, staged=shards.staged)
    for index in range(80):
        ahead.follow(np.array([index]), 0)
        ahead.arrived()
        settle(shards.staged)
        shards.sample(index)
        assert len(shards.staged._held) <= 2
    ahead.close()
    assert not any(shard._file for shard in shards.open)
    for index in range(80):
        shards.sample(index)
        assert sum(shard._file is not None for shard in shards.open) <= 4


def test_few_files_are_held_however_many_shards_a_window_has(make_shards, settle, monkeypatch):
    """Windows of more shards than may be open keep those used last, and read all from the shelf."""
    monkeypatch.setattr("fastfeed.staging.staged._HELD", 3)
    shards = make_shards(8, room=8, window=8)
    shards.staged.expect([source.url for source in shards.sources])
    shards.staged.reached(0, window=8, zone=8)
    settle(shards.staged)
    for index in range(0, 80, 5):
        shards.sample(index)
        assert sum(shard._file is not None for shard in shards.open) <= 3
    assert shards.open[7].is_near()
    assert shards.staged.counts().far_bytes == 0
    shards.staged.close()


def test_what_others_evict_is_noticed_within_a_second(make_shards, settle, make_shelf):
    """With all there a move costs no look; the next look in time finds what is gone."""
    shards = make_shards(4, room=9, window=1)
    names = [source.url for source in shards.sources]
    shards.staged.expect(names + names)
    for place in (0, 1):
        shards.staged.reached(place, window=1, zone=1)
        settle(shards.staged)
    make_shelf().discard(shards.sources[3])
    follower = shards.staged._follower
    for next_look, is_there in ((time.monotonic() + 60, False), (0, True)):
        follower._next_look = next_look
        shards.staged.reached(2, window=1, zone=1)
        settle(shards.staged)
        assert (shards.sources[3] in make_shelf()) is is_there
    shards.staged.close()
