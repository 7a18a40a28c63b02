"""A link of limited rate to the files of a folder: http on loopback, in a process of its own.

All connections together get so many bytes a second, each answer begins one round trip after its
request, and each request is noted with its times.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG = "/-/log"
_PIECE = 64 << 10
"""Bytes that one connection gets before it is another's turn."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was answered; times are those of the system's monotonic clock."""

    path: str
    begin: float
    """When it arrived."""
    end: float
    """When the last of the answer was sent."""
    nbytes: int


def in_series(requests: Iterable[Request]) -> int:
    """Return how many requests followed one another, each after the answer to the one before."""
    count, free = 0, float("-inf")
    for request in sorted(requests, key=lambda one: one.end):
        if request.begin >= free:
            count, free = count + 1, request.end
    return count


class Link:
    """The near side: starts the process that serves a folder, and ends it."""

    def __init__(self, folder: str, *, rate: float = 0.0, latency: float = 0.0) -> None:
        """Serve `folder` at `rate` bytes a second (0: as fast as it goes)."""
        command = [sys.executable, "-m", "fastfeed_bench.link", folder, str(rate), str(latency)]
        # It ends with its standard input, and so with this process, however that ends.
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("the server of the link ended")
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"

    def take_log(self) -> list[Request]:
        """Return the requests since the last call."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", _LOG)
            return [Request(**one) for one in json.load(connection.getresponse())]
        finally:
            connection.close()

    def close(self) -> None:
        """End the server; more than once is fine."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        # Forks of this process may hold the pipe that it would end with.
        self._process.terminate()
        self._process.wait(_PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pace:
    """Grants each piece the next stretch of time that is free on the link."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0
        self._lock = threading.Lock()

    def wait(self, nbytes: int) -> None:
        if not self._rate:
            return
        with self._lock:
            self._free = max(self._free, time.monotonic()) + nbytes / self._rate
            due = self._free
        time.sleep(max(0.0, due - time.monotonic()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, *, rate: float, latency: float) -> None:
        self.folder = folder
        self.latency = latency
        self.pace = _Pace(rate)
        self.log: list[Request] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client may go away before it has read all."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        begin = time.monotonic()
        if self.path == _LOG:
            log, self.server.log = self.server.log, []
            self._send(200, json.dumps([asdict(one) for one in log]).encode())
            return
        time.sleep(self.server.latency)
        path = self.server.folder / self.path.lstrip("/")
        if path.is_file() and path.resolve().is_relative_to(self.server.folder):
            with path.open("rb") as file:
                self._file(file, begin)
        else:
            self.server.log.append(Request(self.path, begin, time.monotonic(), 0))
            self._send(404, b"")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, file: BinaryIO, begin: float) -> None:
        size = file.seek(0, 2)
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(match[1]) if match else 0
        last = min(int(match[2]), size - 1) if match and match[2] else size - 1
        if match and first > last:
            self._send(416, b"")
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("ETag", f'"{size:x}"')
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        nbytes = last + 1 - first
        for offset in range(first, last + 1, _PIECE):
            count = min(_PIECE, last + 1 - offset)
            self.server.pace.wait(count)
            if offset + count > last:  # before it is sent: what follows it may come at once
                self.server.log.append(Request(self.path, begin, time.monotonic(), nbytes))
            self.connection.sendfile(file, offset, count)


def main() -> None:
    """Serve until standard input ends; the port is the first line of standard output."""
    folder, rate, latency = sys.argv[1:]
    server = _Server(Path(folder).resolve(), rate=float(rate), latency=float(latency))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
