"""The file of kept arrays: bounded, shared without waiting, and never wrong."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.decoding.kept_file import HEADER_BYTES, KeptFile, begin, is_valid
from fastfeed.decoding.kept_turn import alone_in

BUDGET = 1 << 20
TABLE = 128 * 64
ENTRY = 64 + 10_048  # ten thousand bytes, with a head
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def descriptor(tmp_path):
    """A file of kept arrays that is empty."""
    opened = os.open(tmp_path / "kept", os.O_RDWR | os.O_CREAT)
    begin(opened, BUDGET)
    yield opened
    os.close(opened)


def key(number):
    return xxhash.xxh3_128_digest(str(number).encode())


def array(number, nbytes=10_000):
    return np.random.default_rng(number).integers(0, 256, nbytes, np.uint8)


def memory(nbytes):
    return np.empty(nbytes, np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([np.uint8, np.uint16]),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.tuples(*[st.integers(0, 2**32 - 1)] * 3),
)
def test_an_array_comes_back_as_it_was(dtype, shape, about):
    """Any shape and type with its numbers, from an open file of its own as well."""
    opened = os.memfd_create("kept")
    try:
        begin(opened, BUDGET)
        kept = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
        assert KeptFile(opened).put(key(1), kept[::-1], about)
        found = KeptFile(opened).get(key(1), memory)
        assert found.about == about
        assert found.array.dtype == dtype
        np.testing.assert_array_equal(found.array, kept[::-1])
        assert KeptFile(opened).get(key(2), memory) is None
    finally:
        os.close(opened)


def test_full_it_keeps_what_it_has(descriptor):
    """It never takes more than its bytes, and an epoch finds all that was kept."""
    file = KeptFile(descriptor)
    kept = [number for number in range(200) if file.put(key(number), array(number))]
    assert len(kept) == (BUDGET - HEADER_BYTES - TABLE) // ENTRY
    assert kept == list(range(len(kept)))
    assert not file.has_room(10_000)
    assert file.nbytes <= BUDGET == os.fstat(descriptor).st_size
    for number in kept:
        np.testing.assert_array_equal(file.get(key(number), memory).array, array(number))


def test_small_arrays_fill_the_table_first(descriptor):
    """With more arrays than slots the rest is not kept, and all that was is found."""
    file = KeptFile(descriptor)
    kept = [number for number in range(300) if file.put(key(number), array(number, 10))]
    assert 100 < len(kept) <= 128
    assert all(file.get(key(number), memory) for number in kept)


@pytest.mark.parametrize("place", ["slot", "content", "tail", "cut"])
def test_what_a_disk_lost_is_not_found(descriptor, place):
    """Any changed byte of slot or content is a miss; ours put it right, where there is room."""
    file = KeptFile(descriptor)
    assert file.put(key(1), array(1))
    data = bytearray(os.pread(descriptor, BUDGET, 0))
    where = {
        "slot": data.index(key(1)) + 16,
        "content": data.index(array(1).tobytes()) + 5000,
        "tail": 64,
        "cut": None,
    }[place]
    if where is None:
        os.ftruncate(descriptor, HEADER_BYTES)
    else:
        os.pwrite(descriptor, bytes([data[where] ^ 1]), where)
    if place == "tail":  # says only where free room begins
        assert file.get(key(1), memory) is not None
        return
    assert file.get(key(1), memory) is None
    assert file.put(key(1), array(1))
    np.testing.assert_array_equal(file.get(key(1), memory).array, array(1))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rubbish_is_never_an_array(data):
    """Whatever lies in table and data, nothing is raised and no wrong array comes out."""
    opened = os.memfd_create("kept")
    try:
        begin(opened, BUDGET)
        file = KeptFile(opened)
        file.put(key(1), array(1))
        for _ in range(data.draw(st.integers(1, 20))):
            at = data.draw(st.integers(64, 30_000))
            os.pwrite(opened, data.draw(st.binary(min_size=1, max_size=64)), at)
        for number in range(4):
            found = file.get(key(number), memory)
            assert found is None or (found.array == array(1)).all()
            file.put(key(number), array(number))
    finally:
        os.close(opened)


@pytest.mark.parametrize("header", [b"", b"ffdecod1", b"x" * 4096])
def test_other_files_are_none(tmp_path, header):
    """A file that was not made to its end, or by somebody else, is not taken."""
    path = tmp_path / "f"
    path.write_bytes(header)
    assert not is_valid(header)
    with path.open("r+b") as file, pytest.raises(ValueError, match="no file of kept"):
        KeptFile(file.fileno())


def _fill(descriptor, first):
    """Be a process that keeps a hundred arrays, half of which others keep too."""
    file = KeptFile(descriptor)
    for number in range(first, first + 40):
        file.put(key(number), array(number))
    os._exit(0)


def test_processes_fill_one_file(descriptor):
    """Three processes and two threads write at once: nothing is lost twice, nothing is wrong."""
    file = KeptFile(descriptor)
    children = [FORK.Process(target=_fill, args=(descriptor, first)) for first in (0, 20, 40)]
    for child in children:
        child.start()

    def fill(opened):
        for number in range(80):
            opened.put(key(number), array(number))

    opened = (file, KeptFile(descriptor))
    threads = [threading.Thread(target=fill, args=(one,)) for one in opened]
    for thread in threads:
        thread.start()
    for one in (*threads, *children):
        one.join()
    found = {number: file.get(key(number), memory) for number in range(80)}
    assert sum(one is not None for one in found.values()) >= 70  # those that met a lock are left
    for number, one in found.items():
        assert one is None or (one.array == array(number)).all()
    assert file.nbytes <= HEADER_BYTES + TABLE + 80 * ENTRY


@pytest.mark.parametrize("turn", range(1, 16))
def test_killed_at_any_instant(descriptor, turn):
    """A writer that dies leaves nothing wrong and no lock, and costs one array's room at most."""
    pid = os.fork()
    if not pid:
        seen = 0

        def counted(call):
            def wrapper(*arguments):
                nonlocal seen
                seen += 1
                if seen == turn:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments)

            return wrapper

        os.pwrite, os.pread = counted(os.pwrite), counted(os.pread)
        _fill(descriptor, 0)
    os.waitpid(pid, 0)
    file = KeptFile(descriptor)
    for number in range(40):
        found = file.get(key(number), memory)
        assert found is None or (found.array == array(number)).all()
        assert file.put(key(number), array(number))
        np.testing.assert_array_equal(file.get(key(number), memory).array, array(number))
    assert file.nbytes <= HEADER_BYTES + TABLE + 41 * ENTRY


def test_a_stopped_process_is_not_waited_for(descriptor, monkeypatch):
    """While another holds the lock for ever, arrays are not kept and nothing hangs."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        with alone_in(descriptor):
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
    os.read(ready[0], 1)
    file = KeptFile(descriptor)
    assert not file.put(key(1), array(1))
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    assert file.put(key(1), array(1))
    for end in (*ready, *go):
        os.close(end)


def test_a_turn_outlasts_other_descriptors(descriptor, tmp_path):
    """A lock does not fall when its process closes the same file, opened once more."""
    with alone_in(descriptor) as alone:
        assert alone
        os.close(os.open(tmp_path / "kept", os.O_RDWR))
        pid = os.fork()
        if not pid:
            with alone_in(descriptor) as other:
                os._exit(other)
        assert os.waitpid(pid, 0)[1] == 0
    with alone_in(descriptor) as alone:
        assert alone


def test_a_full_disk_ends_the_keeping(descriptor, monkeypatch, caplog):
    """The disk's error is told once and is no error of the job; what was kept is found."""
    file = KeptFile(descriptor)
    assert file.put(key(1), array(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING, "fastfeed"):
        assert not file.put(key(2), array(2))
        assert not file.put(key(3), array(3))
    assert caplog.text.count("takes no more: No space left") == 1
    assert not file.has_room(1)
    assert file.get(key(1), memory) is not None


def test_owners_are_few(descriptor):
    """Data sets are counted once each, and no more than there is room for."""
    file = KeptFile(descriptor)
    for number in [*range(1, 50), 7]:
        file.add_owner(number)
    assert file.owners() == frozenset(range(1, 33))


def test_without_locks_nothing_is_kept(descriptor, monkeypatch, caplog, leak_gauge):
    """A system that has no such locks is told of once, and the job goes on."""

    def none(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", none)
    file = KeptFile(descriptor)
    with caplog.at_level(logging.WARNING, "fastfeed"):
        assert not file.put(key(1), array(1))
        assert not file.put(key(2), array(2))
    assert caplog.text.count("takes no more: Invalid argument") == 1
