"""The channel: whole messages in order, a sender that never waits, an end that is noticed."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.slots.channel import channels


@pytest.fixture
def ends():
    """Two ends of a channel."""
    ours, theirs = channels()
    yield ours, theirs
    ours.close()
    theirs.close()


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=20))
def test_messages_arrive_whole_and_in_order(messages):
    """Any messages, both ways."""
    ours, theirs = channels()
    for message in messages:
        ours.post(message)
        assert theirs.wait() == message
        theirs.send(message)
    assert ours.take() == messages
    ours.close()
    theirs.close()


def test_posting_never_waits(ends):
    """Far more than the socket holds is kept and sent as room comes."""
    ours, theirs = ends
    messages = [[bytes([i]) * 300_000, b"", b"x"] for i in range(20)]
    for message in messages:
        ours.post(message)
    assert ours.crowded
    found = []
    reader = threading.Thread(target=lambda: found.extend(theirs.wait() for _ in messages))
    reader.start()
    while reader.is_alive():
        ours.flush()
    reader.join()
    assert found == messages
    assert not ours.crowded


def test_large_messages_are_taken_in_pieces(ends):
    """`take` returns without the message until all of it is there."""
    ours, theirs = ends
    message = [b"a" * 5_000_000, b"b" * 3]
    sender = threading.Thread(target=theirs.send, args=(message,))
    sender.start()
    found = []
    while not found:
        found = ours.take()
    sender.join()
    assert found == [message]


def test_the_end_comes_after_what_was_sent(ends):
    """A dead peer's last messages are taken first; then it is the end."""
    ours, theirs = ends
    theirs.send([b"last"])
    theirs.close()
    assert ours.take() == [[b"last"]]
    with pytest.raises(EOFError):
        ours.take()
    ours.post([b"lost"])
    assert not ours.crowded


def test_half_a_message_is_no_message(ends):
    """A peer that dies while it writes leaves nothing but the end."""
    ours, theirs = ends
    theirs._socket.sendall((1).to_bytes(4, "big") + (100).to_bytes(8, "big") + b"half")
    assert ours.take() == []
    theirs.close()
    with pytest.raises(EOFError):
        ours.take()


def test_hanging_up_stops_at_once(ends):
    """Waiting jobs are not handed out after the other side hung up, nor can more be sent."""
    ours, theirs = ends
    ours.post([b"job"])
    ours.post([b"job"])
    assert theirs.wait() == [b"job"]
    ours.hang_up()
    assert theirs.wait() is None
    with pytest.raises(OSError, match="Broken pipe"):
        theirs.send([b"result"])


def test_a_default_timeout_of_sockets_does_not_matter():
    """`socket.setdefaulttimeout` of the user's is for others."""
    socket.setdefaulttimeout(0.001)
    try:
        ours, theirs = channels()
    finally:
        socket.setdefaulttimeout(None)
    assert ours.take() == []
    timer = threading.Timer(0.1, ours.post, ([b"late"],))
    timer.start()
    assert theirs.wait() == [b"late"]
    timer.join()
    ours.close()
    theirs.close()
