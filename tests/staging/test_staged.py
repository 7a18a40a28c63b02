"""Shards by way of the shelf: right bytes whatever happens, from afar at most once."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from fastfeed.errors import OptionError, StorageError
from fastfeed.options import Cache
from fastfeed.readahead import ReadAhead
from fastfeed.staging.folder import MARKER
from fastfeed.staging.source import Source
from fastfeed.staging.staged import Staged


def names(folder):
    """The names in a shelf's folder but the marker."""
    return sorted(name for name in os.listdir(folder) if name != MARKER)


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


def test_a_shard_on_the_shelf_is_near_before_it_is_read(make_shards, far, bring, make_shelf):
    """What is there is opened when it is asked for, so that its first reads are local ones too."""
    shards = make_shards(2, room=9)
    bring(make_shelf(), far, shards.sources[1])
    assert [shard.is_near() for shard in shards.open] == [False, True]
    shards.sample(15)
    assert not far.count()


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
    os.truncate(shards.staged._shelf.folder / f"{shards.sources[0].name}.shard", 100)
    assert shards.open[0].read_at(512, 100) == shards.right[0][512:612]
    assert caplog.text.count("fetched again") == 1


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
