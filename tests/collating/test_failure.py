"""C31: a worker's exception arrives with its type where that can be, and always with its words."""

from __future__ import annotations

import pickle
import urllib.error

import pytest

from fastfeed.collating.failure import Failure, death, rebuild
from fastfeed.errors import DecodeError, WorkerError


class Simple(ValueError):
    """Made from one message."""


class TwoArguments(Exception):
    """Made from two."""

    def __init__(self, name, code):
        super().__init__(f"{name}: {code}")


class KeywordOnly(Exception):
    """Made from a keyword."""

    def __init__(self, *, name):
        super().__init__(name)


class FailsItself(Exception):
    """Cannot be made from a message."""

    def __init__(self, places):
        super().__init__(places["shard"])


class Unprintable(Exception):
    """Has no words."""

    def __str__(self):
        raise RuntimeError("no words")


class NotAnException(Exception):
    """Gives something else when it is made."""

    def __new__(cls, *args):
        return object() if args and "Caught" in str(args[0]) else super().__new__(cls, *args)


class Basal(BaseException):
    """Not an Exception."""


def unpicklable():
    error = ValueError("with a handle")
    error.handle = open("/dev/null")  # noqa: SIM115, PTH123
    return error


def local():
    class Local(Exception):
        pass

    return Local("nobody can import me")


CASES = [
    (Simple("plain"), Simple),
    (TwoArguments("a", 3), WorkerError),
    (KeywordOnly(name="b"), WorkerError),
    (FailsItself({"shard": "s"}), WorkerError),
    (Unprintable(), Unprintable),
    (NotAnException("c"), WorkerError),
    (Basal("d"), WorkerError),
    (unpicklable(), ValueError),
    (local(), WorkerError),
    (ExceptionGroup("many", [ValueError("e")]), WorkerError),
    (StopIteration("f"), WorkerError),
    (KeyError("two\nlines"), KeyError),
    (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), WorkerError),
    (urllib.error.HTTPError("http://x", 404, "gone", {}, None), WorkerError),
    (FileNotFoundError(2, "none", "a.jpg"), FileNotFoundError),
    (MemoryError("h"), MemoryError),
]


def travelled(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return pickle.loads(pickle.dumps(Failure.of(caught)))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("error", "kind"), CASES, ids=lambda value: type(value).__name__)
def test_c31_type_and_traceback(error, kind):
    """The type where it can be rebuilt, else WorkerError; the traceback in any case."""
    found = rebuild(travelled(error), 3)
    assert type(found) is kind
    if type(found) is not Unprintable:
        text = str(found)
        assert f"Caught {type(error).__qualname__.split('.')[-1]}" in text or "local" in text
        assert "in DataLoader worker process 3" in text
        assert "in travelled" in text


def test_c31_key_error_keeps_its_lines():
    """The text of a KeyError is shown as it is, not as a repr."""
    assert "\n" in str(rebuild(travelled(KeyError("k")), 0))


def test_c31_huge_message_is_cut():
    """Fifty million characters do not travel; beginning and end do."""
    failure = travelled(ValueError("x" * 50_000_000))
    assert len(failure.text) < 100_000
    assert "travelled" in failure.text


def test_c31_class_that_only_the_worker_knows():
    """A type that cannot be imported here becomes a WorkerError with everything in words."""
    failure = travelled(Simple("plain"))
    lost = Failure(failure.name, failure.text, failure.carried.replace(b"Simple", b"Absent"))
    found = rebuild(lost, 0)
    assert type(found) is WorkerError
    assert "Caught Simple" in str(found)


def test_fastfeed_errors_cross_whole():
    """Our own errors keep their attributes; the worker's traceback is a note."""
    found = rebuild(travelled(DecodeError("bad picture", shard="s.tar", key="k", field="jpg")), 1)
    assert type(found) is DecodeError
    assert (found.shard, found.key, found.field) == ("s.tar", "k", "jpg")
    assert "worker process 1" in found.__notes__[0]


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(-9, "SIGKILL"), (-34, "SIGRTMIN"), (-999, "signal 999"), (3, "exit code 3"), (None, "pipe")],
)
def test_c30_death_in_words(exit_code, words):
    """Every way to end has its words, with and without a batch."""
    assert words in str(death(2, pid=7, exit_code=exit_code, job=None))
    text = str(death(2, pid=7, exit_code=exit_code, job=(4, list(range(1000)))))
    assert "while it made batch 4 of samples [0, 1, 2" in text
    assert len(text) < 700


def test_c41_cuda_in_a_forked_worker_says_what_to_do():
    """Torch's error, with the way out. A real one needs a GPU; its words are what is looked for."""
    words = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ..."
    error = rebuild(Failure.of(RuntimeError(words)), 0)
    assert type(error) is RuntimeError
    assert "move the batch in the loop" in str(error)
    assert "move the batch" not in str(rebuild(Failure.of(RuntimeError("other")), 0))
