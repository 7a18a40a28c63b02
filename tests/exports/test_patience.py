"""A person at a terminal is told what a long wait is for; nobody else is."""

from __future__ import annotations

import io
import sys

import pytest

from fastfeed.exports.patience import LongWaits, on_terminal


class FakeTime:
    """A clock, and a pool that receives something after some seconds of it."""

    def __init__(self, *, comes_at=None):
        self.now, self.comes_at = 100.0, comes_at
        self.timeouts = []

    def __call__(self):
        return self.now

    def receive(self, timeout):
        self.timeouts.append(timeout)
        until = None if timeout is None else self.now + timeout
        if self.comes_at is not None and (until is None or self.comes_at <= until):
            self.now = max(self.now, self.comes_at)
            return "batch"
        self.now = until
        return None


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def wait(time, stream, timeout=None, *, since=100.0):
    waits = LongWaits(stream, after_s=5, clock=time)
    return waits.receive(time.receive, timeout, since=since, what=lambda: "the first batch")


def test_short_waits_say_nothing():
    """What comes within seconds writes nothing at all."""
    stream, time = Terminal(), FakeTime(comes_at=104.0)
    assert wait(time, stream) == "batch"
    assert not stream.getvalue()
    assert time.now == 104.0


def test_long_waits_are_told_and_the_line_goes_away():
    """After five seconds a line says so, changes each second, and goes when the batch comes."""
    stream, time = Terminal(), FakeTime(comes_at=107.5)
    assert wait(time, stream) == "batch"
    lines = stream.getvalue().split("\r\x1b[K")
    assert lines == [
        "",
        "fastfeed: waiting 5 s for the first batch",
        "fastfeed: waiting 6 s for the first batch",
        "fastfeed: waiting 7 s for the first batch",
        "",
    ]


def test_a_wait_counts_from_when_the_loop_asked():
    """Other batches that come meanwhile do not start it anew."""
    stream, time = Terminal(), FakeTime(comes_at=103.0)
    assert wait(time, stream, since=97.0) == "batch"
    assert "waiting 5 s" in stream.getvalue()


@pytest.mark.parametrize("timeout", [0.5, 5.0, 7.25])
def test_the_users_timeout_stays_what_it_is(timeout):
    """None is returned when the user's time is over, not before, not later."""
    stream, time = Terminal(), FakeTime()
    assert wait(time, stream, timeout) is None
    assert time.now == 100.0 + timeout
    assert ("waiting" in stream.getvalue()) == (timeout > 5)


def test_an_end_is_not_waited_for():
    """A pool that returns nothing at once has nothing more: that is passed on."""
    waits = LongWaits(Terminal(), after_s=5, clock=FakeTime())
    assert waits.receive(lambda _: None, None, since=100.0, what=str) is None


def test_a_terminal_that_is_gone_ends_no_training():
    """What cannot be written is left out."""
    stream, time = Terminal(), FakeTime(comes_at=110.0)
    stream.close()
    assert wait(time, stream) == "batch"


def test_nobody_is_told_without_a_terminal(monkeypatch):
    """Logs of jobs get no such lines."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert on_terminal() is None
    monkeypatch.setattr(sys, "stderr", None)
    assert on_terminal() is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert on_terminal() is not None


class Listener:
    """Waits as the loop would without a terminal, and keeps what it is told of each wait."""

    def __init__(self):
        self.told = []

    def receive(self, receive, timeout, *, since, what):
        self.told.append((timeout, what()))
        return receive(timeout)


def test_a_loader_tells_what_it_waits_for(small_loader, monkeypatch):
    """The loop's own words name the worker whose turn it is, and how many others are ready."""
    listener = Listener()
    monkeypatch.setattr("fastfeed.iteration.on_terminal", lambda: listener)
    assert len(list(small_loader(num_workers=2, timeout=60))) == 8
    assert listener.told[0] == (
        60,
        "the first batch of worker 0, 0 more ready",
    )
    assert all("of worker" in words for _, words in listener.told)


def test_a_long_line_is_cut_so_that_it_can_be_emptied(monkeypatch):
    """A line that a terminal would wrap is cut to its width."""
    monkeypatch.setenv("COLUMNS", "40")
    stream, time = Terminal(), FakeTime(comes_at=105.5)
    waits = LongWaits(stream, after_s=5, clock=time)
    waits.receive(time.receive, None, since=100.0, what=lambda: "a batch " * 9)
    assert max(map(len, stream.getvalue().split("\r\x1b[K"))) == 39
