"""The stager: one on a node, ahead of the readers, in bounded memory; what it does on failure."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import tracemalloc

import pytest

from fastfeed.errors import StorageError
from fastfeed.options import Cache
from fastfeed.staging.folder import MARKER
from fastfeed.staging.shelf import Refusal, Shelf
from fastfeed.staging.source import Source, describe
from fastfeed.staging.staged import Staged
from fastfeed.staging.stager import Election, Stager
from fastfeed.staging.transfer import PIECE
from fastfeed.staging.warm import warm
from fastfeed.storage.answers import Facts
from fastfeed.storage.open import open_storage


def names(shelf):
    """The names in a shelf's folder but the marker."""
    return sorted(name for name in os.listdir(shelf.folder) if name != MARKER)


def wait_until_idle(stager):
    """Wait until nothing more is brought."""
    assert stager.wait(30)


@pytest.fixture
def make_stager(far):
    """Return a stager for a shelf; all are closed at the end."""
    made = []

    def make(shelf, **options):
        made.append(Stager(shelf, options.pop("opener", far.open), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_all_that_is_wanted_is_brought(far, make_shelf, make_stager, leak_gauge, threads):
    """Every byte is read once from afar, in pieces by several threads, and arrives right."""
    sources = [far.put(f"{n}.tar", size=50_000) for n in range(5)]
    sources.append(far.put("none.tar", b"", digest=False))
    shelf = make_shelf()
    stager = make_stager(shelf, threads=threads, piece=7000)
    stager.want(sources)
    wait_until_idle(stager)
    for source in sources:
        with shelf.get(source) as file:
            assert file.read_at(0, file.size) == far.content(source)
    assert sum(far.count().values()) == sum(source.size for source in sources)
    assert stager.staged_bytes == shelf.nbytes()
    stager.close()
    assert all(name.endswith(".shard") for name in names(shelf))


def test_c17_another_one_takes_over(make_shelf, processes):
    """Of two processes one is the stager; the other is once the first was killed, or resigns."""
    start, ends = processes
    shelf = make_shelf()
    receiver, sender = os.pipe()

    def lead():
        election = Election(shelf, "0" * 32)
        assert election.stand()
        os.write(sender, b"x")
        signal.pause()

    child = start(lead)
    os.read(receiver, 1)
    mine = Election(shelf, "0" * 32)
    assert not mine.stand()
    assert Election(shelf, "1" * 32).stand()  # another data set has its own
    os.kill(child, signal.SIGKILL)
    ends(child)
    assert mine.stand()
    assert mine.stand()
    other = Election(shelf, "0" * 32)
    assert not other.stand()
    mine.resign()
    mine.resign()
    assert other.stand()
    other.resign()
    assert "0" * 32 + ".stager" not in names(shelf)
    os.close(receiver)
    os.close(sender)


def test_c17_a_lock_file_of_anybody_blocks_nobody(far, make_shelf, make_stager):
    """Files as a dead process or another machine would have left them: swept, or simply locked."""
    shelf, source = make_shelf(), far.put("a.tar")
    for content in (b"4194304\n", b"elsewhere.example:17\n"):
        (shelf.folder / ("0" * 32 + ".stager")).write_bytes(content)
        (shelf.folder / f"{source.name}.0123456789abcdef.part").write_bytes(content)
        election = Election(shelf, "0" * 32)
        assert election.stand()
        stager = make_stager(shelf)
        stager.want([source])
        wait_until_idle(stager)
        assert source in shelf
        election.resign()
        assert names(shelf) == [f"{source.name}.shard"]
        shelf.discard(source)


def test_c17_killed_while_the_link_stalls(far, make_shelf, make_stager, processes):
    """A stager killed in the middle of a shard leaves nothing that the next one minds."""
    start, ends = processes
    source = far.put("a.tar", size=50_000)
    receiver, sender = os.pipe()
    reads = iter(range(99))

    def stall(verb, name):
        if verb == "read" and next(reads) == 3:
            os.write(sender, b"x")
            threading.Event().wait()

    def stage():
        far.hook = stall
        stager = Stager(Shelf(make_shelf().folder, 1 << 20), far.open, threads=1, piece=4000)
        stager.want([source])
        threading.Event().wait()

    child = start(stage)
    os.read(receiver, 1)
    shelf = make_shelf()
    assert shelf.reserve(source) is Refusal.THERE  # it lives
    os.kill(child, signal.SIGKILL)
    ends(child)
    assert len(names(shelf)) == 1
    assert names(make_shelf()) == []  # the next start sweeps
    stager = make_stager(shelf)
    stager.want([source])
    wait_until_idle(stager)
    assert source in shelf
    os.close(receiver)
    os.close(sender)


def test_a_shard_that_fails_is_left_out(far, make_shelf, make_stager, break_down, caplog):
    """One bad shard is told once and the others come; in a new epoch it is tried again."""
    sources = [far.put(f"{n}.tar", size=9000) for n in range(4)]
    shelf = make_shelf()
    far.hook = lambda verb, name: break_down() if (verb, name) == ("read", "1.tar") else None
    stager = make_stager(shelf, threads=2, piece=1000)
    stager.want(sources)
    wait_until_idle(stager)
    assert [source in shelf for source in sources] == [True, False, True, True]
    assert caplog.text.count("the link is down") == 1
    assert len(names(shelf)) == 3
    far.hook = lambda verb, name: None
    stager.forgive()
    stager.want(sources)
    wait_until_idle(stager)
    assert sources[1] in shelf


@pytest.mark.parametrize("verb", ["open", "read"])
def test_a_library_that_raises_its_own_errors(far, make_shelf, make_stager, verb, caplog):
    """What is no error of ours ends no thread: it is told, and the other shards come."""
    sources = [far.put(f"{n}.tar") for n in range(3)]

    def hook(done, name):
        if (done, name) == (verb, "0.tar"):
            raise ValueError("no such bucket")

    far.hook = hook
    shelf = make_shelf()
    stager = make_stager(shelf, threads=1)
    stager.want(sources)
    wait_until_idle(stager)
    assert [source in shelf for source in sources] == [False, True, True]
    assert caplog.text.count("ValueError: no such bucket") == 1
    assert len(names(shelf)) == 2


def test_a_shard_of_another_size_is_left_out(far, make_shelf, make_stager, caplog):
    """What is far away is not what the manifest says: it is not staged, and the message says so."""
    source = far.put("a.tar")
    (far.folder / "a.tar").write_bytes(far.content(source) + b"more")
    stager = make_stager(make_shelf())
    stager.want([source])
    wait_until_idle(stager)
    assert "10,244 bytes, and had 10,240 when" in caplog.text
    assert names(make_shelf()) == []


def test_closing_in_the_middle(far, make_shelf, leak_gauge):
    """Closed with a shard half brought, the threads end and the part is gone."""
    source = far.put("a.tar", size=50_000)
    going, go_on = threading.Event(), threading.Event()

    def hook(verb, name):
        if verb == "read":
            going.set()
            go_on.wait()

    far.hook = hook
    shelf = make_shelf()
    stager = Stager(shelf, far.open, threads=3, piece=1000)
    stager.want([source])
    assert going.wait(30)
    closing = threading.Thread(target=stager.close)
    closing.start()
    go_on.set()
    closing.join()
    assert names(shelf) == []


def test_ended_while_its_lock_is_held(make_shelf, make_stager):
    """A finaliser that finds the lock taken ends the threads all the same."""
    stager = make_stager(make_shelf())
    stager.want([])
    wait_until_idle(stager)
    with stager._changed:
        ending = threading.Thread(target=stager.end)
        ending.start()
        ending.join()
    for thread in stager._threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_shelf_smaller_than_a_shard(far, make_shelf, make_stager, caplog):
    """Nothing is staged, and that is said once."""
    sources = [far.put(f"{n}.tar") for n in range(3)]
    stager = make_stager(make_shelf(100))
    for _ in range(3):
        stager.want(sources)
        wait_until_idle(stager)
    assert caplog.text.count("larger than the whole shelf") == 1
    assert not far.count()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB; skipped, and counted, where mounting is not allowed."""
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],  # noqa: S607
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)  # noqa: S607


def test_a_full_disk(far, small_disk, make_stager, caplog):
    """Shards that fit stay, the rest is read from afar, with one notice; later there is room."""
    sources = [far.put(f"{n}.tar", size=300_000) for n in range(5)]
    shelf = Shelf(small_disk / "cache", 1 << 30)
    stager = make_stager(shelf)
    for _ in range(3):
        stager.want(sources)
        wait_until_idle(stager)
    assert [source in shelf for source in sources] == [True, True, True, False, False]
    assert caplog.text.count("the disk is full") == 1
    assert len(names(shelf)) == 3
    shelf.discard(sources[0])
    stager.want(sources[1:])
    wait_until_idle(stager)
    assert [source in shelf for source in sources] == [False, True, True, True, False]
    stager.close()


def test_memory_is_bounded_whatever_the_size(far, make_shelf, make_stager):
    """A shard of 160 MiB takes no more memory than the buffers, which are under 64 MiB."""
    content = bytes(160 << 20)
    source = far.put("a.tar", content, digest=True)
    del content
    shelf = make_shelf()
    tracemalloc.start()
    try:
        stager = make_stager(shelf)
        stager.want([source])
        wait_until_idle(stager)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert source in shelf
    assert peak < 64 << 20
    stager.close()


def test_warming(far, tmp_path, leak_gauge, break_down):
    """Ahead of a job: all that fits is brought, each told; a second time nothing is read."""
    sources = [far.put(f"{n}.tar", size=9000) for n in range(4)]
    cache = Cache(tmp_path / "warm", size=3 * sources[0].size)
    far.hook = lambda verb, name: break_down() if (verb, name) == ("read", "1.tar") else None
    told = []
    found = warm(sources, cache, opener=far.open, progress=told.append)
    assert found == told
    assert [one.nbytes for one in found] == [sources[0].size, 0, sources[2].size, sources[3].size]
    assert isinstance(found[1].why_not, StorageError)
    far.log.write_text("")
    again = warm(sources, cache, opener=far.open)
    assert [one.why_not for one in again] == [None, Refusal.NO_ROOM, None, None]
    assert not far.count()
    assert PIECE * 8 < 64 << 20
    assert len(names(Shelf(tmp_path / "warm", 1))) == 3


def test_pauses_are_told(far, make_shelf, make_stager, caplog, monkeypatch):
    """A folder that cannot be listed any more stops the staging, not the threads; said once."""
    shelf, source = make_shelf(), far.put("a.tar")
    stager = make_stager(shelf)
    wait_until_idle(stager)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(shelf, "folder", shelf.folder / "gone")
        for _ in range(3):
            stager.want([source])
            wait_until_idle(stager)
    assert caplog.text.count("staging pauses") == 1
    stager.want([source])
    wait_until_idle(stager)
    assert source in shelf


def test_a_shard_that_was_replaced_is_left_out(make_shelf, make_stager, memory, caplog):
    """An object of the same size under another tag is not what was listed: it is not staged."""
    url, tar = memory
    source = describe(url)
    assert (source.size, source.digest) == (len(tar), None)
    for tag, staged in (("other", False), (source.tag, True)):
        wanted = Source(url, source.size, tag=tag)
        stager = make_stager(make_shelf(), opener=open_storage)
        stager.want([wanted])
        wait_until_idle(stager)
        assert (wanted in make_shelf()) is staged
        stager.close()
    assert "the shard was replaced: " in caplog.text


def test_storage_itself_by_way_of_the_shelf(tmp_path, memory, bring):
    """Without an opener of its own a data set reads what storage reads, and asks it for facts."""
    url, tar = memory
    staged = Staged(Cache(tmp_path / "cache", "1MB"))
    with staged.open(url) as shard:
        assert shard.read_at(0, shard.size) == tar
        assert shard.facts == Facts(len(tar), describe(url).tag)
        staged.expect([url, url])
        staged.reached(0, window=1, zone=1)
        wait_until_idle(staged._follower._stager)
        assert shard.read_at(0, shard.size) == tar
    assert staged.counts().local_bytes == staged.counts().far_bytes == len(tar)
    staged.close()


@pytest.fixture
def memory():
    """A shard in fsspec's memory."""
    import fsspec

    tar = bytes(1024)
    system = fsspec.filesystem("memory")
    system.pipe_file("/bucket/a.tar", tar)
    yield "memory://bucket/a.tar", tar
    system.rm("/bucket", recursive=True)
