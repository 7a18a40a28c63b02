"""What may be shown of a URL, and what its parts are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import Bytes, ShardDataset
from fastfeed.errors import FastfeedError
from fastfeed.storage.urls import (
    base_name,
    is_remote,
    join,
    parent,
    scheme_of,
    scrubbed,
    secrets_in,
    shown,
    unsigned,
)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("s3://bucket/a b.tar", "s3://bucket/a b.tar"),
        ("https://u:p@host:1/a.tar", "https://***@host:1/a.tar"),
        ("https://token@host/a.tar?X-Amz-Signature=1", "https://***@host/a.tar?***"),
        ("https://host/a.tar?sig=1#part", "https://host/a.tar?***"),
        ("https://[broken/a.tar", "https://[broken/a.tar"),
        ("https://u:p@[broken/a.tar?sig=1", "https://***@[broken/a.tar?***"),
        ("s3://b/train#1.tar", "s3://b/train#1.tar"),
        ("s3://key:se#cret@b/train#1.tar?k=#v", "s3://***@b/train#1.tar?***"),
        ("/local/a?b.tar", "/local/a?b.tar"),
        ("file:///a%20b.tar", "file:///a%20b.tar"),
    ],
)
def test_shown(url, right):
    """Passwords, queries and fragments stay away; the rest helps to find the object."""
    assert shown(url) == right


@given(st.text(st.characters(codec="ascii"), min_size=6), st.sampled_from(["user", "query"]))
def test_no_secret_is_ever_shown(text, place):
    """Whatever the secret looks like, quoted or not, a shown URL lacks it."""
    from urllib.parse import quote

    secret = quote(text, safe="")
    url = {"user": f"https://me:{secret}@host/a", "query": f"https://host/a?k={secret}"}[place]
    assert shown(url) in {"https://***@host/a", "https://host/a?***"}


@given(st.text())
def test_any_text_is_a_path_or_a_url(text):
    """No text makes these functions fail."""
    shown(text)
    scrubbed(text, ("abcd",))
    secrets_in(text, {})
    unsigned(text)
    assert is_remote(text) == (scheme_of(text) not in {None, "file"})


def test_foreign_messages():
    """URLs within a message lose their queries, and the secrets of the options are cut out."""
    url = "https://u:pass1@h/x"
    options = {
        "key": "AKIAEXAMPLE",
        "endpoint_url": "http://minio:9000",
        "client_kwargs": {"headers": ["Bearer abcdefgh"], "raw": b"bytes1"},
        "anon": False,
    }
    secrets = secrets_in(url, options)
    assert set(secrets) == {"AKIAEXAMPLE", "Bearer abcdefgh", "abcdefgh", "bytes1", "pass1"}
    text = "GET https://h/x?sig=1 : key AKIAEXAMPLE, abcdefgh at http://minio:9000 for 'pass1'"
    right = "GET https://h/x?*** : key ***, *** at http://minio:9000 for '***'"
    assert scrubbed(text, secrets) == right


def test_parts():
    """Base name, folder and neighbours of an object, with and without a query."""
    assert base_name("s3://b/x/a?b.tar") == "a?b.tar"
    assert base_name("https://h/x/a%20b.tar?q=/c") == "a b.tar"
    assert base_name("s3://b/x/") == ""
    assert base_name("s3://b/x/train#1.tar") == "train#1.tar"
    assert base_name("https://h/x/a.tar#part") == "a.tar"
    assert parent("https://h/x/a.tar?q=1#part") == "https://h/x?q=1"
    assert parent("https://h/x/a.tar?q=1") == "https://h/x?q=1"
    assert parent("s3://b/a.tar") == "s3://b"
    assert join("s3://b/x/", "a b.tar") == "s3://b/x/a b.tar"
    assert join("https://h/x?q=1", "d/a b#.tar") == "https://h/x/d/a%20b%23.tar?q=1"
    assert scheme_of("S3://b") == "s3"
    assert scheme_of("C:/x") is None


SIGNED = [
    (
        "X-Amz-Algorithm=a&X-Amz-Credential=c&X-Amz-Date={0}&X-Amz-Expires=9&X-Amz-SignedHeaders=host"
        "&X-Amz-Security-Token={0}&X-Amz-Signature={0}"
    ),
    (
        "X-Goog-Algorithm=a&X-Goog-Credential=c&X-Goog-Date={0}&X-Goog-Expires=9"
        "&X-Goog-SignedHeaders=host&X-Goog-Signature={0}"
    ),
    (
        "sv=2024-11-04&st={0}&se={0}&sr=b&sp=r&spr=https&skoid={0}&sktid=1&skt=1&ske=1&sks=b&skv=1"
        "&sig={0}"
    ),
    "AWSAccessKeyId={0}&Expires={0}&Signature={0}",
    "GoogleAccessId={0}&Expires={0}&Signature={0}",
    "Expires={0}&Signature={0}&Key-Pair-Id=K",
    "Policy={0}&Signature={0}&Key-Pair-Id=K",
]


@pytest.mark.parametrize("query", SIGNED)
def test_two_signatures_of_one_object_give_one_name(query):
    """What signs goes, of each scheme; what chooses an object stays."""
    names = {unsigned(f"https://h/a.tar?{query.format(n)}&versionId=3") for n in range(2)}
    assert names == {"https://h/a.tar?versionId=3"}
    assert unsigned(f"https://h/a.tar?{query.format(1)}") == "https://h/a.tar"


NAMES = (
    "token st se sp sr sv sig signature expires policy key-pair-id x-amz-date x-goog-date x-ms-date"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_a_parameter_alone_may_choose_an_object(name):
    """A word that some scheme signs with is part of the name where that scheme is not used."""
    one, two = (unsigned(f"https://h/train.tar?{name}={value}") for value in "AB")
    assert one != two


def test_objects_with_other_names_stay_apart():
    """What a URL of an object store holds is its key, or chooses whose key it is."""
    urls = [
        "s3://b/train#1.tar",
        "s3://b/train#2.tar",
        "s3://b/train?sig=1&sv=1",
        "s3://b/train?sig=2&sv=1",
        "abfs://train@account/a.tar",
        "abfs://val@account/a.tar",
        "https://h/a?x=%FE",
        "https://h/a?x=%FF",
        "https://h/a?x=1&sig=1&sv=1&b",
        "https://h/a?x=1&sig=1&sv=1",
    ]
    assert len(set(map(unsigned, urls))) == len(urls)


def test_unsigned():
    """Passwords and fragments of http say nothing of the object."""
    one = unsigned("https://u:p@h/a.tar?X-Amz-Date=1&X-Amz-Signature=2&versionId=3#part")
    assert one == "https://h/a.tar?versionId=3"
    assert unsigned("ftp://me:secret@h/a") == "ftp://me@h/a"
    assert unsigned("S3://b/a") == "s3://b/a"


@pytest.mark.parametrize(
    "url", ["http://[bad/x.tar", "s3://bucket:[x]/y.tar", "s3://[bad/x.tar", "file://[bad/x.tar"]
)
def test_a_host_that_is_none_is_an_error_of_ours(url):
    """The place is named, and the error is of this library."""
    pytest.importorskip("s3fs")
    with pytest.raises(FastfeedError, match=re.escape(url.rpartition("/")[0])):
        ShardDataset(url, {"x": Bytes("x")})
