"""The near end of a driver: starts a system's process, asks it, and notices when it is dead."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from fastfeed_bench.model import Evidence, Settings, System

# Far beyond any run; a system that takes longer hangs.
_LIMIT_S = 900.0
_CLOSE_S = 20.0


class StationError(Exception):
    """A system could not do what it was asked; the message is the note of its row."""


class Station:
    """One system, open and waiting for its turn."""

    def __init__(self, system: System, settings: Settings, *, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        # A session of its own: the workers of a library end with it, whatever state they are in.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fastfeed_bench.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            question = {"target": system.target, "settings": dict(settings)}
            self.note = str(self._ask("open", **question)["note"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, /, *_: object) -> None:
        # After Ctrl-C nobody waits for a run to end.
        self.close(grace_s=0.0 if kind else _CLOSE_S)

    def run(self) -> dict[str, float]:
        """Do one run."""
        return self._ask("run")

    def evidence(self) -> Evidence:
        """Ask what the system delivers."""
        return self._ask("evidence")

    def close(self, *, grace_s: float = _CLOSE_S) -> None:
        """End the process and all that it started; it has `grace_s` to do so itself."""
        pipes = (self._process.stdin, self._process.stdout)
        with suppress(OSError):
            for pipe in pipes:
                if pipe is not None:
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise StationError(self._last_words()) from None
        answer: dict[str, Any] = json.loads(self._read_line())
        if "error" in answer:
            raise StationError(answer["error"])
        return answer

    def _read_line(self) -> bytes:
        """Return the next line; a dead process is noticed by the end of its pipe."""
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + self._limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    os.killpg(self._process.pid, signal.SIGKILL)
                    raise StationError(f"no answer within {self._limit_s:.0f} s")
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    raise StationError(self._last_words())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        """Return how the process ended, with the last line that it wrote."""
        try:
            code = self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            return "closed its end of the pipe"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with {how}" + (f": {lines[-1][:200]}" if lines else "")
