"""Whose exception it was no longer matters: kinds of faults, and how long each is tried again."""

from __future__ import annotations

import dataclasses
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.storage.answers import Facts, check_part, check_plain, check_whole, facts_in, same_tag
from fastfeed.storage.faults import Fault, fault_of, fault_of_status
from fastfeed.storage.patience import GaveUp, Patience, jitter, persist


class OfAzureError(Exception):
    status_code = 403
    error_code = "AuthorizationFailure"


class OfGoogleError(Exception):
    code = "429"


class Response:
    status_code = 503
    headers = {"Retry-After": "5"}  # noqa: RUF012


class OfRequestsError(OSError):
    response = Response()


class OfBotoError(Exception):
    def __init__(self, status, code):
        super().__init__(code)
        about = {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": "3"}}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": about}


class NoCredentialsError(Exception):
    pass


class SomeCertificateError(OSError):
    pass


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OfAzureError(), "forbidden"),
        (OfGoogleError(), "busy"),
        (OfRequestsError(), "busy"),
        (OfBotoError(403, "ExpiredToken"), "expired"),
        (OfBotoError(400, "SlowDown"), "busy"),
        (OfBotoError(404, "NoSuchKey"), "missing"),
        (OfBotoError(412, "PreconditionFailed"), "changed"),
        (caused(OSError(16, "busy"), OfBotoError(503, "SlowDown")), "busy"),
        (caused(PermissionError("no"), OfBotoError(403, "AccessDenied")), "forbidden"),
        (FileNotFoundError("https://h/?sig=1"), "missing"),
        (PermissionError("no"), "forbidden"),
        (NoCredentialsError("none"), "forbidden"),
        (SomeCertificateError("self-signed"), "refused"),
        (TimeoutError(), "broken"),
        (ConnectionResetError("reset"), "broken"),
        (TypeError("unexpected keyword"), "refused"),
    ],
)
def test_c26_kinds_of_foreign_errors(error, kind):
    """Status codes count first, wherever a library keeps them; then the type of the exception."""
    fault = fault_of(error)
    assert fault.kind == kind
    assert fault.way_out
    assert "sig=" not in fault.fact
    assert fault.passes == (kind in {"busy", "broken"})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), (" 0 ", 0.0), (formatdate(0, usegmt=True), 0.0), ("soon", None), (None, None)],
)
def test_c26_retry_after(value, seconds):
    """A number of seconds or a date; what is neither is no reason to fail."""
    headers = {} if value is None else {"Retry-After": value}
    assert fault_of_status(503, headers=headers).retry_after == seconds


class Work:
    """Fails with given faults, then returns."""

    def __init__(self, *faults):
        self.faults = list(faults)
        self.left = []

    def __call__(self, seconds):
        self.left.append(seconds)
        if self.faults:
            raise self.faults.pop(0)
        return "done"


def test_pauses_grow_and_differ(patience, hours):
    """Each pause is up to twice the last, at most 20 s, and at least half of that is kept."""
    work = Work(*(Fault("broken", "x") for _ in range(9)))
    assert persist(work, patience) == "done"
    assert hours.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0, 20.0]
    lazy = dataclasses.replace(patience, jitter=lambda: 0.0)
    assert lazy.pause(1, Fault("broken", "x")) == 0.1
    assert 0 <= jitter() < 1
    assert Patience().sleep is not None


def test_one_deadline_for_all_attempts(hours):
    """No attempt and no pause goes beyond the deadline; more bytes have more time."""
    patience = Patience(total_s=1.0, clock=hours.clock, sleep=hours.sleep, jitter=lambda: 1.0)
    work = Work(*(Fault("broken", "x") for _ in range(9)))
    with pytest.raises(GaveUp) as caught:
        persist(work, patience)
    assert caught.value.attempts == 3
    assert hours.now < 1.0
    assert work.left[0] == 1.0
    work = Work(*(Fault("broken", "x") for _ in range(9)))
    assert persist(work, patience, size=100 << 20) == "done"


def test_c26_credentials_are_renewed_once(patience):
    """An expired token is renewed and the request repeated; a second time it is an error."""
    renewed = []
    work = Work(Fault("expired", "x"))
    assert persist(work, patience, renew=lambda: renewed.append(1)) == "done"
    work = Work(Fault("expired", "x"), Fault("expired", "x"))
    with pytest.raises(GaveUp):
        persist(work, patience, renew=lambda: renewed.append(1))
    assert renewed == [1, 1]


def test_c19_answers():
    """Headers that fit, and those that do not."""
    good = {"Content-Range": "bytes 10-19/100", "ETag": '"x"'}
    assert check_part(good, offset=10, size=10).size == 100
    assert check_part({"Content-Range": "bytes 10-14/100"}, offset=10, size=10).size == 100
    assert check_part({"Content-Range": "bytes 10-19/*"}, offset=10, size=10).size is None
    for bad, offset, size in ((good, 9, 10), (good, 10, 5), ({}, 10, 10)):
        with pytest.raises(Fault) as caught:
            check_part(bad, offset=offset, size=size)
        assert caught.value.kind == "ranges"
    with pytest.raises(Fault, match="ends at 15"):
        check_part({"Content-Range": "bytes 10-14/15"}, offset=10, size=10)
    check_plain({"Content-Encoding": "identity"})
    with pytest.raises(Fault, match="br"):
        check_whole({"Content-Encoding": "br"})
    assert facts_in(416, {"Content-Range": "bytes */0"}) == (Facts(0, None), 0)
    assert facts_in(416, {}) == (Facts(None, None), 0)
    assert facts_in(206, {"Content-Range": "bytes 0-99/100"}) == (Facts(100, None), 100)
    assert facts_in(200, {"Content-Length": "9"}) == (Facts(9, None), 0)
    assert same_tag(None, "a")
    assert same_tag("a", None)
    assert not same_tag("a", "b")


@given(st.text(), st.integers(0, 100), st.integers(1, 100))
def test_no_header_breaks_the_check(text, offset, size):
    """Whatever a server sends as a range, the outcome is a fault or right."""
    try:
        facts = check_part({"Content-Range": text}, offset=offset, size=size)
    except Fault:
        return
    assert text.strip().startswith(f"bytes {offset}-") or facts.size is None or facts.size >= 0
