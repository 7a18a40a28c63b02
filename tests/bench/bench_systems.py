"""Small systems that run in a driver process of their own, for the tests of stations."""

import os
import signal
import sys


class Steady:
    """Counts its runs; prints to standard output, as libraries do."""

    note = "version 1"

    def __init__(self, settings):
        self._value = settings["value"]

    def run(self):
        sys.stdout.write("chatter on standard output\n")
        return {"value": self._value, "extra_mb": 2.0}

    def evidence(self):
        return {"digest": "abc", "pid": os.getpid()}

    def close(self):
        pass


class Failing(Steady):
    """Raises in its run."""

    def run(self):
        raise ValueError("no such picture\nand more lines")


class Dying(Steady):
    """Is killed in its run, as by the kernel for its memory."""

    def run(self):
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Steady):
    """Never answers."""

    def run(self):
        signal.pause()


def missing(settings):
    """Fail as a system whose library is not installed."""
    raise ModuleNotFoundError("No module named 'peerlib'")
