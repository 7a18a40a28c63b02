"""Ranged reads over http: exact, or an error that says what the server did."""

from __future__ import annotations

import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fastfeed.errors import StorageError
from fastfeed.storage import remote
from fastfeed.storage.answers import Facts
from fastfeed.storage.open import exists, facts, open_storage, read_if_there, read_whole
from fastfeed.storage.remote import RemoteFile

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Split reads at 64 KiB, so that few bytes make many parts."""
    monkeypatch.setattr(remote, "PART", 64 << 10)


@pytest.fixture
def opened(server, patience):
    """An object of 300,000 bytes on the server."""
    return RemoteFile(server.put("a.tar", CONTENT, '"one"'), patience=patience)


def all_of(storage, size=300_000, offset=0):
    buffer = np.zeros(size, np.uint8)
    storage.read_into(offset, buffer.data)
    return buffer.tobytes()


def test_c19_a_server_that_serves_ranges(server, opened):
    """Bytes come from where they were asked for, small ones in one request, large ones in parts."""
    assert opened.facts == Facts(300_000, '"one"')
    before = len(server.requests)
    assert opened.read_at(1100, 50) == CONTENT[1100:1150]
    assert len(server.requests) == before + 1
    assert all_of(opened) == CONTENT
    assert len(server.requests) == before + 1 + 5
    assert all_of(opened, 200_000, 77) == CONTENT[77:200_077]
    assert opened.read_at(299_990, 50) == CONTENT[-10:]
    assert opened.read_at(300_000, 50) == b""
    assert {request.method for request in server.requests} == {"GET"}
    assert all(r.headers["Accept-Encoding"] == "identity" for r in server.requests)


def test_the_head_comes_with_the_facts(server, opened):
    """To ask what kind of file it is costs no request beyond the first."""
    assert opened.read_at(0, 512) == CONTENT[:512]
    assert opened.read_at(500, 12) == CONTENT[500:512]
    assert len(server.requests) == 1
    assert opened.read_at(0, 513) == CONTENT[:513]
    assert len(server.requests) == 2


@pytest.mark.parametrize("size", [1, 511, 512, 513])
def test_small_objects(server, size):
    """Objects about as large as the head."""
    storage = open_storage(server.put("small", CONTENT[:size]))
    assert storage.read_at(0, 1000) == CONTENT[:size]
    assert storage.size == size
    assert storage.read_at(size - 1, 5) == CONTENT[size - 1 : size]


def test_open_storage_asks_nothing_before_it_must(server):
    """Opening sends no request; the first read is the first."""
    url = server.put("a.tar", CONTENT)
    with open_storage(url) as storage:
        assert not server.requests
        storage.advise(0, 100)
        buffer = bytearray(10)
        storage.read_into(5, memoryview(buffer))
        assert buffer == CONTENT[5:15]
        assert len(server.requests) == 1
        assert storage.size == len(CONTENT)
        assert len(server.requests) == 1, "the answer to the read said the size"
    with pytest.raises(StorageError, match="closed"):
        storage.read_at(0, 1)


@pytest.mark.parametrize("kind", ["ignore range", "ignore range chunked"])
def test_c19_a_server_that_ignores_ranges(server, opened, kind):
    """From the start the one long answer is read; a range further on is an error, never a guess."""
    assert opened.size
    server.fail(kind)
    assert all_of(opened) == CONTENT
    assert opened.read_at(0, 1000) == CONTENT[:1000]
    with pytest.raises(StorageError, match=r"ignores Range.*honours Range") as caught:
        opened.read_at(1100, 50)
    assert caught.value.offset == 1100


def test_c19_ranges_ignored_now_and_then(server, opened):
    """Parts are never put together from answers of both kinds."""
    assert opened.size
    server.fail("ignore range", times=2)
    assert all_of(opened) == CONTENT, "the start is read again in one answer"
    server.fail("ignore range", times=2)
    with pytest.raises(StorageError, match="ignores Range"):
        all_of(opened, 200_000, 1)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("wrong range", r"bytes 1100-1149 were asked for, and 1099-1148 came"),
        ("no content range", "does not say which range"),
        ("longer", "longer than the range"),
        ("gzip", r"encoded as gzip.*Switch compression off"),
    ],
)
def test_c19_answers_that_are_not_what_was_asked_for(server, opened, kind, says):
    """A wrong range, one without a name, too many bytes and a gzipped body are errors at once."""
    assert opened.size
    server.fail(kind)
    before = len(server.requests)
    with pytest.raises(StorageError, match=says):
        opened.read_at(1100, 50)
    assert len(server.requests) == before + 1


@pytest.mark.parametrize("kind", ["chunked", "no length"])
def test_c19_answers_without_a_length(server, opened, kind):
    """A ranged answer proves itself by its range; a file read whole by its end."""
    server.fail(kind)
    assert opened.read_at(1100, 50) == CONTENT[1100:1150]
    assert all_of(opened) == CONTENT
    assert opened.read_all(300_000) == CONTENT


def test_c19_a_server_that_does_not_say_the_size(server, opened):
    """A size that nobody says is an error with a way out."""
    server.fail("ignore range chunked")
    with pytest.raises(StorageError, match=r"does not say how large.*local disk"):
        opened.size  # noqa: B018


def test_c21_cut_answers_go_on_where_they_ended(server, opened, hours):
    """What a cut answer brought is kept; the next request asks for the rest alone."""
    assert opened.size
    server.fail("cut", times=2)
    assert opened.read_at(1000, 50_000) == CONTENT[1000:51_000]
    ranges = [request.range for request in server.requests[1:]]
    assert ranges == ["bytes=1000-50999", "bytes=21000-50999", "bytes=33000-50999"]
    assert hours.slept == [0.2, 0.4]


@pytest.mark.parametrize("kind", ["cut", "chunked cut", "drop", "stall"])
def test_c21_every_part_of_a_large_read_is_tried_again(server, opened, kind):
    """Resets, cut bodies and stalls in the middle of parallel parts leave the right bytes."""
    impatient = RemoteFile(
        server.url("a.tar"), patience=dataclasses.replace(opened._patience, idle_s=0.3)
    )
    assert impatient.size
    server.fail(kind, times=4)
    assert all_of(impatient) == CONTENT


def test_c21_a_stalled_server_is_given_up(server, opened, hours):
    """A server that never sends the end fails within attempts and deadline, and says so."""
    assert opened.size
    server.fail("stall")
    quick = RemoteFile(server.url("a.tar"), patience=_few(opened, 3), facts=opened.facts)
    with pytest.raises(StorageError, match=r"a\.tar.*nothing arrived in time.*tried 3 times"):
        quick.read_at(1000, 50_000)


def _few(opened, attempts):
    return dataclasses.replace(opened._patience, attempts=attempts, idle_s=0.1)


def test_c21_c26_busy_servers_are_waited_for(server, opened, hours):
    """503 and 429 are tried again, after as long as the server asks for."""
    assert opened.size
    server.fail("status", status=503, times=1, retry_after="7")
    server.fail("status", status=429, times=1)
    server.fail("status", status=500, times=1)
    assert opened.read_at(0, 1000) == CONTENT[:1000]
    assert hours.slept == [7.0, 0.4, 0.8]


def test_c21_a_failed_part_ends_the_read(server, opened):
    """When one part fails for good the read ends, though another part is still stalled."""
    assert opened.size
    server.fail("stall", times=1)
    server.fail("status", status=403, times=4)
    with pytest.raises(StorageError, match="403"):
        all_of(opened)
    server.closing.set()


def test_c21_a_deadline_for_all_attempts(server, opened, hours):
    """A server that always fails is an error in bounded time, naming URL, attempts and cause."""
    assert opened.size
    server.fail("status", status=500)
    with pytest.raises(StorageError, match=r"a\.tar.*500.*tried 10 times in \d+ s") as caught:
        opened.read_at(0, 1000)
    assert hours.now < opened._patience.total_s
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_c21_a_server_that_asks_for_too_much_patience(server, opened, hours):
    """A Retry-After beyond the deadline is not waited for."""
    assert opened.size
    server.fail("status", status=503, retry_after="3600")
    with pytest.raises(StorageError, match="busy"):
        opened.read_at(0, 1000)
    assert hours.now == 0


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (404, r"no such object \(404 Not Found\).*Check its name"),
        (403, r"refuses access \(403 Forbidden\).*credentials"),
        (401, r"refuses access \(401"),
        (400, r"does not do as asked \(400"),
    ],
)
def test_c26_answers_that_stay_are_not_tried_again(server, opened, hours, status, says):
    """Missing, forbidden and malformed are told apart, each after one request."""
    server.fail("status", status=status)
    with pytest.raises(StorageError, match=says):
        opened.size  # noqa: B018
    assert len(server.requests) == 1
    assert not hours.slept


def test_c26_negative_answers_are_not_remembered(server, opened):
    """What was missing or forbidden a moment ago is asked for again."""
    server.fail("status", status=404, times=1)
    server.fail("status", status=403, times=1)
    for _ in range(2):
        with pytest.raises(StorageError):
            opened.size  # noqa: B018
    assert opened.size == len(CONTENT)


def test_small_files(server):
    """Manifests and indexes: whole, up to a limit, and told apart from those not there."""
    url = server.put("dataset.json", b"{}")
    assert read_whole(url, limit=2) == b"{}"
    assert read_if_there(url, limit=2) == b"{}"
    assert exists(url)
    assert facts(url).size == 2
    with pytest.raises(StorageError, match="more than 1 bytes"):
        read_whole(url, limit=1)
    missing = server.url("missing.json")
    assert not exists(missing)
    assert read_if_there(missing, limit=2) is None
    server.fail("status", status=403)
    assert read_if_there(url, limit=2) is None
    with pytest.raises(StorageError, match="refuses"):
        exists(url)


def test_an_empty_object(server):
    """Nothing is a size like others."""
    url = server.put("empty", b"")
    assert facts(url).size == 0
    assert read_whole(url, limit=0) == b""
    assert open_storage(url).read_at(0, 10) == b""


def test_another_tag_is_another_file(server, opened):
    """An object that changes between two reads, or between two parts, is an error."""
    assert opened.read_at(0, 1000) == CONTENT[:1000]
    server.put("a.tar", CONTENT[::-1], '"two"')
    with pytest.raises(StorageError, match=r"has changed.*\"one\".*\"two\".*start again"):
        opened.read_at(0, 1000)
    again = RemoteFile(server.url("a.tar"))
    assert again.size
    server.fail("new tag", times=1)
    with pytest.raises(StorageError, match="has changed"):
        all_of(again)


def test_an_object_that_shrinks(server, opened):
    """Reads beyond the new end are an error, whether there are tags or not."""
    assert opened.size
    server.put("a.tar", CONTENT[:1000], '"one"')
    with pytest.raises(StorageError, match="ends at 1,000"):
        opened.read_at(900, 200)
    with pytest.raises(StorageError, match="416"):
        opened.read_at(5000, 200)
    with pytest.raises(StorageError, match="300,000 bytes"):
        opened.read_into(299_999, memoryview(bytearray(2)))


@pytest.mark.parametrize("kind", ["drop", "cut", "status", "gzip", "wrong range"])
def test_secrets_are_never_shown(server, opened, kind):
    """Passwords, signatures and headers are in no error, no repr and no cause of an error."""
    server.fail(kind, status=403)
    for url, options in (
        (server.base.replace("//", "//user:hunter22@") + "/a.tar?X-Amz-Signature=abcdef0123", {}),
        (server.url("a.tar?sig=x"), {"headers": {"Authorization": "Bearer topsecret1"}}),
    ):
        storage = RemoteFile(url, options=options, patience=_few(opened, 1))
        with pytest.raises(StorageError) as caught:
            storage.read_at(1000, 100)
        error = caught.value
        assert server.requests[-1].headers["Authorization"] in {
            "Basic dXNlcjpodW50ZXIyMg==",
            "Bearer topsecret1",
        }
        assert "a.tar?***" in str(error)
        seen = [str(error), repr(storage), repr(storage._place)]
        seen += [repr(error.__context__), repr(error.__cause__)]
        for secret in ("hunter22", "abcdef0123", "topsecret1", "dXNlcj"):
            assert not [text for text in seen if secret in text]


def test_options_reach_the_server(server):
    """Headers that the user gives for the file system are sent with each request."""
    url = server.put("a.tar", CONTENT)
    server.need["X-Token"] = "sesame"
    with pytest.raises(StorageError, match="403"):
        facts(url)
    options = {"headers": {"X-Token": "sesame"}}
    assert open_storage(url, storage_options=options).read_at(5, 5) == CONTENT[5:10]


def test_threads_share_an_object(opened):
    """Many threads read their own ranges of one object at once."""
    places = [i * 7919 % 299_000 for i in range(100)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: opened.read_at(place, 500), places))
    assert found == [CONTENT[place : place + 500] for place in places]


def test_a_late_answer_writes_nowhere(server, opened):
    """A request that was given up never writes into memory that is somebody else's by then."""
    from fastfeed.storage.answers import Sink

    buffer = bytearray(10)
    sink = Sink(memoryview(buffer))
    sink.take(b"abc")
    sink.release()
    with pytest.raises(ValueError, match="released"):
        sink.take(b"def")
    assert bytes(buffer) == b"abc" + bytes(7)


def test_pickled(server):
    """A copy reads the same version of the object, over a connection of its own."""
    opened = RemoteFile(server.put("a.tar", CONTENT))
    assert opened.size
    copy = pickle.loads(pickle.dumps(opened))
    assert copy.facts == opened.facts
    assert copy.read_at(7, 7) == CONTENT[7:14]


@pytest.fixture
def warm(server, opened):
    """The object, once as many connections are open and kept as its parts can ever take."""
    server.latency = 0.1  # so that no part ends before the last has begun
    for _ in range(2):
        all_of(opened)
    server.latency = 0.0
    return opened


def test_c28_leaving_early_leaves_nothing(server, warm, leak_gauge):
    """A hundred files opened, read once and dropped leave no thread, descriptor or child."""
    for turn in range(100):
        with open_storage(server.url("a.tar")) as storage:
            storage.read_at(0, 1000)
        if turn % 10 == 0:
            all_of(warm)


def test_nginx(nginx):
    """A real server: ranges, parts, tags, and compression that we ask it not to use."""
    folder, base = nginx
    (folder / "a.tar").write_bytes(CONTENT)
    (folder / "a.json").write_bytes(b"[0]" * 10_000)
    storage = open_storage(f"{base}/a.tar")
    assert storage.size == len(CONTENT)
    assert all_of(storage) == CONTENT
    assert storage.read_at(1234, 567) == CONTENT[1234:1801]
    assert read_whole(f"{base}/a.json", limit=30_000) == b"[0]" * 10_000
    assert not exists(f"{base}/b.tar")
    (folder / "a.tar").write_bytes(CONTENT[:100_000])
    with pytest.raises(StorageError, match="changed"):
        storage.read_at(0, 1000)
