"""ShardSet: sources, counting, opening few, and noticing what does not fit together."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest

from fastfeed.errors import (
    IndexMismatchError,
    OptionError,
    ShardError,
    StorageError,
    TarError,
)
from fastfeed.reading.shards import ShardSet
from fastfeed.shardfile.index import load_index


def names_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def three(folder):
    """Three indexed shards of 5, 0 and 3 samples with their manifest."""
    paths = [folder.shard(number, samples) for number, samples in enumerate((5, 0, 3))]
    folder.manifest(paths)
    return paths


def test_a_folder_with_a_manifest(folder, three):
    """Counts come from the manifest, and no shard or index is opened for them."""
    for path in three:
        path.rename(path.with_suffix(".away"))
    shards = ShardSet(folder.path)
    assert (len(shards), shards.shard_count, shards.fields) == (8, 3, ("cls", "jpg"))
    assert shards.starts.tolist() == [0, 5, 5, 8]
    assert shards.samples.tolist() == [5, 5, 8]
    assert shards.shard_bytes.tolist() == [p.with_suffix(".away").stat().st_size for p in three]
    with pytest.raises(StorageError, match=r"s-000\.tar"):
        shards.open(0)


def test_sources_that_mean_the_same(folder, three):
    """Folder, manifest, list, pattern, join and URL give the same samples."""
    base = str(folder.path)
    sources = [
        folder.path,
        base,
        f"{base}/dataset.json",
        three,
        [str(path) for path in three],
        f"{base}/s-{{000..002}}.tar",
        f"{base}/s-000.tar::{base}/s-{{001,002}}.tar",
        [path.as_uri() for path in three],
    ]
    for source in sources:
        shards = ShardSet(source)
        assert shards.starts.tolist() == [0, 5, 5, 8], source
        assert shards.key(2, 1) == "k2/0001"


def test_c11_fields_are_counted(folder, three):
    """For the message that a field is nowhere: what is there, from the manifest or the shards."""
    assert ShardSet(folder.path).count_fields() == {"cls": 8, "jpg": 8}
    assert ShardSet(three).count_fields() == {"cls": 8, "jpg": 8}
    assert ShardSet(three[:1]).count_fields() == {"cls": 5, "jpg": 5}


def test_names_are_shown_as_the_user_wrote_them(folder, three):
    """Errors speak of a shard as the user does."""
    url = three[0].as_uri()
    assert ShardSet(url).name(0) == url


def test_sources_without_shards(folder):
    """An empty list, a folder without manifest and unknown URLs are OptionErrors with a way out."""
    folder.shard(0)
    for source in ([], folder.path, "nowhere://bucket/{0..1}.tar", "nowhere://bucket/a.tar"):
        with pytest.raises(OptionError):
            ShardSet(source)
    with pytest.raises(StorageError, match="missing"):
        ShardSet(folder.path / "missing.tar")


def test_what_cannot_be_looked_at(folder, three, monkeypatch):
    """A name that the system refuses, and an index on a disk that fails, are errors of storage."""
    with pytest.raises(StorageError, match="File name too long"):
        ShardSet(str(folder.path / ("x" * 300))).open(0)
    real = os.stat

    def stat(path, *args, **more):
        if str(path).endswith(".ffx"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(StorageError, match=r"cannot open .*ffx.*Input/output error"):
        ShardSet(three).open(0)


def test_locate(folder, three):
    """Sample numbers map to shard and row, past an empty shard; others are refused."""
    shards = ShardSet(folder.path)
    numbers, rows = shards.locate(np.array([0, 4, 5, 7]))
    assert numbers.tolist() == [0, 0, 2, 2]
    assert rows.tolist() == [0, 4, 0, 2]
    for outside in (-1, 8):
        with pytest.raises(OptionError, match="0 to 7"):
            shards.locate(np.array([0, outside]))


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_keys_are_read_from_headers(folder, format):  # noqa: A002
    """Keys need no room in memory; long names and all alphabets come back."""
    path = folder.shard(0, fields=("x" * 120, "ä"), format=format)
    assert ShardSet(path).key(0, 3) == "k0/0003"


def test_foreign_shards_are_indexed_once(folder):
    """A shard of another tool gets an index beside it on first use, which is used from then on."""
    path = folder.shard(0)
    assert len(ShardSet(path)) == 5
    index = folder.path / "s-000.ffx"
    assert load_index(index, verify=True).fields == ("cls", "jpg")
    assert not any(name.startswith(".") for name in names_in(folder.path))
    before = index.stat().st_mtime_ns
    assert len(ShardSet(path)) == 5
    assert index.stat().st_mtime_ns == before


class ReadOnly:
    """A folder that refuses new files, also to root."""

    def __init__(self, monkeypatch, folder):
        from fastfeed.reading import indexing

        write = indexing.write_whole

        def refuse(path, data):
            if Path(path).parent == folder:
                raise StorageError(f"cannot write {path!r}: Read-only file system")
            write(path, data)

        monkeypatch.setattr(indexing, "write_whole", refuse)


def test_read_only_folders_use_the_cache(folder, tmp_path, monkeypatch):
    """Where no file may be written the index goes to the cache; without one the error says so."""
    ReadOnly(monkeypatch, folder.path)
    path = folder.shard(0)
    with pytest.raises(StorageError, match="cache folder"):
        ShardSet(path)
    cache = tmp_path / "deep" / "cache"
    assert len(ShardSet(path, cache=cache)) == 5
    (kept,) = cache.iterdir()
    before = kept.stat().st_mtime_ns
    assert len(ShardSet(path, cache=cache)) == 5
    assert kept.stat().st_mtime_ns == before
    folder.shard(0, samples=6)
    assert len(ShardSet(path, cache=cache)) == 6, "a new shard has a new name in the cache"


def test_racing_first_uses(folder):
    """Several first uses at once each end with a whole index."""
    path = folder.shard(0, samples=50)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: len(ShardSet(path)), range(16))) == [50] * 16
    assert names_in(folder.path) == ["s-000.ffx", "s-000.tar"]


def test_c01_a_cut_shard_never_is_a_shorter_epoch(folder):
    """A foreign shard that is cut raises at first use and leaves no index."""
    path = folder.shard(0)
    data = path.read_bytes()
    for cut in (0, 512, 1024 + 300, 3000, len(data.rstrip(b"\0"))):
        path.write_bytes(data[:cut])
        with pytest.raises(TarError) as caught:
            ShardSet(path)
        assert caught.value.shard == str(path)
    assert names_in(folder.path) == ["s-000.tar"]


@pytest.mark.parametrize("known", ["index", "manifest"])
@pytest.mark.parametrize("change", [lambda d: d[:-512], lambda d: d + bytes(512)])
def test_c01_a_shard_of_another_size_than_indexed(folder, known, change):
    """Cut or grown since it was indexed: an error that says to index again."""
    path = folder.shard(0)
    folder.manifest([path]) if known == "manifest" else folder.index(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(IndexMismatchError, match="fastfeed-shard index") as caught:
        ShardSet(path).open(0)
    assert caught.value.shard == str(path)


def test_c01_a_cut_shard_is_to_be_copied_again(folder):
    """Another index alone would make a short shard of it."""
    path = folder.shard(0)
    folder.index(path)
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(IndexMismatchError, match="copy or build it again"):
        ShardSet(path)


def test_an_index_of_another_shard_of_the_same_size(folder):
    """Other members under the same size: the last header gives it away."""
    path = folder.shard(0, samples=3)
    folder.index(path)
    size = path.stat().st_size
    folder.shard(0, samples=2)
    path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    with pytest.raises(IndexMismatchError, match="another file"):
        ShardSet(path)


def test_a_manifest_that_does_not_fit(folder, three):
    """A shard with other samples or bytes than the manifest lists is refused when it is opened."""
    folder.index(folder.shard(2, samples=4))
    with pytest.raises(IndexMismatchError, match="manifest") as caught:
        ShardSet(folder.path).open(2)
    assert caught.value.shard.endswith("s-002.tar")


def test_a_damaged_manifest(folder, three):
    """Junk in dataset.json is a ShardError, also when shards are named one by one."""
    (folder.path / "dataset.json").write_text("{")
    for source in (folder.path, three):
        with pytest.raises(ShardError, match="manifest is damaged"):
            ShardSet(source)


def test_a_missing_chunk_of_the_manifest(folder):
    """A manifest whose parts are not all there is damaged, not shorter."""
    (folder.path / "dataset.json").write_text(
        '{"format": "fastfeed", "version": 1, "samples": 0, "fields": {}, "chunks": ["c.json"]}'
    )
    with pytest.raises(ShardError, match=r"c\.json.*missing"):
        ShardSet(folder.path)


def test_few_shards_are_open(folder, read_all, leak_gauge):
    """Descriptors stay bounded, whatever the order of reads."""
    paths = [folder.shard(number, 2) for number in range(12)]
    folder.manifest(paths)
    shards = ShardSet(folder.path, max_open=3)
    before = len(names_in("/proc/self/fd"))
    for index in np.random.default_rng(0).integers(0, 24, 200).tolist():
        ((cls, _),) = read_all(shards, [index])
        assert cls == folder.content(index // 2, index % 2, "cls")
        assert len(names_in("/proc/self/fd")) <= before + 6


def test_threads_share_a_shard_set(folder, read_all):
    """Threads that push each other's shards out of the few open ones read the right bytes."""
    paths = [folder.shard(number, 2) for number in range(8)]
    folder.manifest(paths)
    shards = ShardSet(folder.path, max_open=2)
    indices = np.random.default_rng(1).integers(0, 16, 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        for index, ((cls, _),) in zip(
            indices, pool.map(lambda i: read_all(shards, [i]), indices), strict=True
        ):
            assert cls == folder.content(index // 2, index % 2, "cls")


def test_pickled_and_forked(folder, three, read_all):
    """A copy in another process opens its own files; a forked one goes on with those open."""
    shards = ShardSet(folder.path)
    right = read_all(shards, range(8))
    copy = pickle.loads(pickle.dumps(shards))
    assert not copy._open
    assert read_all(copy, range(8)) == right
    child = os.fork()
    if child == 0:
        os._exit(0 if read_all(shards, range(8)) == right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_advise(folder, three):
    """The hint to read ahead is harmless."""
    ShardSet(folder.path).advise(0)


def test_a_fork_does_not_wait_for_the_readers_of_remote_shards(folder, leak_gauge):
    """A forked copy ends though a thread was at them; and they end with the shards."""
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/far/s-000.tar", folder.shard(0).read_bytes())
    shards = ShardSet("memory://far/s-000.tar")
    readers = shards.far_readers()
    assert readers.submit(int).result() == 0
    with readers._shutdown_lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            del readers, shards
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    threads = list(readers._threads)
    del readers, shards
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    memory.rm("/far", recursive=True)
