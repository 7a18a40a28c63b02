"""The shelf: a budget, whole shards or none, nobody else's files, nothing that lies."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import threading

import pytest
import xxhash

from fastfeed.errors import ChecksumError, FastfeedError, OptionError, ShardError, StorageError
from fastfeed.options import Cache
from fastfeed.staging.folder import MARKER
from fastfeed.staging.needs import Need, parse
from fastfeed.staging.shelf import Refusal, Shelf
from fastfeed.staging.source import Source


def names(shelf):
    """The names in a shelf's folder but the marker."""
    return sorted(name for name in os.listdir(shelf.folder) if name != MARKER)


def test_there_and_back(far, make_shelf, bring, leak_gauge):
    """A published shard is opened by whoever asks, with its bytes; another version is another."""
    shelf, source = make_shelf(), far.put("a.tar")
    assert shelf.get(source) is None
    assert source not in shelf
    bring(shelf, far, source)
    with make_shelf().get(source) as file:
        assert file.read_at(0, file.size) == far.content(source)
    assert names(shelf) == [f"{source.name}.shard"]
    assert shelf.get(Source(source.url, source.size, tag="other")) is None
    assert shelf.reserve(source) is Refusal.THERE


def test_names_say_nothing_of_urls():
    """A URL is no path, its signature changes nothing, and all else of it does."""
    hostile = Source("far://bucket/../../etc/passwd\0\n/x", 5)
    assert len(hostile.key) == 32
    assert set(hostile.name) <= set("0123456789abcdef-")
    signed = [Source(f"https://h/a.tar?X-Amz-Signature={n}", 5).key for n in "ab"]
    assert signed[0] == signed[1] == Source("https://h/a.tar", 5).key
    assert Source("https://h/a.tar?version=1", 5).key != Source("https://h/a.tar", 5).key


def test_one_writer_a_shard(far, make_shelf):
    """While one brings a shard nobody else does; when it gives up, another may."""
    shelf, source = make_shelf(), far.put("a.tar")
    first = shelf.reserve(source)
    assert make_shelf().reserve(source) is Refusal.THERE
    first.discard()
    first.discard()
    shelf.reserve(source).discard()
    assert names(shelf) == []


def test_the_budget_holds(far, make_shelf, bring):
    """Parts count at their full size; what does not fit makes room or is refused."""
    sources = [far.put(f"{n}.tar") for n in range(5)]
    budget = sources[0].size * 3 + 5
    shelf = make_shelf(budget)
    for source in sources[:2]:
        bring(shelf, far, source)
    part = shelf.reserve(sources[2])
    assert shelf.nbytes() == 3 * sources[0].size
    os.utime(shelf.folder / f"{sources[1].name}.shard", (1, 1))
    bring(shelf, far, sources[3])
    assert sources[0] in shelf
    assert sources[1] not in shelf  # it was unused for longest
    part.discard()
    assert shelf.reserve(far.put("big.tar", size=4 * budget)) is Refusal.TOO_LARGE


def test_c16_what_is_read_stays(far, make_shelf, bring):
    """An open shard is not evicted, nor is anything in vain; closed, it may go."""
    one, two, three = (far.put(f"{n}.tar") for n in range(3))
    shelf = make_shelf(2 * one.size)
    bring(shelf, far, one)
    bring(shelf, far, two)
    first, second = shelf.get(one), shelf.get(two)
    assert shelf.reserve(three) is Refusal.NO_ROOM
    second.close()
    os.utime(shelf.folder / f"{one.name}.shard", (1, 1))  # would be the first to go
    bring(shelf, far, three)
    assert one in shelf
    assert two not in shelf
    assert shelf.reserve(far.put("4.tar"), keep={three.name}) is Refusal.NO_ROOM
    assert first.read_at(0, first.size) == far.content(one)
    first.close()


def test_too_many_open_files_are_no_missing_shard(far, make_shelf, bring, monkeypatch):
    """A process that may open no more files is told so, and does not read past its cache."""
    shelf, source = make_shelf(), far.put("a.tar")
    bring(shelf, far, source)
    with monkeypatch.context() as patch:
        patch.setattr("os.open", lambda *_: raise_too_many())
        with pytest.raises(StorageError, match=r"Too many open files. Raise the limit"):
            shelf.get(source)
    shelf.get(source).close()


def raise_too_many():
    raise OSError(errno.EMFILE, "Too many open files")


def test_inflated_shards_go_first_or_not_in_vain(far, make_shelf, bring):
    """An inflated shard makes room before a staged one; where that is not enough it stays."""
    one, two = far.put("1.tar"), far.put("2.tar")
    shelf = make_shelf(2 * one.size)
    inflated = shelf.folder / "inflated" / f"{'0' * 32}.tar"
    inflated.parent.mkdir()
    inflated.write_bytes(bytes(one.size))
    bring(shelf, far, one)
    with shelf.get(one):
        assert shelf.reserve(far.put("large.tar", size=11_000)) is Refusal.NO_ROOM
    assert inflated.exists()
    bring(shelf, far, two)
    assert one in shelf
    assert not inflated.exists()


def test_c16_lost_files_stay_open(far, make_shelf, bring):
    """Whoever reads a shard that somebody removes reads on."""
    shelf, source = make_shelf(), far.put("a.tar")
    bring(shelf, far, source)
    with shelf.get(source) as file:
        shelf.discard(source)
        assert file.read_at(0, file.size) == far.content(source)
        assert shelf.get(source) is None


def test_the_plans_of_all_decide(far, make_shelf, bring):
    """What another process registered is not evicted for something needed later."""
    near, far_off, never, wanted = (far.put(f"{n}.tar") for n in range(4))
    shelf = make_shelf(3 * near.size)
    for source in (near, far_off, never):
        bring(shelf, far, source)
    mine = Need(shelf.folder, [wanted, wanted, far_off], zone=1)
    theirs = Need(shelf.folder, [far_off, near], zone=2)
    bring(shelf, far, wanted)
    assert never not in shelf
    more = far.put("5.tar")
    assert shelf.reserve(more) is Refusal.NO_ROOM  # nobody said that it is needed soon
    theirs.move(2, zone=0)
    also = Need(shelf.folder, [more], zone=1)
    bring(shelf, far, more)
    assert near not in shelf  # now nobody needs it any more
    for need in (mine, theirs, also):
        need.close()
    assert all(name.endswith(".shard") for name in names(shelf))


def test_damaged_needs_are_left_out(far, make_shelf, bring):
    """A file that is no order of anybody is an error for `parse` and nothing for the shelf."""
    one, two = far.put("1.tar"), far.put("2.tar")
    shelf = make_shelf(one.size)
    bring(shelf, far, one)
    need = Need(shelf.folder, [one], zone=1)
    path = shelf.folder / next(name for name in names(shelf) if name.endswith(".need"))
    good = path.read_bytes()
    assert parse(good).names == (one.name,)
    for content in (good[:-1], b"x" * 200, b""):
        with pytest.raises(Exception, match=r"whole|unpack"):
            parse(content)
        path.write_bytes(content)
    bring(shelf, far, two)
    need.close()


def test_c15_foreign_files_are_never_touched(tmp_path, far, make_shelf, bring):
    """In a folder of ours only files of our own names go; one of somebody else is refused."""
    shelf, source = make_shelf(12_000), far.put("a.tar")
    foreign = {name: name.encode() for name in ("a.shard", "b.part", "0" * 32 + ".tar", "x.need")}
    for name, content in foreign.items():
        (shelf.folder / name).write_bytes(content)
    for n in range(4):
        bring(make_shelf(12_000), far, far.put(f"{n}.tar"))
    bring(make_shelf(12_000), far, source)
    for name, content in foreign.items():
        assert (shelf.folder / name).read_bytes() == content
    assert len(names(shelf)) == len(foreign) + 1
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").touch()
    with pytest.raises(OptionError, match="not fastfeed's"):
        Shelf(home, 5000)
    assert os.listdir(home) == ["thesis.txt"]


@pytest.mark.parametrize("where", ["data", "data/cache", ".", "link", "link/cache"])
def test_c15_a_cache_folder_among_data_is_refused(tmp_path, where):
    """The data set's own folder, one inside, one around it, and links to these: all refused."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    shards = [str(tmp_path / "data" / "a.tar"), f"file://{tmp_path}/data/b.tar", "far://x/c.tar"]
    with pytest.raises(OptionError, match="apart from all data"):
        Shelf(tmp_path / where, 5000, apart_from=shards)
    Shelf(tmp_path / "other", 5000, apart_from=shards)
    assert os.listdir(tmp_path / "data") == []


def test_options_are_checked(tmp_path):
    """A cache without a name, or of a size that is none, is refused where it is written."""
    assert Cache(tmp_path, size="2GB").nbytes == 2_000_000_000
    with pytest.raises(OptionError, match="size"):
        Cache(tmp_path, size="plenty")
    with pytest.raises(OptionError, match="name"):
        Cache("")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot make a cache"):
        Shelf(tmp_path / "file", 5)


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_c23_failures_leave_nothing(far, make_shelf, bring, monkeypatch, leak_gauge, at):
    """Where writing, flushing or renaming fails there is an error, no shard and no part."""
    shelf, source = make_shelf(), far.put("a.tar")

    def fails(*_, **__):
        raise OSError(5, "Input/output error")

    target = {"write": "os.pwrite", "fsync": "os.fsync", "replace": "pathlib.Path.replace"}[at]
    monkeypatch.setattr(target, fails)
    with pytest.raises((OSError, StorageError), match="Input/output"):
        bring(shelf, far, source)
    monkeypatch.undo()
    assert names(shelf) == []
    bring(shelf, far, source)


def test_c23_an_interrupt_leaves_nothing(far, make_shelf, leak_gauge):
    """Ctrl-C in the middle of a shard removes the part."""
    shelf, source = make_shelf(), far.put("a.tar")
    with pytest.raises(KeyboardInterrupt), shelf.reserve(source) as reserved:
        reserved.write(0, memoryview(b"x"))
        raise KeyboardInterrupt
    assert names(shelf) == []


def test_c23_other_bytes_are_not_published(far, make_shelf, leak_gauge):
    """A changed byte, a page of HTML and a missing end are told apart, and none is kept."""
    shelf, source = make_shelf(), far.put("a.tar")
    right = bytearray(far.content(source))
    right[700] ^= 1
    reserved = shelf.reserve(source)
    reserved.write(0, memoryview(right))
    with pytest.raises(ChecksumError, match="other bytes"):
        reserved.publish()
    page = b"<html>Sign in to the network</html>".ljust(source.size)
    for digest in (source.digest, None):
        reserved = shelf.reserve(Source(source.url, source.size, digest))
        reserved.write(0, memoryview(page))
        with pytest.raises(ShardError, match="no shard; it begins with b'<html>Sign"):
            reserved.publish()
    reserved = shelf.reserve(source)
    os.truncate(reserved.path, 100)
    with pytest.raises(StorageError, match="100 bytes came"):
        reserved.publish()
    assert names(shelf) == []


def tars():
    """Yield valid shards of every kind, by name."""
    for name, kind in (("ustar", tarfile.USTAR_FORMAT), ("pax", tarfile.PAX_FORMAT), ("gnu", 1)):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
            tar.addfile(tarfile.TarInfo("é" * (4 if name == "ustar" else 120) + ".cls"))
        yield name, file.getvalue()
    block = bytearray(tarfile.TarInfo("a.cls").tobuf(tarfile.USTAR_FORMAT))
    block[257:265] = bytes(8)  # the format of 1979 has no magic
    block[148:156] = b"%06o\0 " % (256 + sum(block[:148]) + sum(block[156:]))
    yield "v7", bytes(block) + bytes(1024)
    yield "empty", bytes(1024)
    yield "zstd", b"\x28\xb5\x2f\xfd rest"
    yield "gzip", b"\x1f\x8b rest"


@pytest.mark.parametrize(("kind", "content"), list(tars()), ids=[kind for kind, _ in tars()])
def test_c23_valid_shards_of_every_kind(far, make_shelf, bring, kind, content):
    """Shards that begin with a pax or long-name header, of 1979, or compressed are published."""
    source = far.put(f"{kind}.tar", content, digest=False)
    shelf = make_shelf()
    bring(shelf, far, source)
    assert source in shelf


def test_c23_files_cut_later_are_not_served(far, make_shelf, bring):
    """A staged file that lost its end is dropped, not read."""
    shelf, source = make_shelf(), far.put("a.tar")
    bring(shelf, far, source)
    os.truncate(shelf.folder / f"{source.name}.shard", 100)
    assert shelf.get(source) is None
    assert names(shelf) == []


def test_c23_two_processes_stage_one_shard(tmp_path, far, make_shelf, bring, processes):
    """At a barrier, fifty times: one brings it, both can read it, nothing is left beside it."""
    start, ends = processes
    sources = [far.put(f"{n}.tar", size=600) for n in range(50)]
    make_shelf()
    gates = [os.pipe() for _ in range(2)]

    def stage(mine, other):
        shelf = make_shelf()
        for source in sources:
            os.write(other, b"x")
            os.read(mine, 1)
            reserved = shelf.reserve(source)
            if not isinstance(reserved, Refusal):
                reserved.write(0, memoryview(far.content(source)))
                reserved.publish()

    children = [
        start(lambda: stage(gates[0][0], gates[1][1])),
        start(lambda: stage(gates[1][0], gates[0][1])),
    ]
    assert ends(*children) == [0, 0]
    for pair in gates:
        os.close(pair[0])
        os.close(pair[1])
    shelf = make_shelf()
    assert len(names(shelf)) == 50
    for source in sources:
        with shelf.get(source) as file:
            digest = xxhash.xxh3_64_hexdigest(file.read_at(0, file.size))
            assert source.digest == f"xxh3_64:{digest}"


def test_c24_eight_processes_start_at_once(tmp_path, processes, bring, far):
    """Fifty times eight make the same shelf of an empty folder, and one is killed at it."""
    start, ends = processes
    source = far.put("a.tar", size=600)
    for turn in range(50):
        folder = tmp_path / f"cache-{turn}"
        receiver, sender = os.pipe()

        def begin(folder=folder, receiver=receiver, sender=sender, victim=None):
            os.close(sender)
            os.read(receiver, 1)  # the barrier: it falls when the parent closes its end
            if victim:
                os.fsync = os.pwrite = lambda *_: os.kill(os.getpid(), 9)
            shelf = Shelf(folder, 1 << 20)
            if not isinstance(reserved := shelf.reserve(source), Refusal):
                reserved.write(0, memoryview(far.content(source)))
                reserved.publish()

        children = [start(lambda n=n, killed=turn % 8: begin(victim=n == killed)) for n in range(8)]
        os.close(receiver)
        os.close(sender)
        found = ends(*children)
        assert set(found) <= {0, -9}
        assert found.count(-9) <= 1
        shelf = Shelf(folder, 1 << 20)
        if source not in shelf:  # the one killed had begun it, and the others left it to that one
            bring(shelf, far, source)
        assert names(shelf) == [f"{source.name}.shard"]


def test_threads_of_one_process(far, make_shelf, bring, leak_gauge):
    """Threads exclude each other as processes do, and the budget holds."""
    sources = [far.put(f"{n}.tar") for n in range(12)]
    shelf = make_shelf(4 * sources[0].size)

    def work(some):
        for source in some:
            try:
                bring(shelf, far, source)
            except (AttributeError, TypeError):  # refused: there is no reservation to enter
                continue
            except FastfeedError as error:  # pragma: no cover
                pytest.fail(str(error))

    threads = [threading.Thread(target=work, args=(sources[n::3],)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shelf.nbytes() <= shelf.budget
    assert len(shelf.shards()) == 4
