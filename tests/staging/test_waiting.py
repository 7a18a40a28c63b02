"""When a reader waits for a shard that somebody brings, and when it reads it from afar."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import contextmanager

import pytest

from fastfeed.readahead import ReadAhead
from fastfeed.staging.shelf import Shelf
from fastfeed.staging.stager import Stager


def test_the_first_batch_waits_for_no_shard(make_shards, far):
    """With a stager that gets nothing, the samples of the first window come from afar at once."""
    shards = make_shards(4, room=9)
    stuck, go_on = threading.Event(), threading.Event()

    def hook(verb, name):
        if verb == "read" and threading.current_thread().name.startswith("fastfeed-stage"):
            stuck.set()
            go_on.wait()

    far.hook = hook
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
    batch = shards.order(0)[:8]
    ahead.follow(batch, 0)
    ahead.arrived()
    assert stuck.wait(30)
    for index in batch:
        shards.sample(index)
    assert shards.staged.counts().far_bytes == 8 * 110
    go_on.set()
    ahead.close()


def test_staging_begins_when_the_first_batch_has_arrived(make_shards, far):
    """The first batch has the link for itself; a second one that comes without it ends that."""
    for arrives in (True, False):
        shards = make_shards(4, room=9)
        ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
        ahead.follow(shards.order(0)[:8], 0)
        assert shards.staged._follower._stager is None
        if arrives:
            ahead.arrived()
        else:
            ahead.follow(shards.order(0)[8:16], 0)
        assert shards.staged._follower._stager is not None
        ahead.close()


def test_later_windows_wait_instead_of_reading_twice(make_shards, far):
    """A shard that somebody brings is waited for, and then read from the shelf."""
    shards = make_shards(4, room=9, window=1)
    order = [int(window[0]) for window in shards.plan(0).windows()]
    second = order[1]
    stuck, go_on = threading.Event(), threading.Event()

    def hook(verb, name):
        bringing = threading.current_thread().name.startswith("fastfeed-stage")
        if bringing and (verb, name) == ("read", f"{second:03d}.tar"):
            stuck.set()
            go_on.wait()

    far.hook = hook
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
    ahead.follow(shards.order(0)[:10], 0)
    ahead.arrived()
    assert stuck.wait(30)
    ahead.follow(shards.order(0)[10:20], 0)
    ahead.arrived()
    reader = threading.Thread(target=lambda: shards.sample(second * 10))
    reader.start()
    waits = shards.staged._follower
    assert waits._waits_from == 1
    go_on.set()
    reader.join()
    assert far.count()[f"{second:03d}.tar"] == shards.sources[second].size
    assert shards.staged.counts().far_bytes == 0
    ahead.close()


def test_a_stager_that_lags_is_waited_for(make_shards, far, processes):
    """Readers ahead of the stager let it come up, instead of reading all from afar beside it."""
    start, ends = processes
    shards = make_shards(8, room=9, window=1)
    receiver, sender = os.pipe()
    go, now = os.pipe()

    def stage():
        ahead = ReadAhead(shards, shards.plan, worker=0, workers=2, staged=shards.staged)
        far.hook = lambda verb, name: os.read(go, 1) if verb == "read" else None
        ahead.follow(shards.order(0)[:10], 0)
        ahead.arrived()
        os.write(sender, b"x")
        assert shards.staged._follower._stager.wait(30)
        ahead.close()

    child = start(stage)
    os.read(receiver, 1)
    ahead = ReadAhead(shards, shards.plan, worker=1, workers=2, staged=shards.staged)
    ahead.follow(shards.order(0)[:10], 0)
    ahead.arrived()
    ahead.follow(shards.order(0)[50:60], 0)
    ahead.arrived()
    reading = threading.Thread(target=lambda: shards.sample(shards.order(0)[55]))
    reading.start()
    os.write(now, bytes(20))
    reading.join()
    assert ends(child) == [0]
    assert shards.staged.counts().far_bytes == 0
    ahead.close()
    for end in (receiver, sender, go, now):
        os.close(end)


class Passing(Shelf):
    """A shelf on which each part is done as soon as somebody waits for it."""

    def part_path(self, name):
        self.part.discard()
        return super().part_path(name)


@pytest.fixture
def make_waiting(make_shards, tmp_path):
    """Return shards and a follower that waits for them, on a shelf of such a kind."""

    def make(kind):
        shards = make_shards(4, room=9, window=1)
        shards.staged.expect([source.url for source in shards.sources])
        follower = shards.staged._follower
        follower._waits_from = 0
        follower._shelf = kind(tmp_path / "cache", 1 << 20)
        return shards, follower

    return make


def test_a_shard_left_out_is_not_waited_for(make_waiting):
    """After as many others as could have been before it, a shard is read from afar."""
    shards, follower = make_waiting(Passing)
    shelf = follower._shelf
    waits = 0
    for turn in range(40):
        shelf.part = shelf.reserve(shards.sources[turn % 3])
        waits += follower.wait_for(shards.sources[3], until=follower.deadline())
    shelf.part.discard()
    assert waits == 17
    shards.sample(35)
    assert shards.staged.counts().far_bytes == 110


def test_one_shard_has_one_deadline(make_waiting):
    """However many others are brought before it, a shard is waited for once as long, not each."""
    shards, follower = make_waiting(Passing)
    shelf = follower._shelf
    shelf.part = shelf.reserve(shards.sources[0])
    assert follower.wait_for(shards.sources[3], until=follower.deadline())
    part = shelf.reserve(shards.sources[1])
    assert not follower.wait_for(shards.sources[3], until=0)
    assert follower._waits_from == 0  # the next one is waited for
    part.discard()


class Late(Shelf):
    """A shelf on which a shard arrives between the looks at its file and at its part."""

    def parts(self):
        self.arrive()
        return []


def test_a_shard_done_between_two_looks_is_not_waited_for(make_waiting, far, bring):
    """What came meanwhile is there, however long the stager goes on bringing others."""
    shards, follower = make_waiting(Late)
    stuck, go_on = threading.Event(), threading.Event()

    def hook(verb, name):
        if verb == "read" and threading.current_thread().name.startswith("fastfeed-stage"):
            stuck.set()
            go_on.wait(30)

    far.hook = hook
    follower._stager = Stager(follower._shelf, far.open, threads=1)
    follower._stager.want(shards.sources[1:])
    assert stuck.wait(30)
    follower._shelf.arrive = lambda: bring(follower._shelf, far, shards.sources[0])
    until = time.monotonic() + 5
    assert not follower.wait_for(shards.sources[0], until=until)
    assert time.monotonic() < until
    shards.sample(5)
    assert shards.staged.counts().far_bytes == 0
    go_on.set()


def test_a_part_that_begins_is_no_dead_one(make_waiting, monkeypatch):
    """Who meets a part in the instant before its lock waits for it as for any other."""
    shards, follower = make_waiting(Shelf)
    part = follower._shelf.reserve(shards.sources[1])
    descriptor = part._lock.descriptor
    fcntl.flock(descriptor, fcntl.LOCK_UN)

    @contextmanager
    def alone(folder):
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # its writer was alone, and has it now
        yield

    monkeypatch.setattr("fastfeed.staging.follower.alone", alone)
    assert follower.wait_for(shards.sources[1], until=follower.deadline())
    part.discard()


def test_waiting_for_a_stopped_stager_ends(make_shards, far, make_shelf, caplog):
    """Nobody waits for ever on a part that makes no progress: it is told once, and read past."""
    shards = make_shards(4, room=9, window=1)
    order = [int(window[0]) for window in shards.plan(0).windows()]
    part = make_shelf().reserve(shards.sources[order[1]])  # and nothing ever comes
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
    ahead.follow(shards.order(0)[:10], 0)
    ahead.arrived()
    shards.staged._follower._patience = 0.05
    for turn in (1, 1):
        ahead.follow(shards.order(0)[10 * turn : 10 * turn + 10], 0)
        ahead.arrived()
        shards.sample(order[turn] * 10)
    assert caplog.text.count("not waiting for staging any more") == 1
    assert f"process {os.getpid()}" in caplog.text
    part.discard()
    ahead.close()


def test_a_dead_part_is_not_waited_for(make_shards, far):
    """A part that nobody holds stops no reader, even before it is swept."""
    shards = make_shards(4, room=9, window=1)
    order = [int(window[0]) for window in shards.plan(0).windows()]
    source = shards.sources[order[1]]
    shards.staged._follower = None
    shards.staged.expect([shards.name(n) for n in order])
    follower = shards.staged._follower
    follower._waits_from, follower._place = 0, 0
    (shards.staged._shelf.folder / f"{source.name}.0123456789abcdef.part").touch()
    assert not follower.wait_for(source, until=follower.deadline())
    shards.sample(order[1] * 10)
    assert shards.staged.counts().far_bytes == 110
