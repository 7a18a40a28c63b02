"""SIGKILL at any instant of writers, stagers and readers: nothing lost, wrong or left behind.

A process kills itself at its n-th call of the system, drawn for each run. FASTFEED_TEST_KILLS asks
for more runs than the usual 40.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import random
import signal

import numpy as np
import pytest
import xxhash

from fastfeed.options import Cache
from fastfeed.plan import Plan
from fastfeed.readahead import ReadAhead
from fastfeed.staging.folder import MARKER
from fastfeed.staging.shelf import Refusal, Shelf
from fastfeed.staging.staged import Staged

KILLS = int(os.environ.get("FASTFEED_TEST_KILLS", "40"))
ROLES = ("writer", "stager", "reader")
COUNT, ROOM = 8, 4


def die_at(turn):
    """Count the calls that change or lock something, and die before or after the given one."""
    seen = 0

    def counted(call):
        def wrapper(*arguments, **options):
            nonlocal seen
            seen += 1
            if seen == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **options)
            if seen == -turn:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for name in ("open", "write", "pwrite", "fsync", "unlink", "posix_fallocate", "utime", "close"):
        setattr(os, name, counted(getattr(os, name)))
    fcntl.flock = counted(fcntl.flock)
    for name in ("replace", "unlink", "mkdir"):
        setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))


def look_into(folder, far, sources):
    """Every file with a final name is whole and right; return the names but the marker's."""
    names = sorted(name for name in os.listdir(folder) if name != MARKER)
    right = {f"{source.name}.shard": source for source in sources}
    for name in names:
        if name.endswith(".shard"):
            content = (folder / name).read_bytes()
            assert f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}" == right[name].digest
    return names


def write(folder, far, sources):
    """Be a writer: put every shard on the shelf, making room."""
    shelf = Shelf(folder, ROOM * sources[0].size)
    for source in sources:
        reserved = shelf.reserve(source)
        if not isinstance(reserved, Refusal):
            content = memoryview(far.content(source))
            for offset in range(0, source.size, 4096):
                reserved.write(offset, content[offset : offset + 4096])
            reserved.publish()


def read(staged, far, sources, *, epochs=2, settle=None):
    """Be a reader, and the stager if nobody is: two epochs, every sample right."""
    for source in sources:
        staged.learn([source])
    starts = np.arange(COUNT + 1, dtype=np.int64) * 10

    class Shards:
        shard_count = COUNT

        def name(self, shard):
            return sources[shard].url

    Shards.starts = starts

    def plan(epoch):
        return Plan(starts, np.full(COUNT, 100), 200, 0, epoch)

    ahead = ReadAhead(Shards(), plan, worker=0, workers=1, staged=staged)
    opened = [staged.open(source.url) for source in sources]
    right = [far.content(source) for source in sources]
    for epoch in range(epochs):
        for batch in plan(epoch).order():
            ahead.follow(batch, epoch)
            if settle is not None and staged._follower._stager is not None:
                settle(staged)
            for shard, row in (divmod(int(index), 10) for index in batch):
                offset = 512 + 100 * row
                data = opened[shard].read_at(offset, 100)
                assert data == right[shard][offset : offset + 100]
            ahead.arrived()
    ahead.close()


@pytest.mark.parametrize("seed", range(KILLS))
def test_c17_killed_at_any_instant(tmp_path, far, processes, settle, seed):
    """One dies, two go on beside it and read all rightly; the next start sweeps."""
    start, ends = processes
    chance = random.Random(seed)
    sources = [far.put(f"{n}.tar", size=20_000) for n in range(COUNT)]
    folder = tmp_path / "cache"
    cache = Cache(folder, ROOM * sources[0].size)
    role = ROLES[seed % len(ROLES)]
    turn = chance.choice((1, -1)) * chance.randrange(1, 150)

    def open_staged():
        return Staged(cache, describe=lambda url: None, opener=far.open)

    def victim():
        die_at(turn)
        if role == "writer":
            write(folder, far, sources)
        else:
            read(open_staged(), far, sources, settle=settle if role == "stager" else None)

    def other():
        read(open_staged(), far, sources)

    children = [start(victim), start(other), start(other)]
    found = ends(*children)
    assert found[0] in {0, -signal.SIGKILL}
    assert found[1:] == [0, 0]
    look_into(folder, far, sources)
    shelf = Shelf(folder, cache.nbytes)  # the next start
    left = look_into(folder, far, sources)
    assert [name for name in left if not name.endswith(".shard")] == []
    assert shelf.nbytes() <= shelf.budget
    assert ends(start(other)) == [0]
    assert all(name.endswith(".shard") for name in look_into(folder, far, sources))


def test_kills_happen(tmp_path, far, processes, settle):
    """The instants drawn do lie within the life of each role: most of them are met."""
    start, ends = processes
    sources = [far.put(f"{n}.tar", size=20_000) for n in range(COUNT)]
    met = 0
    for turn in (1, 20, 60, 100, 149):

        def victim(turn=turn):
            die_at(turn)
            write(tmp_path / f"cache-{turn}", far, sources)

        met += ends(start(victim)) == [-signal.SIGKILL]
    assert met >= 4
