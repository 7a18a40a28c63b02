"""Inflated shards stay within a budget of bytes, whoever is killed, and touch nothing else."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import random
import re
import signal
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastfeed.errors import ShardError, StorageError
from fastfeed.options import Cache
from fastfeed.reading.shards import ShardSet
from fastfeed.staging.folder import MARKER
from fastfeed.staging.shelf import Refusal, Shelf
from fastfeed.staging.source import Source
from fastfeed.staging.staged import Staged
from fastfeed.storage import inflated as module
from fastfeed.storage import turns
from fastfeed.storage.compressed import wrap
from fastfeed.storage.inflated import FOLDER, InflatedFile, inflated_bytes
from fastfeed.storage.local import LocalFile

SIZE = 100_000


@pytest.fixture
def shards(tmp_path):
    """Six gzip files that inflate to `SIZE` bytes each, no two the same."""
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"{number}.tar.gz")
        paths[-1].write_bytes(gzip.compress(content(number), 1))
    return paths


def content(number):
    return random.Random(number).randbytes(SIZE // 2) * 2


def inflated(path, cache, budget):
    """Return a shard as its inflated file."""
    return wrap(LocalFile(str(path)), str(path), folder=cache, budget=budget)


def there(cache):
    return sorted(path.name for path in (cache / FOLDER).iterdir())


def age(cache, *, but=()):
    """Make all files look as if they had been used long ago, in the order of their names."""
    for place, name in enumerate(there(cache)):
        if name not in but:
            os.utime(cache / FOLDER / name, ns=(place, place))


def test_the_longest_unused_goes_first(shards, tmp_path):
    """Three fit; the fourth pushes out the one that was not opened for longest."""
    cache = tmp_path / "cache"
    for path in shards[:3]:
        inflated(path, cache, 3 * SIZE).close()
    names = there(cache)
    age(cache)
    assert len(names) == 3
    reopened = inflated(shards[0], cache, 3 * SIZE)  # used again
    kept = Path(f"/proc/self/fd/{reopened.descriptor}").readlink().name
    reopened.close()
    inflated(shards[3], cache, 3 * SIZE).close()
    gone = set(names) - set(there(cache))
    assert len(gone) == 1
    assert kept not in gone
    assert inflated_bytes(cache) <= 3 * SIZE


def test_what_is_read_stays_and_then_there_is_no_room(shards, tmp_path, leak_gauge):
    """Files that are open are not evicted: the next one is an error that says so."""
    cache = tmp_path / "cache"
    held = [inflated(path, cache, 2 * SIZE + 10) for path in shards[:2]]
    with pytest.raises(StorageError, match=r"unpacks to more than .* others are read there") as no:
        inflated(shards[2], cache, 2 * SIZE + 10)
    assert "ff.Cache" in str(no.value)
    assert len(there(cache)) == 2
    for number, file in enumerate(held):
        assert file.read_at(0, SIZE) == content(number)
        file.close()
    inflated(shards[2], cache, 2 * SIZE + 10).close()
    assert inflated_bytes(cache) <= 2 * SIZE + 10


def test_files_of_others_are_never_touched(shards, tmp_path):
    """Whatever has not exactly a name of ours stays, however little room there is."""
    cache = tmp_path / "cache"
    (cache / FOLDER).mkdir(parents=True)
    foreign = ["a.tar", "A" * 32 + ".tar", "notes", f"{'0' * 32}.tar.bak", f".{'0' * 32}.tmp"]
    for name in foreign:
        (cache / FOLDER / name).write_bytes(bytes(SIZE))
    no_shelf = cache / f"{'1' * 32}-{SIZE}.shard"
    no_shelf.write_bytes(bytes(SIZE))
    for path in shards:
        inflated(path, cache, 2 * SIZE + 10).close()
    assert set(foreign) < set(there(cache))
    assert no_shelf.exists()  # the folder is no shelf


def test_more_than_the_budget_is_refused(shards, tmp_path):
    """A shard that is larger than the whole budget is refused while it unpacks."""
    with pytest.raises(StorageError, match="unpacks to more"):
        inflated(shards[0], tmp_path / "cache", SIZE - 1)
    assert there(tmp_path / "cache") == []


def test_one_budget_with_the_shelf(shards, tmp_path):
    """Shelf and inflated shards share the bytes of the cache; each makes room for the other."""
    cache, budget = tmp_path / "cache", 4 * SIZE
    shelf = Shelf(cache, budget)
    for number in range(3):
        source = Source(f"s3://b/{number}.tar", SIZE, tag="x")
        with shelf.reserve(source) as reserved:
            reserved.write(0, memoryview(b"\0" * SIZE))
            reserved.path.rename(cache / f"{source.name}.shard")  # published, unchecked
    for path in shards[:3]:
        inflated(path, cache, budget).close()
        assert inflated_bytes(cache) + shelf.nbytes() <= budget
    assert len(there(cache)) == 1 + 2 * (not shelf.shards())
    larger = Source("s3://b/9.tar", 4 * SIZE, tag="x")
    reserved = shelf.reserve(larger)
    assert not isinstance(reserved, Refusal)
    assert inflated_bytes(cache) + shelf.nbytes() <= budget
    reserved.discard()
    assert (cache / MARKER).exists()


def test_a_data_set_larger_than_the_budget(tmp_path):
    """Shards that are open but idle are let go, so that all can be read one after the other."""
    for number in range(5):
        with tarfile.open(tmp_path / f"s-{number:06d}.tar.gz", "w:gz", compresslevel=1) as tar:
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = SIZE
            tar.addfile(member, io.BytesIO(content(number)))
    cache = tmp_path / "cache"
    staged = Staged(Cache(cache, size=2 * SIZE + 50_000))
    pattern = str(tmp_path / "s-{000000..000004}.tar.gz")
    found = ShardSet(pattern, cache=tmp_path / "index", staged=staged)
    assert len(found) == 5
    for number in (0, 4, 2, 0):
        assert isinstance(found.open(number).storage, InflatedFile)
        assert found.key(number, 0) == str(number)
    assert inflated_bytes(cache) <= 2 * SIZE + 50_000
    staged.close()


def die_at(turn):
    """Kill this process at the given call that changes or locks something."""
    seen = 0

    def counted(call):
        def wrapper(*arguments, **options):
            nonlocal seen
            seen += 1
            if seen == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    for name in ("open", "fsync", "unlink", "rename", "utime", "close", "fstat"):
        setattr(os, name, counted(getattr(os, name)))
    fcntl.flock = counted(fcntl.flock)


@pytest.mark.parametrize("turn", range(1, 61, 3))
def test_killed_at_any_instant(shards, tmp_path, turn):
    """No half file has a final name, the budget holds, and the next one reads what is right."""
    cache, budget = tmp_path / "cache", 3 * SIZE
    pid = os.fork()
    if not pid:
        try:
            die_at(turn)
            for path in shards:
                inflated(path, cache, budget).close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    right = {content(number) for number in range(6)}
    for path in (cache / FOLDER).glob("*.tar") if cache.exists() else ():
        assert path.read_bytes() in right
    for number, path in enumerate(shards):
        with inflated(path, cache, budget) as file:
            assert file.read_at(0, SIZE + 1) == content(number)
        assert inflated_bytes(cache) <= budget
    assert all(re.fullmatch(r"[0-9a-f]{32}\.tar", name) for name in there(cache))


def test_one_of_those_who_need_a_shard_inflates_it(shards, tmp_path, monkeypatch):
    """The others wait, and read the same file: no copy lies beside it, named or not."""
    cache, begun, waiting = tmp_path / "cache", [], threading.Event()
    work, sleep = module.inflate, turns.time.sleep

    def slow(*arguments, **options):
        begun.append(threading.get_ident())
        assert waiting.wait(10)
        yield from work(*arguments, **options)

    def noted(seconds):
        waiting.set()
        sleep(seconds / 10)

    monkeypatch.setattr(module, "inflate", slow)
    monkeypatch.setattr(turns.time, "sleep", noted)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: inflated(shards[0], cache, 2 * SIZE), range(4)))
    assert len(begun) == 1
    assert len({os.fstat(file.descriptor).st_ino for file in opened}) == 1
    assert all(os.fstat(file.descriptor).st_nlink == 1 for file in opened)
    for file in opened:
        assert file.read_at(0, SIZE) == content(0)
        file.close()
    assert len(there(cache)) == 1


def test_who_inflates_and_hangs_is_not_waited_for_without_end(shards, tmp_path, monkeypatch):
    """A part that is locked and does not grow is left to its writer, and the shard comes anyway."""
    cache = tmp_path / "cache"
    inflated(shards[0], cache, 3 * SIZE).close()
    (name,) = there(cache)
    part = cache / FOLDER / f".{name}.{'0' * 16}.tmp"
    (cache / FOLDER / name).rename(part)
    monkeypatch.setattr(turns, "_HANGS_S", 0.0)
    with part.open("r+b") as hanging:
        fcntl.flock(hanging, fcntl.LOCK_EX)
        with inflated(shards[0], cache, 3 * SIZE) as file:
            assert file.read_at(0, SIZE) == content(0)
        assert there(cache) == [part.name, name]
        assert os.fstat(hanging.fileno()).st_size == SIZE
    inflated(shards[1], cache, 3 * SIZE).close()
    assert not part.exists()


def test_what_a_killed_writer_left_is_written_anew(shards, tmp_path):
    """Its lock ended with it, and nothing of a longer part stays in the file."""
    cache = tmp_path / "cache"
    inflated(shards[0], cache, 3 * SIZE).close()
    (name,) = there(cache)
    (cache / FOLDER / name).unlink()
    part = cache / FOLDER / f".{name}.{'0' * 16}.tmp"
    part.write_bytes(bytes(2 * SIZE))
    with turns.turn_for(cache / FOLDER / name) as (file, path):
        assert path == part
        assert os.fstat(file.fileno()).st_size == 0
    with inflated(shards[0], cache, 3 * SIZE) as file:
        assert file.size == SIZE


def test_damaged_shards_evict_nothing_for_ever(shards, tmp_path):
    """A shard that turns out to be cut leaves no trace but the room that was made for it."""
    cache = tmp_path / "cache"
    inflated(shards[0], cache, 3 * SIZE).close()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(shards[1].read_bytes()[:-9])
    with pytest.raises(ShardError):
        inflated(cut, cache, 3 * SIZE)
    assert len(there(cache)) == 1
