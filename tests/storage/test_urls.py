"""What may be shown of a URL, and what its parts are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ("https://[broken/a.tar", "https://***"),
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
    assert parent("https://h/x/a.tar?q=1") == "https://h/x?q=1"
    assert parent("s3://b/a.tar") == "s3://b"
    assert join("s3://b/x/", "a b.tar") == "s3://b/x/a b.tar"
    assert join("https://h/x?q=1", "d/a b#.tar") == "https://h/x/d/a%20b%23.tar?q=1"
    assert scheme_of("S3://b") == "s3"
    assert scheme_of("C:/x") is None


def test_unsigned():
    """Two signatures of one object give one name; what chooses an object stays."""
    one = unsigned("https://u:p@h/a.tar?X-Amz-Date=1&X-Amz-Signature=2&versionId=3")
    assert one == "https://h/a.tar?versionId=3"
    assert unsigned("https://h/a?sv=1&se=2&sig=3&sp=r") == "https://h/a"
    assert unsigned("s3://b/a") == "s3://b/a"
