"""An http server of objects in memory that fails as it is told to.

`server.faults` holds switches, each a `Trouble` for the next requests; without one a request is
answered as nginx would. It serves ranges, counts requests, and never sleeps on its own: a stall
ends when the server closes, and its pace is kept by an event that closing sets.
"""

from __future__ import annotations

import gzip
import http.server
import re
import socket
import threading
from dataclasses import dataclass, field
from email.utils import formatdate


@dataclass
class Trouble:
    """What goes wrong with a request. `times` requests are hit, then the next switch counts."""

    kind: str
    times: int = 1 << 30
    status: int = 503
    retry_after: str | None = None
    only: str = ""
    """Text in the path of the requests that are meant."""


@dataclass
class Request:
    method: str
    path: str
    range: str | None
    headers: dict = field(default_factory=dict)


class FaultServer:
    """Serves `objects` (path -> bytes) on loopback until closed."""

    def __init__(self, *, rate=None, latency=0.0):
        self.objects = {}
        self.tags = {}
        self.faults = []
        self.requests = []
        self.rate, self.latency = rate, latency
        self.need = {}
        """Headers that a request must carry, or it is refused with 403."""
        self.closing = threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(_Handler):
            owner = server

        self._httpd = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def base(self):
        return f"http://127.0.0.1:{self._httpd.server_address[1]}"

    def url(self, path):
        return f"{self.base}/{path}"

    def put(self, path, content, tag=None):
        self.objects[f"/{path}"] = content
        self.tags[f"/{path}"] = tag or f'"{hash(content) & 0xFFFFFFFF:x}-{len(content)}"'
        return self.url(path)

    def fail(self, kind, **about):
        self.faults.append(Trouble(kind, **about))

    def trouble(self, path):
        """Take the trouble that is due for a request, if any."""
        with self._lock:
            for trouble in self.faults:
                if trouble.times > 0 and trouble.only in path:
                    trouble.times -= 1
                    return trouble
        return None

    def count(self, text=""):
        return sum(text in request.path for request in self.requests)

    def close(self):
        self.closing.set()
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, *arguments):
        self.open = set()
        super().__init__(*arguments)

    def handle_error(self, request, client_address):
        """Say nothing: clients that go away are part of the tests."""

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.open.discard(request)
        super().shutdown_request(request)

    def server_close(self):
        for request in list(self.open):  # keep-alive connections wait for a next request
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        super().server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    owner: FaultServer

    def log_message(self, *_):
        """Say nothing."""

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, *, body):
        owner, path = self.owner, self.path.partition("?")[0]
        wanted = self.headers.get("Range")
        owner.requests.append(Request(self.command, self.path, wanted, dict(self.headers)))
        if owner.latency:
            owner.closing.wait(owner.latency)
        trouble = owner.trouble(self.path)
        kind = trouble.kind if trouble else ""
        if any(self.headers.get(name) != value for name, value in owner.need.items()):
            self._status(403)
        elif kind == "status":
            after = {"Retry-After": trouble.retry_after} if trouble.retry_after else {}
            self._status(trouble.status, after)
        elif kind == "drop":
            self.close_connection = True
        elif path not in owner.objects:
            self._status(404)
        else:
            self._object(path, wanted, kind, body=body)

    def _status(self, status, headers=None):
        text = b"<html>sorry</html>"
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)
        self.wfile.flush()

    def _object(self, path, wanted, kind, *, body):
        owner = self.owner
        content, tag = owner.objects[path], owner.tags[path]
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
        headers = {"ETag": tag, "Last-Modified": formatdate(0, usegmt=True)}
        if match and kind not in {"ignore range", "ignore range chunked"}:
            first = int(match[1])
            last = min(int(match[2] or len(content) - 1), len(content) - 1)
            if first >= len(content):
                self._status(416, {"Content-Range": f"bytes */{len(content)}"})
                return
            if kind == "wrong range":
                first, last = max(0, first - 1), max(0, last - 1)
            status, part = 206, content[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            if kind == "no content range":
                del headers["Content-Range"]
            if kind == "longer":
                part += b"more"
        else:
            status, part = 200, content
        if kind == "gzip":
            part, headers["Content-Encoding"] = gzip.compress(part), "gzip"
        if kind == "new tag":
            headers["ETag"] = '"another"'
        if kind == "no tag":
            headers = {n: v for n, v in headers.items() if n not in {"ETag", "Last-Modified"}}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self._body(part, kind, body=body)

    def _body(self, part, kind, *, body):
        if "chunked" in kind:
            self.send_header("Transfer-Encoding", "chunked")
        elif kind == "no length":
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if not body:
            self.wfile.flush()
            return
        if kind in {"cut", "stall", "chunked cut"}:
            part = part[: int(len(part) * 0.4)]
        if "chunked" in kind:
            for start in range(0, len(part), 10_000):
                piece = part[start : start + 10_000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if kind != "chunked cut":
                self.wfile.write(b"0\r\n\r\n")
        else:
            self._paced(part)
        self.wfile.flush()
        if kind == "stall":
            self.owner.closing.wait(60)
        if kind in {"cut", "stall", "chunked cut"}:
            self.close_connection = True

    def _paced(self, part):
        rate = self.owner.rate
        if rate is None:
            self.wfile.write(part)
            return
        for start in range(0, len(part), 1 << 16):
            piece = part[start : start + (1 << 16)]
            self.wfile.write(piece)
            self.wfile.flush()
            self.owner.closing.wait(len(piece) / rate)
