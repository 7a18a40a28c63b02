"""Remote shards that count who reads them and can be slow or broken, and processes to read them."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import traceback
from collections import Counter

import numpy as np
import pytest
import xxhash

from fastfeed.errors import StorageError
from fastfeed.options import Cache
from fastfeed.plan import Plan
from fastfeed.staging.shelf import Shelf
from fastfeed.staging.source import Source
from fastfeed.staging.staged import Staged
from fastfeed.storage.local import LocalFile


def tar_of(name, size):
    """Return a tar of one member, whose bytes all say which shard it is."""
    content = (f"{name};".encode() * (size // len(name) + 1))[:size]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo(f"{name}.bin")
        info.size = size
        tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


class Far:
    """Shards far away: files of a folder under `far://`, each access noted in a file beside it.

    Processes share it. `hook(verb, name)` is called before each access, and may wait or raise.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.log = folder.parent / f"{folder.name}.log"
        self.log.touch()
        self.hook = lambda verb, name: None

    def put(self, name, content=None, *, size=3000, digest=True):
        """Store a shard and return what a manifest says of it."""
        content = tar_of(name, size) if content is None else content
        (self.folder / name).write_bytes(content)
        found = f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}" if digest else None
        return Source(f"far://bucket/{name}", len(content), found)

    def content(self, source):
        """Return the bytes of a shard."""
        return (self.folder / source.url.rpartition("/")[2]).read_bytes()

    def open(self, url):
        """Open a shard from afar."""
        name = url.rpartition("/")[2]
        self.note("open", name)
        return FarShard(self, name)

    def note(self, verb, name, size=0):
        """Write down one access."""
        self.hook(verb, name)
        with self.log.open("a") as log:
            log.write(f"{verb} {name} {size}\n")

    def count(self, verb="read"):
        """Return how many bytes of each shard were read, or how often one was opened."""
        counts = Counter()
        for line in self.log.read_text().splitlines():
            seen, name, size = line.split()
            if seen == verb:
                counts[name] += int(size) if verb == "read" else 1
        return counts


class FarShard(LocalFile):
    """One open shard; each read of it is noted."""

    def __init__(self, far, name):
        super().__init__(str(far.folder / name), shown=f"far://bucket/{name}")
        self.far, self.name = far, name

    def read_at(self, offset, size, /):
        self.far.note("read", self.name, size)
        return super().read_at(offset, size)

    def read_into(self, offset, buffer, /):
        self.far.note("read", self.name, len(buffer))
        super().read_into(offset, buffer)


@pytest.fixture
def far(tmp_path):
    """An empty bucket."""
    return Far(tmp_path / "bucket")


@pytest.fixture
def make_shelf(tmp_path):
    """Return a shelf of so many bytes; all of a test's are the same folder."""

    def make(budget=1 << 30, **options):
        return Shelf(tmp_path / "cache", budget, **options)

    return make


@pytest.fixture
def make_staged(tmp_path, far):
    """Return a way to open the shards of `far` through one folder; all are closed at the end."""
    made = []

    def make(sources=(), *, size=1 << 30, **options):
        cache = Cache(tmp_path / "cache", size)
        options = {"describe": lambda url: None, "opener": far.open} | options
        made.append(Staged(cache, **options))
        made[-1].learn(sources)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def bring():
    """Put a shard on a shelf as a stager does, in one piece."""

    def bring_one(shelf, far, source, **options):
        reserved = shelf.reserve(source, **options)
        with reserved:
            reserved.write(0, memoryview(far.content(source)))
            reserved.publish()

    return bring_one


def start(function):
    """Run a function in a forked process and return its number; it fails if the function does."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(60)
        function()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as the parent
        traceback.print_exc()
    finally:
        os._exit(code)


def ends(*children):
    """Wait for processes and return how they ended: 0, an exit code, or minus a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.fixture
def processes():
    """The functions that start a process and wait for some."""
    return start, ends


def broken(reason="the link is down"):
    """Raise what a storage raises."""
    raise StorageError(reason)


@pytest.fixture
def break_down():
    """The function that raises what a storage raises."""
    return broken


def settled(staged):
    """Wait until a stager of this process has brought all that there is room for."""
    assert staged._follower._stager.wait(30)


@pytest.fixture
def settle():
    """The function that waits for a stager."""
    return settled


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
