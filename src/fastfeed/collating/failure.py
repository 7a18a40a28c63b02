"""How a worker failed: its exception as a message and as the trainer raises it; its death."""

from __future__ import annotations

import pickle
import signal
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


_FORKED_CUDA = "re-initialize CUDA in forked subprocess"  # torch's words
_LEAVE_TO_THE_LOOP = (
    "\nThe data set, a transform or the collate function used CUDA in a forked worker. Return "
    "tensors of the CPU and move the batch in the loop (with pin_memory=True and "
    "non_blocking=True); or use multiprocessing_context='spawn'"
)


def rebuild(failure: Failure, worker: int) -> Exception:
    """Return a worker's exception: its own type where that can be made, with its traceback."""
    where = f"in DataLoader worker process {worker}"
    text = f"Caught {failure.name} {where}.\nOriginal {failure.text}"
    if _FORKED_CUDA in text:
        text += _LEAVE_TO_THE_LOOP
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


_HINTS: dict[int, str] = {
    signal.SIGKILL: "Mostly the machine or container ran out of memory: use fewer workers or "
    "smaller batches, and look at the kernel's log",
    signal.SIGBUS: "Mostly memory that could not be backed: a full /dev/shm, a truncated file that "
    "is memory-mapped, or a memory limit",
    signal.SIGSEGV: "Native code of the data set or of a decoder crashed: run with num_workers=0 "
    "under faulthandler to see where",
}


_NOT_BEGUN = (
    "It never began: its own message stands above. With the start methods spawn and forkserver a "
    "script must keep what it does under `if __name__ == '__main__':`"
)


def death(
    worker: int,
    *,
    pid: int | None,
    exit_code: int | None,
    job: tuple[int, Any] | None,
    began: bool = True,
) -> WorkerError:
    """Return the error for a worker that is no more: how it ended, and which batch it was making.

    `exit_code` is negative for a signal, None if the process still lives without its pipe; `job` is
    the number and index of the batch; `began` is false if the worker never reported.
    """
    hint = "Run with num_workers=0 to see the error where it happens"
    if not began:
        hint = _NOT_BEGUN
    if exit_code is None:
        how = "closed its pipe"
    elif exit_code < 0:
        how = f"was killed by {_signal_name(-exit_code)}"
        hint = _HINTS.get(-exit_code, hint)
    else:
        how = f"ended with exit code {exit_code}"
    what = f" while it made batch {job[0]}" if job else ""
    if job and any(sample is not None for sample in _listed(job[1])):  # not so of an iterable
        what += f" of samples {_short(job[1])}"
    return WorkerError(
        f"DataLoader worker {worker} (pid(s) {pid}) exited unexpectedly: it {how}{what}",
        way_out=hint,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _listed(index: Any) -> list[Any]:
    return index if isinstance(index, list) else [index]


def _short(index: Any) -> str:
    text = repr(index)
    return text if len(text) <= 200 else f"{text[:200]}..."
