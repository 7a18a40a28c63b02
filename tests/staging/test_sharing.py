"""Threads, workers, forks and ranks that share one shelf and one stager."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest

from fastfeed.errors import StorageError
from fastfeed.options import Cache
from fastfeed.readahead import ReadAhead
from fastfeed.staging.folder import MARKER
from fastfeed.staging.shelf import Shelf
from fastfeed.staging.staged import Staged
from fastfeed.staging.stager import THREADS, Stager


def names(folder):
    """The names in a shelf's folder but the marker."""
    return sorted(name for name in os.listdir(folder) if name != MARKER)


class Reader:
    """A thread's own, as it names itself to what all of them share."""


def test_threads_share_one_stager(make_shards, monkeypatch):
    """Threads that come to the first batch together start one stager, and tell one need."""
    shards = make_shards(4, room=9)
    together = threading.Barrier(2)

    class Slow(Stager):
        def __init__(self, *given):
            with suppress(threading.BrokenBarrierError):
                together.wait(0.1)
            super().__init__(*given)

    monkeypatch.setattr("fastfeed.staging.follower.Stager", Slow)
    before = set(threading.enumerate())
    readers = [Reader() for _ in range(3)]

    def begin(reader):
        shards.staged.expect([source.url for source in shards.sources], user=reader)
        shards.staged.reached(0, window=1, zone=2, user=reader)

    threads = [threading.Thread(target=begin, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours = set(threading.enumerate()) - before
    assert sum(one.name.startswith("fastfeed-stage") for one in ours) == THREADS
    folder = shards.staged._shelf.folder
    assert sum(name.endswith(".need") for name in names(folder)) == 1
    for reader in readers:
        assert shards.staged._follower is not None  # it ends with the last of them
        shards.staged.close(user=reader)
    assert not any(one.is_alive() for one in ours)
    assert all(name.endswith(".shard") for name in names(folder))


def test_threads_of_two_epochs(make_shards):
    """The first thread in an epoch begins it; one that lags behind does not move it back."""
    shards = make_shards(4, room=9)
    first, second = Reader(), Reader()
    urls = [source.url for source in shards.sources] * 2
    staged = shards.staged
    for reader in (first, second):
        staged.expect(urls, user=reader)
        staged.reached(2, window=1, zone=1, user=reader)
    follower = staged._follower
    assert follower._place == 2
    staged.expect(urls, user=first)
    staged.reached(0, window=1, zone=1, user=first)
    staged.reached(3, window=1, zone=1, user=second)
    assert follower._place == 0
    staged.expect(urls, user=second)
    assert follower._place == 0
    staged.reached(1, window=1, zone=1, user=second)
    assert follower._place == 1
    staged.close()


def describe_nothing(url):
    """Know nothing of any shard."""
    return


def refuse(url):
    """Open nothing."""
    raise StorageError(f"{url} was asked for")


def test_it_travels_and_forks(tmp_path, far, bring, processes):
    """Pickled or forked it begins anew: no thread, lock or open file goes along."""
    start, ends = processes
    source = far.put("a.tar")
    cache = Cache(tmp_path / "cache", "1MB")
    bring(Shelf(cache.folder, cache.nbytes), far, source)
    staged = Staged(cache, describe=describe_nothing, opener=refuse)
    staged.learn([source])
    held = staged.open(source.url)
    staged.expect([source.url, source.url])
    staged.reached(0, window=1, zone=1)
    assert held.read_at(0, source.size) == far.content(source)

    def child():
        assert held._file is None
        assert held.read_at(0, source.size) == far.content(source)
        assert staged._follower is None
        staged.expect([source.url, source.url])
        staged.reached(0, window=1, zone=1)
        assert staged._follower._stager is None  # the parent is it
        staged.close()

    assert ends(start(child)) == [0]
    copy = pickle.loads(pickle.dumps(staged))
    with copy.open(source.url) as storage:
        assert storage.read_at(0, source.size) == far.content(source)
    assert copy.counts().far_bytes == 0
    staged.close()
    held.close()
    assert names(cache.folder) == [f"{source.name}.shard"]


def test_shards_pickle_with_their_opener(tmp_path, far):
    """The opener of a data set of shards is a bound method that goes to spawned workers."""
    staged = Staged(Cache(tmp_path / "cache", "1MB"), describe=describe_nothing, opener=refuse)
    opener = pickle.loads(pickle.dumps(staged.open))
    with pytest.raises(StorageError, match="was asked for"):
        opener("far://bucket/b.tar")


@pytest.mark.parametrize("seed", range(20))
def test_c16_workers_share_a_shelf_too_small(make_shards, tmp_path, processes, seed):
    """Four processes, room for two of six shards: each reads its samples, all of them are read.

    Which of them is how far is drawn: they hand turns to one another, so that one lags behind.
    """
    start, ends = processes
    shards = make_shards(6, room=2)
    order = shards.order(seed)
    done = tmp_path / "done"
    turns = os.pipe()
    os.write(turns[1], bytes(random.Random(seed).choices(range(4), k=3)))  # three may go at once

    def work(number):
        ahead = ReadAhead(shards, shards.plan, worker=number, workers=4, staged=shards.staged)
        for index in order[number::4]:
            os.read(turns[0], 1)
            ahead.follow(np.array([index]), seed)
            ahead.arrived()
            shards.sample(index)
            with done.open("a") as file:
                file.write(f"{index}\n")
            os.write(turns[1], b"x")
        ahead.close()

    children = [start(lambda n=n: work(n)) for n in range(4)]
    assert ends(*children) == [0] * 4
    assert sorted(map(int, done.read_text().split())) == list(range(60))
    left = names(shards.staged._shelf.folder)
    assert len(left) <= 2
    assert all(name.endswith(".shard") for name in left)
    for end in turns:
        os.close(end)


def test_c16_two_ranks_with_workers_of_their_own(make_shards, tmp_path, processes):
    """Two ranks share the folder, each with two workers; one worker is killed in between."""
    start, ends = processes
    shards = make_shards(6, room=2)
    order = shards.order(0)
    done = tmp_path / "done"

    def work(number, stop=None):
        ahead = ReadAhead(shards, shards.plan, worker=number % 2, workers=2, staged=shards.staged)
        for turn, index in enumerate(order[number::4]):
            if turn == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            ahead.follow(np.array([index]), 0)
            ahead.arrived()
            shards.sample(index)
            with done.open("a") as file:
                file.write(f"{index}\n")
        ahead.close()

    first = start(lambda: work(0, stop=7))
    others = [start(lambda n=n: work(n)) for n in (1, 2, 3)]
    assert ends(first, *others) == [-signal.SIGKILL, 0, 0, 0]
    again = start(lambda: work(0))
    assert ends(again) == [0]
    assert set(map(int, done.read_text().split())) == set(range(60))
    left = names(Shelf(tmp_path / "cache", 1).folder)
    assert all(name.endswith(".shard") for name in left)
