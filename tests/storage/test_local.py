"""Local files: positioned reads, their errors, and writing whole or not at all."""

from __future__ import annotations

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fastfeed.errors import OptionError, StorageError
from fastfeed.storage.answers import Facts
from fastfeed.storage.local import LocalFile, write_whole
from fastfeed.storage.open import (
    exists,
    facts,
    local_path,
    open_storage,
    read_if_there,
    read_whole,
)


@pytest.fixture
def path(tmp_path):
    """A file of 1,000 bytes."""
    file = tmp_path / "a b.tar"
    file.write_bytes(bytes(range(250)) * 4)
    return file


def test_reads_by_position(path, leak_gauge):
    """Bytes come from where they were asked for, short only at the end."""
    with open_storage(path) as storage:
        assert storage.size == 1000
        assert storage.read_at(3, 4) == bytes([3, 4, 5, 6])
        assert storage.read_at(998, 10) == bytes([248, 249])
        assert storage.read_at(5000, 10) == b""
        buffer = np.zeros(6, np.uint8)
        storage.read_into(250, buffer.data[1:5])
        assert buffer.tolist() == [0, 0, 1, 2, 3, 0]
        storage.advise(0, storage.size)


def test_reading_past_the_end_is_an_error(path):
    """`read_into` fills its buffer or raises, with the offset."""
    with open_storage(path) as storage, pytest.raises(StorageError, match="10 of 20") as caught:
        storage.read_into(990, memoryview(bytearray(20)))
    assert caught.value.offset == 990


def test_a_file_cut_while_open(path):
    """A file that shrinks under the reader is an error, never old or missing bytes."""
    with open_storage(path) as storage:
        os.truncate(path, 100)
        with pytest.raises(StorageError, match="ended"):
            storage.read_into(500, memoryview(bytearray(10)))


class Trickle:
    """An operating system whose calls give at most 7 bytes."""

    def __init__(self):
        self.pread_now, self.preadv_now = os.pread, os.preadv

    def pread(self, descriptor, size, offset):
        return self.pread_now(descriptor, min(size, 7), offset)

    def preadv(self, descriptor, buffers, offset):
        return self.preadv_now(descriptor, [buffers[0][:7]], offset)


def test_short_reads_are_completed(path, monkeypatch):
    """A call that gives fewer bytes than asked for is repeated until all are there."""
    trickle = Trickle()
    monkeypatch.setattr(os, "pread", trickle.pread)
    monkeypatch.setattr(os, "preadv", trickle.preadv)
    with open_storage(path) as storage:
        assert storage.read_at(900, 200) == path.read_bytes()[900:]
        buffer = bytearray(100)
        storage.read_into(20, memoryview(buffer))
        assert buffer == path.read_bytes()[20:120]


@pytest.mark.parametrize("name", ["missing.tar", ".", "a\0b"])
def test_what_cannot_be_opened_or_read(tmp_path, name):
    """A missing file, a folder and a name that is none are StorageErrors that show the name."""
    shown = str(tmp_path / name)
    with pytest.raises(StorageError) as caught, open_storage(shown) as storage:
        storage.read_at(0, 10)
    assert repr(shown) in str(caught.value)


def test_a_named_pipe_is_refused_at_once(tmp_path, leak_gauge):
    """Opening a pipe that nobody writes to would wait for ever; it is an error instead."""
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(StorageError, match="no regular file"):
        open_storage(tmp_path / "pipe.tar")


def test_urls(path):
    """`file://` means a local path; a scheme that nobody serves is refused at once."""
    with open_storage(path.as_uri()) as storage:
        assert storage.size == 1000
    for url in ("nowhere://bucket/a.tar", "pipe://cat a.tar", "simplecache://a.tar"):
        with pytest.raises(OptionError, match="no storage"):
            open_storage(url)
    with pytest.raises(OptionError, match="another machine"):
        open_storage("file://elsewhere/a.tar")
    with pytest.raises(OptionError, match="not on this machine"):
        local_path("s3://bucket/a.tar")


def test_small_files(path):
    """Manifests and indexes are read whole up to a limit; what is not there is told apart."""
    missing = path.with_name("missing")
    for name in (path, path.as_uri()):
        assert read_whole(name, limit=1000) == path.read_bytes()
        assert exists(name)
        assert facts(name) == Facts(1000, str(path.stat().st_mtime_ns))
        with pytest.raises(StorageError, match="more than 999"):
            read_whole(name, limit=999)
    assert not exists(missing)
    assert read_if_there(missing, limit=1) is None
    for call in (facts, lambda name: read_whole(name, limit=1)):
        with pytest.raises(StorageError, match="missing"):
            call(missing)
    with pytest.raises(StorageError, match="directory"):
        read_if_there(path.parent, limit=1)


def test_a_dropped_file_stays_open_for_its_readers(path, leak_gauge):
    """The descriptor lives as long as anybody holds the file, then it closes by itself."""
    file = LocalFile(str(path))
    read = file.read_at
    del file
    assert read(0, 2) == b"\0\1"


def test_closing_twice_and_reading_after(path):
    """Closing again is fine; reading from a closed file is an error, not another file's bytes."""
    file = LocalFile(str(path))
    file.close()
    file.close()
    with pytest.raises(StorageError):
        file.read_at(0, 1)


def test_threads_share_a_file(path):
    """Reads carry their position, so that threads do not disturb each other."""
    right = path.read_bytes()
    with open_storage(path) as storage, ThreadPoolExecutor(8) as pool:
        places = [i * 37 % 900 for i in range(400)]
        found = pool.map(lambda place: storage.read_at(place, 50), places)
        assert list(found) == [right[place : place + 50] for place in places]


def test_a_forked_process_shares_a_file(path):
    """A child reads through the inherited descriptor without moving the parent's position."""
    with open_storage(path) as storage:
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(sender, storage.read_at(100, 10))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(receiver, 100) == storage.read_at(100, 10)
        os.close(receiver)
        os.close(sender)


def test_written_whole(tmp_path, leak_gauge):
    """The file has its content, replaces an older one, and nothing else is left in the folder."""
    final = tmp_path / "x.ffx"
    write_whole(final, b"one")
    write_whole(final, b"two")
    assert final.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [final]


def test_c05_failed_writes_leave_nothing(tmp_path, monkeypatch):
    """When the disk is full the old file stays as it was, and no part of the new one remains."""
    final = tmp_path / "x.ffx"
    write_whole(final, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"x\.ffx.*No space.*Make room"):
        write_whole(final, b"new")
    assert final.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [final]
    with pytest.raises(StorageError):
        write_whole(tmp_path / "missing" / "x.ffx", b"")


def test_races_of_writers(tmp_path):
    """Several writers of one name leave one of their contents, whole."""
    final = tmp_path / "x.ffx"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: write_whole(final, bytes([i]) * 10_000), range(40)))
    content = pathlib.Path(final).read_bytes()
    assert content == content[:1] * 10_000
    assert list(tmp_path.iterdir()) == [final]
