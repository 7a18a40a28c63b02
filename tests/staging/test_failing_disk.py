"""A cache whose disk fails: shards are read from afar, and no bare error of the system comes."""

from __future__ import annotations

import errno
import os

import pytest

from fastfeed.errors import StorageError
from fastfeed.staging.shelf import StagedFile


@pytest.fixture
def fail(monkeypatch):
    """Have a call of the system fail for the cache folder and all shards in it."""

    def fail_from_now(name, error):
        real = getattr(os, name)

        def call(path, *args, **more):
            if str(path).endswith(("/cache", ".shard")):
                raise OSError(error, os.strerror(error), str(path))
            return real(path, *args, **more)

        monkeypatch.setattr(os, name, call)

    return fail_from_now


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("call", ["stat", "listdir"])
def test_a_cache_that_cannot_be_looked_at(make_shards, settle, fail, call, error):
    """Whoever waits for a shard that cannot be looked for reads it from afar."""
    shards = make_shards(3, room=3)
    fail(call, error)
    staged = shards.staged
    staged.expect([source.url for source in shards.sources] * 2)
    staged.reached(0, window=1, zone=3)
    assert [shards.sample(n) for n in (0, 10, 20)] == [0, 10, 20]
    settle(staged)
    assert shards.sources[0] not in staged._shelf


def test_a_bad_copy_that_cannot_be_removed(far, make_shelf, bring, fail, caplog):
    """It is not served, and the log says once that it stays, whoever meets it."""
    shelf, source = make_shelf(), far.put("a.tar")
    bring(shelf, far, source)
    (copy,) = shelf.folder.glob("*.shard")
    os.truncate(copy, 100)
    fail("unlink", errno.EROFS)
    for _ in range(3):
        assert shelf.get(source) is None
    assert caplog.text.count("a bad copy stays in the cache") == 1
    assert copy.exists()


def test_parts_that_cannot_be_made(far, make_shelf, monkeypatch):
    """However often it is tried, the error is the same, so that a stager says it once."""
    shelf, source = make_shelf(), far.put("a.tar")
    real = os.open

    def fail_for_parts(path, *args, **more):
        if str(path).endswith(".part"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", fail_for_parts)
    told = set()
    for _ in range(3):
        with pytest.raises(StorageError, match=r"cannot write to .*Input/output error") as error:
            shelf.reserve(source)
        told.add(str(error.value))
    assert len(told) == 1


def test_room_that_cannot_be_made(far, make_shelf, bring, fail):
    """A shard that cannot be evicted is an error that a stager tells."""
    first, second = far.put("a.tar"), far.put("b.tar")
    shelf = make_shelf(first.size)
    bring(shelf, far, first)
    fail("unlink", errno.EIO)
    with pytest.raises(StorageError, match=r"cannot remove .*Input/output error"):
        shelf.reserve(second)


def test_a_copy_whose_state_is_lost(far, make_shelf, bring, monkeypatch):
    """An open copy of which the file system knows nothing any more counts as removed."""
    shelf, source = make_shelf(), far.put("a.tar")
    bring(shelf, far, source)
    file = shelf.get(source)

    def stale(_descriptor):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)
        removed = file.is_removed()
    assert removed


def test_a_failing_copy_is_asked_once(far, make_staged, settle, monkeypatch):
    """A read that the disk fails at is not tried there again, but goes on from afar."""
    source = far.put("a.tar", size=1 << 20)
    staged = make_staged([source])
    staged.expect([source.url] * 2)
    staged.reached(0, window=1, zone=1)
    settle(staged)
    shard = staged.open(source.url)
    assert shard.is_near()
    asked = []

    def read_into(_file, offset, _buffer):
        asked.append(offset)
        raise StorageError("the disk gives up")

    monkeypatch.setattr(StagedFile, "read_into", read_into)
    buffer = bytearray(1000)
    shard.read_into(512, memoryview(buffer))
    assert buffer == far.content(source)[512:1512]
    assert asked == [512]
    with pytest.raises(StorageError):
        shard.read_into(source.size - 10, memoryview(buffer))
    shard.close()
