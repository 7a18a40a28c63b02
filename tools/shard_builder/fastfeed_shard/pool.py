"""Work on numbered tasks in a few forked processes, and notice when one of them dies.

Forked, because children then have the plan and start at once. A child does one task after the
other; its death shows at its pipe, and its parent's death shows it by its own.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from fastfeed.errors import FastfeedError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from typing import Self

T = TypeVar("T")


def run_tasks(
    work: Callable[[int], T], labels: Sequence[str], *, jobs: int
) -> Generator[tuple[int, T]]:
    """Call `work` with 0, 1, ... for each label, and yield (number, result) as they come.

    With `jobs` above 1 so many processes share the work, and results come in any order. An error in
    one ends them all and is raised here; the death of one is a WorkerError with the label of what
    it worked on.
    """
    if min(jobs, len(labels)) <= 1:
        for number in range(len(labels)):
            yield number, work(number)
        return
    with _Crew(work, labels, min(jobs, len(labels))) as crew:
        yield from crew.results()


class _Crew:
    """The processes at work, each with a pipe."""

    def __init__(self, work: Callable[[int], Any], labels: Sequence[str], size: int) -> None:
        self._work = work
        self._labels = labels
        self._size = size
        self._crew: dict[Connection, BaseProcess] = {}
        self._at: dict[Connection, int] = {}

    def __enter__(self) -> Self:
        from multiprocessing import get_context

        context = get_context("fork")
        for _ in range(self._size):
            ours, theirs = context.Pipe()
            inherited = (*self._crew, ours)
            child = context.Process(
                target=_serve, args=(self._work, theirs, inherited), daemon=True
            )
            child.start()
            theirs.close()
            self._crew[ours] = child
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, child in self._crew.items():
            pipe.close()
            if pipe in self._at:
                child.terminate()
        for child in self._crew.values():
            child.join()
            child.close()

    def results(self) -> Iterator[tuple[int, Any]]:
        from multiprocessing.connection import wait

        left = iter(range(len(self._labels)))
        for pipe in self._crew:
            self._give(pipe, next(left))
        while self._at:
            ready = wait(list(self._at))
            for pipe, number in [(pipe, self._at[pipe]) for pipe in self._at if pipe in ready]:
                result = self._take(pipe, number)
                following = next(left, None)
                if following is not None:
                    self._give(pipe, following)
                yield number, result

    def _give(self, pipe: Connection, number: int) -> None:
        self._at[pipe] = number
        # A child that is dead is noticed when its result is waited for.
        with suppress(BrokenPipeError):
            pipe.send(number)

    def _take(self, pipe: Connection, number: int) -> Any:
        try:
            result = pipe.recv()
        except (EOFError, OSError):
            child = self._crew[pipe]
            child.join()
            raise WorkerError(
                f"process {child.pid} {_end(child.exitcode)} while it worked on "
                f"{self._labels[number]}",
                way_out="If memory was short, use fewer --jobs; a build goes on with --resume",
            ) from None
        del self._at[pipe]
        if isinstance(result, FastfeedError):
            raise result
        return result


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _serve(work: Callable[[int], Any], pipe: Connection, inherited: tuple[Connection, ...]) -> None:
    """Do tasks until the parent closes the pipe."""
    # The parent gets Ctrl-C as well, and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in inherited:
        end.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            number = pipe.recv()
            try:
                result = work(number)
            except FastfeedError as error:
                result = error
            except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
                result = WorkerError(f"{type(error).__name__}: {error}")
            pipe.send(result)


def parent_is_gone(parent: int) -> bool:
    """Say whether the process `parent`, which forked this one or is this one, is dead."""
    return os.getpid() != parent and os.getppid() != parent
