"""train-feed: the process that systems of a case share, and the session that asks it.

Compiling a ResNet takes longer than all turns of a system, and two processes on one GPU take its
time from each other. So the trainer is compiled once, in a process of its own, the hub. It is
started by the first driver that finds none; all drivers only pass questions on. It does one thing
at a time, in its main thread, and ends with the last driver; it belongs to the process group of the
first, which the harness ends last. What must not be the same for all, such as how many queues CUDA
uses, makes hubs of their own, of which one trains at a time.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING, Any

from fastfeed_bench.station import StationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from fastfeed_bench.model import Evidence, Session, Settings
    from fastfeed_bench.train import Trainer

    Opener = Callable[[Settings], Session]
    Question = tuple[Connection, dict[str, Any] | None]

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""How many queues of the hardware streams are spread over; CUDA reads it when it starts."""

_CLOSE_S = 10.0


# The drivers' side


class HubSession:
    """A session that lives in the hub."""

    def __init__(self, settings: Settings) -> None:
        self._hub: subprocess.Popen[bytes] | None = None
        try:
            self._connection = _connect(settings)
        except OSError:
            self._hub = _start(settings)
            self._connection = _connect(settings)
        self.note = str(self._ask("open", settings=dict(settings))["note"])

    def run(self) -> Mapping[str, float]:
        """Do one turn."""
        return self._ask("run")

    def evidence(self) -> Evidence:
        """Warm up, and describe what is delivered."""
        return self._ask("evidence")

    def close(self) -> None:
        """Leave the hub; who started it waits for it."""
        self._connection.close()
        if self._hub is not None:
            with suppress(subprocess.TimeoutExpired):
                self._hub.wait(_CLOSE_S)

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        try:
            self._connection.send_bytes(json.dumps({"do": do, **more}).encode())
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise RuntimeError("the process that trains for all systems has ended") from None
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def _connect(settings: Settings) -> Connection:
    # A name in the abstract namespace leaves no file behind; the key keeps others out.
    meeting, key = f"\0{settings['meeting']}", settings["key"].encode()
    return Client(meeting, "AF_UNIX", authkey=key)


def _start(settings: Settings) -> subprocess.Popen[bytes]:
    """Start the hub and wait until it listens."""
    hub = subprocess.Popen(
        [sys.executable, "-m", "fastfeed_bench.systems.train_hub"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, QUEUES: str(settings["queues"])},
    )
    assert hub.stdin is not None  # noqa: S101 - both were asked for
    assert hub.stdout is not None  # noqa: S101
    # By a pipe: everybody can read the arguments of a process.
    told = {name: settings[name] for name in ("meeting", "key", "sessions")}
    with hub.stdin as stdin, hub.stdout as stdout:
        stdin.write(json.dumps(told).encode() + b"\n")
        stdin.flush()
        if not stdout.readline():
            raise RuntimeError(f"the training process did not start: exit code {hub.wait()}")
    return hub


# The hub's side


def main() -> None:
    """Listen at the meeting that standard input names, and answer until all have left."""
    told = json.loads(sys.stdin.readline())
    module, _, function = told["sessions"].partition(":")
    with Listener(f"\0{told['meeting']}", "AF_UNIX", authkey=told["key"].encode()) as listener:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        # Libraries print as they like, and nobody reads that pipe any more.
        os.dup2(2, 1)
        questions: queue.Queue[Question] = queue.Queue()
        threading.Thread(target=_accept, args=(listener, questions), daemon=True).start()
        opener = getattr(__import__(module, fromlist=[function]), function)
        answer_all(questions, opener)


def answer_all(questions: queue.Queue[Question], opener: Opener) -> None:
    """Answer questions in the order in which they come, until every connection has closed."""
    sessions: dict[Connection, Session] = {}
    asking: set[Connection] = set()
    while True:
        connection, question = questions.get()
        if question is None:
            asking.discard(connection)
            if (session := sessions.pop(connection, None)) is not None:
                session.close()
            if not asking:
                return
            continue
        asking.add(connection)
        with suppress(OSError):  # who asked may have been ended
            connection.send_bytes(
                json.dumps(_answer(connection, question, sessions, opener)).encode()
            )


def _answer(
    connection: Connection,
    question: Mapping[str, Any],
    sessions: dict[Connection, Session],
    opener: Opener,
) -> Mapping[str, Any]:
    try:
        if question["do"] == "open":
            sessions[connection] = opener(question["settings"])
            return {"note": sessions[connection].note}
        session = sessions[connection]
        return session.run() if question["do"] == "run" else session.evidence()
    except Exception as error:  # noqa: BLE001 - whatever a library raises is this row's note
        traceback.print_exc()
        text = (str(error).strip().splitlines() or [""])[0]
        kind = "" if type(error) in {RuntimeError, StationError} else f"{type(error).__name__}: "
        return {"error": f"{kind}{text}"[:300]}


def _accept(listener: Listener, questions: queue.Queue[Question]) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:
            return
        thread = threading.Thread(target=_listen, args=(connection, questions), daemon=True)
        thread.start()


def _listen(connection: Connection, questions: queue.Queue[Question]) -> None:
    try:
        while True:
            questions.put((connection, json.loads(connection.recv_bytes())))
    except (EOFError, OSError):
        questions.put((connection, None))


# What the hub opens for train-feed


def session(settings: Settings) -> HubSession:
    """Return the driver's session of a system of train-feed."""
    return HubSession(settings)


def open_beside_trainer(settings: Settings) -> Session:
    """Return the hub's session of a system, with the trainer that all of them share."""
    from fastfeed_bench.systems.train_session import open_session
    from fastfeed_bench.systems.train_ways import make_way

    trainer = _trainer(settings["model"])
    name = settings["system"]
    return open_session(trainer, settings, lambda told, pace: make_way(name, trainer, told, pace))


@cache
def _trainer(name: str) -> Trainer:
    from fastfeed_bench.networks import NETWORKS
    from fastfeed_bench.systems.gpu_meter import cuda_device
    from fastfeed_bench.train import make_trainer

    return make_trainer(NETWORKS[name], cuda_device())


if __name__ == "__main__":
    main()
