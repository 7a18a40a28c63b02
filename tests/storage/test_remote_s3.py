"""Objects of a real S3 interface, read by forked, spawned and threaded workers."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from multiprocessing import forkserver

import numpy as np
import pytest

import fastfeed as ff
from fastfeed.errors import OptionError, StorageError
from fastfeed.reading.shards import ShardSet
from fastfeed.storage import connection, remote
from fastfeed.storage.connection import connect
from fastfeed.storage.open import exists, facts, open_storage, read_if_there, read_whole
from fastfeed.storage.remote import RemoteFile

CONTENT = np.random.default_rng(1).bytes(200_000)


@pytest.fixture
def environment(bucket, tmp_path, monkeypatch):
    """Credentials and endpoint where S3's own tools look for them, and an empty cache folder."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.options["secret"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.options["endpoint_url"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A process reads the environment when it first needs the storage, perhaps in another test.
    connection._connection.cache_clear()
    yield
    connection._connection.cache_clear()


def test_reads_of_s3(bucket, monkeypatch):
    """Size, tag, small ranges, parallel parts and whole files."""
    monkeypatch.setattr(remote, "PART", 64 << 10)
    url = bucket.put("a b/x+y.tar", CONTENT)
    with open_storage(url, storage_options=bucket.options) as storage:
        assert storage.size == len(CONTENT)
        assert storage.read_at(1100, 50) == CONTENT[1100:1150]
        buffer = np.zeros(len(CONTENT), np.uint8)
        storage.read_into(0, buffer.data)
        assert buffer.tobytes() == CONTENT
    assert facts(url, storage_options=bucket.options).tag.startswith('"')
    assert read_whole(url, limit=200_000, storage_options=bucket.options) == CONTENT
    with pytest.raises(StorageError, match="more than"):
        read_whole(url, limit=199_999, storage_options=bucket.options)


@pytest.mark.parametrize("size", [0, 1, 512, 513])
def test_small_objects_of_s3(bucket, size):
    """Objects about as large as the head, and an empty one."""
    url = bucket.put("small", CONTENT[:size])
    with open_storage(url, storage_options=bucket.options) as storage:
        assert storage.size == size
        assert storage.read_at(0, 1000) == CONTENT[:size]
    assert read_whole(url, limit=size, storage_options=bucket.options) == CONTENT[:size]


def test_c26_missing_objects_and_buckets_of_s3(bucket):
    """A key and a bucket that are not there are told as such, with the server's own word."""
    missing = f"s3://{bucket.name}/missing.tar"
    assert not exists(missing, storage_options=bucket.options)
    assert read_if_there(missing, limit=10, storage_options=bucket.options) is None
    with pytest.raises(StorageError, match=r"missing\.tar.*404") as caught:
        open_storage(missing, storage_options=bucket.options).read_at(0, 1)
    with pytest.raises(StorageError, match="NoSuchBucket"):
        open_storage("s3://no-such-bucket/a", storage_options=bucket.options).read_into(
            0, memoryview(bytearray(1))
        )
    assert bucket.options["secret"] not in str(caught.value)


def test_an_object_of_s3_that_is_replaced(bucket):
    """Another object under the same key is refused by the server itself, or by its tag."""
    url = bucket.put("x.tar", CONTENT)
    storage = open_storage(url, storage_options=bucket.options)
    assert storage.size
    bucket.put("x.tar", CONTENT[::-1])
    with pytest.raises(StorageError, match="start again"):
        storage.read_at(0, 1000)


def test_c26_expired_credentials_are_renewed_once(bucket):
    """The file system is built anew when its token has expired; the read goes on."""
    url = bucket.put("x.tar", CONTENT)
    storage = open_storage(url, storage_options=bucket.options)
    assert storage.size
    connection = connect(storage._place)
    worn = connection.filesystem
    call = worn._call_s3

    class ExpiredError(Exception):
        response = {  # noqa: RUF012
            "Error": {"Code": "ExpiredToken"},
            "ResponseMetadata": {"HTTPStatusCode": 403},
        }

    async def expired(*arguments, **keywords):
        raise ExpiredError

    worn._call_s3 = expired
    assert storage.read_at(905, 5) == CONTENT[905:910]
    assert connection.filesystem is not worn
    connection.filesystem._call_s3 = expired
    worn._call_s3 = call
    connection.filesystem = Stale(connection.filesystem, connection)
    with pytest.raises(StorageError, match=r"expired.*Renew"):
        storage.read_at(905, 5)
    connection.filesystem = worn


class Stale:
    """A file system whose credentials have expired, and whose successor's have too."""

    def __init__(self, real, connection):
        self._real = real
        connection._build = lambda: self

    def __getattr__(self, name):
        return getattr(self._real, name)


@pytest.fixture
def failing(server, patience):
    """An object behind a server of S3's interface that fails on purpose; read 100 to 50,100."""
    server.put("bucket/x.tar", CONTENT, '"one"')
    options = {"key": "k", "secret": "s", "endpoint_url": server.base}

    def opened(idle_s=60.0):
        patient = dataclasses.replace(patience, idle_s=idle_s, attempts=4)
        file = RemoteFile("s3://bucket/x.tar", options=options, patience=patient)
        assert file.size == len(CONTENT)
        return lambda: file.read_at(100, 50_000)

    return opened


@pytest.mark.parametrize("kind", ["cut", "chunked cut", "drop", "stall", "status"])
def test_c21_faults_of_s3_that_pass(server, failing, hours, kind):
    """Cut, stalled and busy answers are tried again, as patiently as those of http."""
    # A silence that is waited for in vain is short; elsewhere a busy machine is no silence.
    read = failing(idle_s=1.0) if kind == "stall" else failing()
    server.fail(kind, times=2, retry_after="3")
    server.requests.clear()
    assert read() == CONTENT[100:50_100]
    if kind == "drop":  # aiohttp itself repeats a request on a connection that was kept too long
        return
    assert len(server.requests) == 3
    assert hours.slept == ([3.0, 3.0] if kind == "status" else [0.2, 0.4])


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"kind": "ignore range"}, "which range"),
        ({"kind": "wrong range"}, "100-50099 were asked for"),
        ({"kind": "longer"}, "longer than"),
        ({"kind": "new tag"}, "has changed"),
        ({"kind": "status", "status": 403}, r"refuses access \(403"),
        ({"kind": "status", "status": 404}, r"no such object \(404"),
        ({"kind": "status", "status": 412}, r"not the one that was opened \(412"),
    ],
)
def test_c19_c26_faults_of_s3_that_stay(server, failing, about, says):
    """What no second try changes is an error after the first."""
    read = failing()
    server.fail(**about)
    server.requests.clear()
    with pytest.raises(StorageError, match=says) as caught:
        read()
    assert len(server.requests) == 1
    assert caught.value.__context__ is None


def test_options_that_no_file_system_takes(bucket):
    """Options that cannot be are an OptionError that shows none of them."""
    url = bucket.put("x.tar", CONTENT)
    options = {**bucket.options, "client_kwargs": {"no_such_option": "hush-hush"}}
    with pytest.raises((OptionError, StorageError)) as caught:
        facts(url, storage_options=options)
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_c18_objects_are_read_in_children(bucket, method):
    """A child of any kind reads what its parent has read before, and the parent goes on."""
    url = bucket.put("x.tar", CONTENT)
    storage = open_storage(url, storage_options=bucket.options)
    assert storage.read_at(1000, 10) == CONTENT[1000:1010]
    # Only a forked child can import this module; others show by their end that they could read.
    child = multiprocessing.get_context(method).Process(target=storage.read_at, args=(1000, 10))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert storage.read_at(1000, 10) == CONTENT[1000:1010]


def test_c18_a_child_forked_in_the_middle_of_reads(bucket):
    """Children forked while threads of the parent read do their own reading."""
    import threading

    url = bucket.put("x.tar", CONTENT)
    storage = open_storage(url, storage_options=bucket.options)
    assert storage.size
    stop = threading.Event()
    seen = []

    def keep_reading():
        while not stop.is_set():
            seen.append(storage.read_at(850, 10) == CONTENT[850:860])

    threads = [threading.Thread(target=keep_reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if storage.read_at(870, 10) == CONTENT[870:880] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert seen
    assert all(seen)


@pytest.mark.parametrize("kind", ["fork", "forkserver", "spawn", "thread"])
def test_c18_loaders_over_s3(bucket, environment, data_set, kind):
    """Parent and user use the bucket, then workers of each kind deliver every sample once."""
    import s3fs

    for name, content in data_set.items():
        bucket.put(f"train/{name}", content)
    if kind == "forkserver":
        forkserver._forkserver._stop()  # one that runs already knows other credentials
    url = f"s3://{bucket.name}/train"
    assert len(s3fs.S3FileSystem(skip_instance_cache=True).ls(url)) == len(data_set)
    dataset = ff.ShardDataset(url, {"text": ff.Bytes("txt")})
    assert bytes(dataset[3]["text"]) == b"0,3,txt"
    workers = {"worker_kind": "thread"} if kind == "thread" else {"multiprocessing_context": kind}
    loader = ff.DataLoader(dataset, batch_size=4, num_workers=2, timeout=60, **workers)
    found = [bytes(text).decode() for batch in loader for text in batch["text"]]
    assert found == [f"{shard},{row},txt" for shard in range(2) for row in range(5)]
    assert bytes(dataset[7]["text"]) == b"1,2,txt"


def test_sources_on_s3(bucket, environment, data_set):
    """A folder, its manifest, patterns and lists of URLs mean the same samples."""
    for name, content in data_set.items():
        bucket.put(f"train/{name}", content)
    base = f"s3://{bucket.name}/train"
    for source in (
        base,
        f"{base}/",
        f"{base}/dataset.json",
        f"{base}/s-{{000..001}}.tar",
        [f"{base}/s-000.tar", f"{base}/s-001.tar"],
        f"{base}/s-000.tar::{base}/s-001.tar",
    ):
        shards = ShardSet(source)
        assert shards.starts.tolist() == [0, 5, 10]
        assert not shards._open, "the manifest said it all"
    with pytest.raises(OptionError, match=r"no dataset\.json"):
        ShardSet(f"s3://{bucket.name}/elsewhere")
