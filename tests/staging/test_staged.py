"""Shards by way of the shelf: right bytes whatever happens, from afar at most once, never late."""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from fastfeed.errors import OptionError, StorageError
from fastfeed.options import Cache
from fastfeed.plan import Plan
from fastfeed.readahead import InOrder, ReadAhead
from fastfeed.staging.eviction import hits_at_best, hits_by_recency
from fastfeed.staging.folder import MARKER
from fastfeed.staging.shelf import Shelf
from fastfeed.staging.source import Source
from fastfeed.staging.staged import Staged
from fastfeed.staging.stager import THREADS, Stager


def names(folder):
    """The names in a shelf's folder but the marker."""
    return sorted(name for name in os.listdir(folder) if name != MARKER)


class Shards:
    """As much of a data set as reading ahead knows: shards of ten samples of 100 bytes each."""

    def __init__(self, far, staged, sources, *, window=2):
        self.far, self.staged, self.sources = far, staged, sources
        self.shard_count = len(sources)
        self.starts = np.arange(self.shard_count + 1, dtype=np.int64) * 10
        self.window = window
        self.asked = []
        self.open = [staged.open(source.url) for source in sources]
        self.right = [far.content(source) for source in sources]

    def name(self, shard):
        return self.sources[shard].url

    def advise(self, shard):
        self.asked.append(shard)

    def plan(self, epoch):
        sizes = np.full(self.shard_count, 100, dtype=np.int64)
        return Plan(self.starts, sizes, 100 * self.window, 0, epoch)

    def order(self, epoch):
        return np.concatenate(list(self.plan(epoch).order()))

    def sample(self, index):
        """Read one sample and compare it; return its number."""
        shard, row = divmod(int(index), 10)
        offset = 512 + 100 * row
        buffer = np.empty(100, np.uint8)
        self.open[shard].read_into(offset, buffer.data)
        assert buffer.tobytes() == self.right[shard][offset : offset + 100]
        assert self.open[shard].read_at(offset, 10) == buffer.tobytes()[:10]
        return int(index)


@pytest.fixture
def make_shards(far, make_staged):
    """Return shards by way of a shelf with room for `room` of them."""

    def make(count, room, *, window=2, **options):
        sources = [far.put(f"{n:03d}.tar", size=1000) for n in range(count)]
        staged = make_staged(sources, size=room * sources[0].size, **options)
        return Shards(far, staged, sources, window=window)

    return make


def test_from_afar_and_then_from_the_shelf(make_shards, far, settle, leak_gauge):
    """A shard not there is read from afar, in the ranges asked for; once it is there, locally."""
    shards = make_shards(3, room=9)
    shards.sample(5)
    assert far.count() == {"000.tar": 110}
    shards.staged.expect([shards.name(n) for n in (0, 1, 2, 0, 1, 2)])
    shards.staged.reached(0, window=3, zone=3)
    settle(shards.staged)
    before = far.count()
    for index in range(30):
        shards.sample(index)
    assert far.count() == before
    counts = shards.staged.counts()
    assert counts.local_bytes == 30 * 110
    assert counts.far_bytes == 110
    assert counts.staged_bytes == 3 * shards.sources[0].size
    shards.staged.close()
    assert all(name.endswith(".shard") for name in names(shards.staged._shelf.folder))


def test_what_is_under_way_is_said_by_any_process(make_staged, make_shelf, far):
    """Shards that somebody copies to the folder are counted until they are there."""
    sources = [far.put(f"{n}.tar") for n in range(2)]
    staged, shelf = make_staged(sources), make_shelf()
    (shelf.folder / f"{sources[0].name}.0123456789abcdef.part").touch()  # a dead process's
    said = [staged.under_way()]
    parts = [shelf.reserve(source) for source in sources]
    said.append(staged.under_way())
    parts.pop().discard()
    said.append(staged.under_way())
    parts.pop().discard()
    shelf.folder.rename(f"{shelf.folder} is gone")
    said.append(staged.under_way())
    assert said == ["", ", staging 2 shards (0.0 GB)", ", staging a shard (0.0 GB)", ""]


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


def test_a_data_set_that_nobody_closes_stops_bringing(make_shards, far):
    """Its stager ends with its last reference; what it was bringing leaves nothing."""
    shards = make_shards(4, room=9)
    stuck, go_on = threading.Event(), threading.Event()

    def hook(verb, name):
        if verb == "read":
            stuck.set()
            go_on.wait()

    far.hook = hook
    folder = shards.staged._shelf.folder
    staged = Staged(Cache(folder, "1MB"), describe=lambda url: None, opener=far.open)
    staged.learn(shards.sources)
    staged.expect([shards.name(n) for n in range(4)])
    staged.reached(0, window=1, zone=2)
    threads = staged._follower._stager._threads
    assert stuck.wait(30)
    del staged
    go_on.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert [name for name in names(folder) if not name.endswith(".shard")] == []


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


def test_c28_what_is_cached_is_not_asked_for_again(make_shards, far, settle, leak_gauge):
    """With all on the shelf, a second epoch and a hundred broken-off ones ask for nothing."""
    shards = make_shards(6, room=9)
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
    for index in shards.order(0):
        ahead.follow(np.array([index]), 0)
        ahead.arrived()
        shards.sample(index)
    settle(shards.staged)
    reads, opened = far.count(), far.count("open")
    for index in shards.order(1):
        ahead.follow(np.array([index]), 1)
        ahead.arrived()
        shards.sample(index)
    ahead.close()
    for turn in range(100):
        one = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
        one.follow(shards.order(turn)[:1], turn)
        one.arrived()
        shards.sample(shards.order(turn)[0])
        one.close()
    assert (far.count(), far.count("open")) == (reads, opened)
    assert len(names(shards.staged._shelf.folder)) == 6


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


def test_c15_local_shards_are_read_in_place(tmp_path, far, make_staged, settle):
    """Local and remote shards together with a tiny cache: every source keeps its bytes."""
    local = tmp_path / "data" / "local.tar"
    local.parent.mkdir()
    remote = [far.put(f"{n}.tar", size=1000) for n in range(4)]
    local.write_bytes(far.content(remote[0]))
    urls = [str(local), f"file://{local}", *(source.url for source in remote)]
    opener = lambda url: far.open(url) if url.startswith("far") else Local(url)  # noqa: E731
    right = {url: far.content(remote[max(0, n - 2)]) for n, url in enumerate(urls)}
    staged = make_staged(remote, size=2 * remote[0].size, opener=opener, apart_from=urls)
    for epoch in range(3):
        staged.expect(urls + urls)
        for place, url in enumerate(urls):
            staged.reached(place, window=1, zone=min(2, 12 - place))
            settle(staged)
            with staged.open(url) as storage:
                assert storage.read_at(0, storage.size) == right[url], epoch
    assert local.read_bytes() == right[str(local)]
    with pytest.raises(OptionError, match="apart from all data"):
        make_staged(remote, apart_from=[str(tmp_path / "cache" / "x.tar")])


def Local(url):
    """Open a local shard as storage does."""
    from fastfeed.storage.local import LocalFile

    return LocalFile(url.removeprefix("file://"))


def test_unknown_shards_are_described_or_streamed(far, make_staged):
    """What no manifest lists is asked for once; where nothing is known it is read from afar."""
    known, unknown = far.put("a.tar"), far.put("b.tar")
    asked = []

    def describe(url):
        asked.append(url)
        return Source(url, known.size, tag="v1") if url == known.url else None

    staged = make_staged(describe=describe)
    for source in (known, unknown, known, unknown):
        with staged.open(source.url) as storage:
            assert storage.size == source.size
            assert storage.read_at(0, source.size) == far.content(source)
    assert asked == [known.url, unknown.url]


def test_a_lost_file_is_fetched_again(make_shards, far, settle, caplog, monkeypatch):
    """A disk that fails under a staged shard costs a warning, and a bad request nothing."""
    shards = make_shards(2, room=4)
    shards.staged.expect([shards.name(n) for n in (0, 1, 0, 1)])
    shards.staged.reached(0, window=2, zone=2)
    settle(shards.staged)
    shards.sample(3)
    file = shards.open[0]._file
    with pytest.raises(StorageError):
        shards.open[0].read_into(shards.sources[0].size - 5, memoryview(bytearray(10)))
    assert shards.open[0]._file is file
    os.truncate(shards.staged._shelf.folder / f"{shards.sources[0].name}.shard", 100)
    assert shards.open[0].read_at(512, 100) == shards.right[0][512:612]
    shards.sample(4)
    assert caplog.text.count("fetched again") == 1
    shards.staged.reached(1, window=1, zone=1)
    shards.staged.reached(0, window=2, zone=2)
    settle(shards.staged)
    before = far.count()
    shards.sample(5)
    assert far.count() == before


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


def test_other_shards_are_still_advised(make_shards, far):
    """Without a cache folder reading ahead is as it was; remote shards are not opened for it."""
    shards = make_shards(4, room=9)
    ReadAhead(shards, shards.plan, worker=0, workers=1).follow(shards.order(0)[:2], 0)
    assert len(shards.asked) == 4
    ahead = ReadAhead(shards, shards.plan, worker=0, workers=1, staged=shards.staged)
    ahead.follow(shards.order(0)[:2], 0)
    ahead.arrived()
    ahead.follow(np.empty(0, np.int64), 0)
    ahead.arrived()
    assert len(shards.asked) == 4
    ahead.close()


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
