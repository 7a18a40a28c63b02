"""An exception of a worker as a message, and the exception that the trainer raises for it."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import torch

from fastfeed.errors import FastfeedError, WorkerError

# A traceback longer than this is cut in the middle: some messages hold whole documents.
_LONGEST_TEXT = 64 << 10


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the worker, as much of it as can travel."""

    name: str
    text: str
    """The traceback."""
    carried: bytes | None
    """A pickle of the exception's type, or of a fastfeed error itself; None if neither can be.

    It is read apart from the message: a class that the trainer cannot import loses nothing else.
    """

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception with its traceback."""
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:  # noqa: BLE001 - a message that cannot be printed is still a failure
            text = "".join(traceback.format_tb(error.__traceback__)) + "(its message fails itself)"
        if len(text) > _LONGEST_TEXT:
            text = f"{text[: _LONGEST_TEXT // 2]}\n...\n{text[-_LONGEST_TEXT // 2 :]}"
        name = type(error).__qualname__
        for carried in (error, type(error)):
            if carried is error and not isinstance(error, FastfeedError):
                continue  # what an exception of the user's holds may be large, or tied to here
            try:
                data = pickle.dumps(carried, pickle.HIGHEST_PROTOCOL)
                pickle.loads(data)
            except Exception:  # noqa: BLE001, S112 - the next one carries less
                continue
            return cls(name, text, data)
        return cls(name, text, None)


def rebuild(failure: Failure, worker: int) -> Exception:
    """Return a worker's exception: its own type where that can be made, with its traceback."""
    where = f"in DataLoader worker process {worker}"
    text = f"Caught {failure.name} {where}.\nOriginal {failure.text}"
    carried = _carried(failure)
    if isinstance(carried, FastfeedError):
        carried.add_note(f"Raised {where}:\n{failure.text}")
        return carried
    if carried is None or issubclass(carried, StopIteration):  # that would end the loop silently
        return WorkerError(text)
    try:
        if carried is KeyError:  # it would show the text's repr
            return KeyError(torch._utils.KeyErrorMessage(text))  # noqa: SLF001
        make: Any = carried
        error = make(message=text) if getattr(carried, "message", None) else make(text)
    except Exception:  # noqa: BLE001 - its constructor wants other arguments
        return WorkerError(text)
    return error if isinstance(error, Exception) else WorkerError(text)


def _carried(failure: Failure) -> FastfeedError | type[Exception] | None:
    try:
        carried = pickle.loads(failure.carried or pickle.dumps(None))
    except Exception:  # noqa: BLE001 - the worker could make it, this process cannot
        return None
    if isinstance(carried, FastfeedError):
        return carried
    return carried if isinstance(carried, type) and issubclass(carried, Exception) else None
