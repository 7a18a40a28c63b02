"""Messages beside the shared memory: a socket pair, of which the trainer's end never waits."""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Message = list[bytes]

# Small enough for the allocator to keep, large enough for most messages at once.
_CHUNK = 64 << 10
_COUNT, _SIZE = struct.Struct("!I"), struct.Struct("!Q")


class Channel:
    """One end of a connection; a message is a list of byte strings.

    The trainer uses `post`, `flush` and `take`, the worker `send` and `wait`. Since the trainer
    never waits for room, a worker that is sending while jobs come in cannot lock both up.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # whatever the process's default for sockets is
        self._socket = connection
        self._unsent = bytearray()
        self._got = bytearray()
        self._poll: select.poll | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to a process that is being started."""
        return Channel, (self._socket,)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    @property
    def crowded(self) -> bool:
        """Whether posted bytes still wait for room; `flush` when the descriptor is writable."""
        return bool(self._unsent)

    def post(self, message: Sequence[bytes]) -> None:
        """Send as much as there is room for; to a dead peer it is lost."""
        self._unsent += _framed(message)
        self.flush()

    def flush(self) -> None:
        """Send more of what was posted."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def take(self) -> list[Message]:
        """Return the messages that are there, perhaps none; EOFError if there will be no more."""
        messages: list[Message] = []
        while True:
            try:
                data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                data = b""
            if not data and not messages:
                raise EOFError
            self._got += data
            while (message := self._cut()) is not None:
                messages.append(message)
            if len(data) < _CHUNK:
                return messages

    def send(self, message: Sequence[bytes | memoryview]) -> None:
        """Send a whole message, waiting for room; OSError if the peer is gone."""
        if sum(map(len, message)) < _CHUNK:
            self._socket.sendall(_framed(message))
            return
        self._socket.sendall(_header(message))
        for part in message:
            self._socket.sendall(part)

    def wait(self) -> Message | None:
        """Return the next message, waiting for it; None once the peer has hung up, at once."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, getattr(select, "POLLRDHUP", select.POLLHUP))
        while not self._poll.poll(0):
            message = self._cut()
            if message is not None:
                return message
            try:
                data = self._socket.recv(_CHUNK)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._got += data
        return None

    def hang_up(self) -> None:
        """End the connection for every process that holds a copy of this end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close(self) -> None:
        """Close this process's copy of the end."""
        self._socket.close()

    def _cut(self) -> Message | None:
        """Take one whole message off what has come, if it is there."""
        got = self._got
        if len(got) < _COUNT.size:
            return None
        (count,) = _COUNT.unpack_from(got)
        start = _COUNT.size + count * _SIZE.size
        if len(got) < start:
            return None
        sizes = struct.unpack_from(f"!{count}Q", got, _COUNT.size)
        if len(got) < start + sum(sizes):
            return None
        parts = []
        for size in sizes:
            parts.append(bytes(memoryview(got)[start : start + size]))
            start += size
        del got[:start]
        return parts


def channels() -> tuple[Channel, Channel]:
    """Return the two ends of a new connection."""
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def _header(message: Sequence[bytes | memoryview]) -> bytes:
    return struct.pack(f"!I{len(message)}Q", len(message), *map(len, message))


def _framed(message: Sequence[bytes | memoryview]) -> bytes:
    return b"".join([_header(message), *message])
