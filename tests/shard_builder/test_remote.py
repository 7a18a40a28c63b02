"""Data sets written to buckets and read from there: what arrives, what is refused, what is left."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from pathlib import Path

import pytest

from fastfeed.storage.urls import join
from fastfeed_shard.bucket import Bucket
from fastfeed_shard.main import main

SMALL = ("--shard-size", "100KiB", "--quiet")


@pytest.fixture
def place(request):
    """A remote place of the kind that a test is run with."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
@pytest.mark.parametrize("more", [(), ("--compress", "zstd"), ("--energon",)])
def test_build_to_a_bucket(source, tmp_path, place, built, contents_of, more):
    """All objects are what a build to a folder gives, and nothing else is left there or here."""
    built("build", source, tmp_path / "right", *SMALL, *more)
    dest = f"{place}/set/"
    built("build", source, dest, *SMALL, *more, "--jobs", "2")
    assert contents_of(dest) == contents_of(tmp_path / "right")
    assert main(["verify", dest, "--quiet", "--jobs", "2"]) == 0


def test_disk_and_order(source, tmp_path, memory, built, temporary, monkeypatch):
    """At most two shards a job are on this machine; index after shard, manifest last, no rest."""
    sent, held = [], []
    put = Bucket.put

    def noted(self, path, name):
        sent.append(name)
        held.append(len(list(temporary.rglob("*.tar"))))
        put(self, path, name)

    monkeypatch.setattr(Bucket, "put", noted)
    built("build", source, memory, *SMALL, "--jobs", "2")
    assert max(held) <= 4
    assert sent[-1] == "dataset.json"
    for name in sent:
        if name.endswith(".ffx"):
            assert sent.index(name.replace(".ffx", ".tar")) < sent.index(name)
    assert list(temporary.iterdir()) == []
    assert not any(name.startswith(".") for name in Bucket(memory).names())


def test_what_lies_there_is_never_overwritten(source, memory, run, built, contents_of):
    """Objects of others, or a complete data set, are refused; so is what can't be written to."""
    Bucket(memory).write("notes.txt", b"mine")
    code, _, err = run("build", source, memory, *SMALL)
    assert code == 2
    assert "nothing is overwritten" in err
    assert contents_of(memory) == {"notes.txt": b"mine"}
    built("build", source, f"{memory}/new", *SMALL)
    code, _, err = run("build", source, f"{memory}/new", *SMALL)
    assert code == 2
    assert "complete data set" in err
    code, out, _ = run("build", source, f"{memory}/new", *SMALL, "--resume")
    assert (code, "complete already" in out) == (0, True)
    code, _, err = run("build", source, f"{memory}/new", "--resume")
    assert code == 2
    assert "other shards" in err
    code, _, err = run("build", source, "https://user:password@host.invalid/x?sig=abc", *SMALL)
    assert code == 2
    assert "cannot be written" in err
    assert "password" not in err
    assert "abc" not in err


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
def test_remote_sources(source, tmp_path, place, built, contents_of, samples_of):
    """Shards of a bucket are converted, merged, resharded, listed, shown and extracted."""
    small = ("--shard-size", "200KiB", "--quiet")
    built("build", source, f"{place}/in", *small)
    built("build", source, tmp_path / "right", *small)
    dest = tmp_path / "out"
    built("convert", f"{place}/in", dest, "--quiet", "--jobs", "2")
    assert contents_of(dest) == contents_of(tmp_path / "right")
    built("convert", f"{place}/in", f"{place}/z", "--compress", "zstd", "--quiet", "--jobs", "2")
    built("reshard", f"{place}/z", tmp_path / "two", "--shards", "2", "--shuffle", "1", "--quiet")
    assert samples_of(tmp_path / "two") == samples_of(dest)
    built(
        *("merge", f"{place}/in", f"{place}/z/dataset.json", f"{place}/m"),
        *("--prefix", "x/,y/", "--quiet", "--jobs", "1"),
    )
    listed = built("ls", f"{place}/m").splitlines()
    assert len(listed) == 80
    assert "y/b/039" in built("ls", f"{place}/m")
    built("extract", f"{place}/in", tmp_path / "files", "--quiet")
    assert (tmp_path / "files/a/000.bin").read_bytes() == (source / "a/000.bin").read_bytes()


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, whole or a range of one."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(403)  # as S3 hides what is missing
            return
        content = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(content))
        part = content[start:stop]
        self.send_response(206 if asked else 200)
        if asked:
            end = start + len(part) - 1
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """The URL of a web server for the files in `tmp_path`."""
    handler = functools.partial(Ranges, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_server(source, tmp_path, web, run, built):
    """A folder of a web server is known by its manifest, and read by ranges."""
    built("build", source, tmp_path / "in", *SMALL)
    manifest, pattern = f"{web}/in/dataset.json", f"{web}/in/train-{{000000..000001}}.tar"
    for number, src in enumerate((f"{web}/in", manifest, pattern)):
        built("convert", src, tmp_path / str(number), "--quiet")
        listed = built("ls", tmp_path / str(number)).splitlines()
        assert len(listed) == (len(built("ls", pattern).splitlines()) if number == 2 else 40)
    assert main(["verify", f"{web}/in", "--quiet"]) == 0
    code, _, err = run("convert", f"{web}/nothing", tmp_path / "no")
    assert code == 2
    assert "holds nothing" in err


def test_foreign_formats_in_a_bucket(tmp_path, memory, built, samples_of, parquet):
    """Parquet in a bucket is read by ranges, its folder told by a listing."""
    Bucket(memory).write("data/part-0.parquet", parquet.read_bytes())
    built("convert", memory, tmp_path / "out", "--quiet")
    assert len(samples_of(tmp_path / "out")) == 40


def test_verify_finds_what_is_wrong(source, memory, run, built, contents_of):
    """A changed byte, a missing index and a shard too many are found, by their URLs."""
    built("build", source, memory, *SMALL)
    right = contents_of(memory)
    bucket = Bucket(memory)
    shard = bytearray(right["train-000001.tar"])
    shard[2000] ^= 1
    bucket.write("train-000001.tar", bytes(shard))
    bucket.remove(["train-000002.ffx"])
    bucket.write("train-000099.tar", right["train-000000.tar"])
    code, _, err = run("verify", memory)
    assert code == 1
    assert join(memory, "train-000001.tar") in err
    assert "the index is missing" in err
    assert join(memory, "train-000002.tar") in err
    assert "'train-000099.tar'" in err
    bucket.remove(["train-000001.tar"])
    code, _, err = run("verify", memory)
    assert code == 1
    assert "no such object" in err


def test_stage(source, tmp_path, memory, run, built, contents_of):
    """Shards come to the cache once, and a shelf that is too small keeps what it can."""
    built("build", source, memory, *SMALL)
    shards = [name for name in contents_of(memory) if name.endswith(".tar")]
    out = built("stage", memory, tmp_path / "cache", "--dry-run")
    assert f"{len(shards)} shards" in out
    assert not (tmp_path / "cache").exists()
    out = built("stage", memory, tmp_path / "cache", "--size", "1GB")
    assert f"{len(shards)} of {len(shards)} shards are in" in out
    out = built("stage", memory, tmp_path / "cache", "--size", "1GB")
    assert " 0 B brought" in out
    code, out, err = run("stage", memory, tmp_path / "small", "--size", "100KiB")
    assert code == 1
    assert f"of {len(shards)} shards are in" in out
    assert memory in err
    code, _, err = run("stage", source, tmp_path / "cache")
    assert code == 2


def test_a_bucket_that_is_not_there(source, s3, run):
    """The error has the URL and the server's word, and no credentials."""
    code, _, err = run("build", source, "s3://no-such-bucket-here/x", *SMALL)
    assert code == 1
    assert "s3://no-such-bucket-here/x" in err
    assert "NoSuchBucket" in err
    assert "a-secret-for-tests" not in err
