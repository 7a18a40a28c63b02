"""What those who make batches wait in while they are off the cores, as the kernel tells it.

/proc has the system call that a thread is in. Looked at again and again it says whether the time
goes to files, to bytes that others send, or to neither: to sleep, to a lock, to a child process.
"""

from __future__ import annotations

import platform
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Wait = Literal["files", "pipes and sockets", "sleep", "locks and other threads", "child processes"]

_WAITS: Final[tuple[Wait, ...]] = (
    "files",
    "pipes and sockets",
    "sleep",
    "locks and other threads",
    "child processes",
)
# Numbers of system calls, in the order of _WAITS: of x86-64, and those that newer machines share.
_SHARED: Final = frozenset({"aarch64", "riscv64", "loongarch64"})
_X86: Final = (
    (2, 4, 5, 6, 21, 78, 89, 208, 217, 257, 262, 269, 332, 426, 437),
    (7, 23, 42, 43, 44, 45, 46, 47, 232, 270, 271, 281),
    (34, 35, 230),
    (73, 202),
    (61, 247),
)
_NEWER: Final = (
    (4, 48, 56, 61, 78, 79, 80, 291, 426, 437),
    (22, 72, 73, 202, 203, 206, 207, 211, 212),
    (101, 115),
    (32, 98),
    (95, 260),
)
# These read from whatever their first argument is: read, pread, readv and preadv.
_X86_READS: Final = frozenset({0, 17, 19, 295, 327})
_NEWER_READS: Final = frozenset({63, 65, 67, 69, 286})
# Threads that are looked at together: the loop goes on beside it, and is what is measured.
_TOGETHER: Final = 8


class Looks:
    """Counts what threads wait in; looked at by one thread."""

    def __init__(self, root: Path = Path("/proc"), machine: str = "") -> None:
        self._root = root
        machine = machine or platform.machine()
        is_x86 = machine == "x86_64"
        self._reads = _X86_READS if is_x86 else _NEWER_READS
        self._waits: dict[int, Wait] = {
            number: wait
            for wait, numbers in zip(_WAITS, _X86 if is_x86 else _NEWER, strict=True)
            for number in numbers
        }
        self._is_known = is_x86 or machine in _SHARED
        self._turn = 0
        self.found: Counter[Wait] = Counter()
        self.why = "" if self._is_known else f"the system calls of {machine} have other numbers"
        """Why there is nothing to see, if so."""

    def look(self, tasks: Sequence[str]) -> None:
        """Count the threads that wait, by their paths below /proc; of many some at a time."""
        if not self._is_known:
            return
        some = [tasks[(self._turn + n) % len(tasks)] for n in range(min(len(tasks), _TOGETHER))]
        self._turn += len(some)
        for task in some:
            try:
                text = (self._root / task / "syscall").read_text("ascii")
            except OSError as error:  # it has ended, or we may not
                self.why = (error.strerror or type(error).__name__).lower()
                continue
            wait = self._wait_of(text, task)
            if wait is not None:
                self.found[wait] += 1

    def parts(self, *, ours: bool) -> tuple[tuple[str, float], ...]:
        """Return the part of the looks that each wait has, the largest first.

        Whoever looks holds the GIL: of threads of `ours` that compute a lock is seen, so these do
        not count.
        """
        counts = Counter(self.found)
        if ours:
            del counts["locks and other threads"]
        whole = counts.total()
        return tuple((wait, count / whole) for wait, count in counts.most_common())

    def _wait_of(self, text: str, task: str) -> Wait | None:
        number, *arguments = text.split() or ["running"]
        if number == "running":
            return None
        if number == "-1":  # not in a call, and off the cores: it waits for a page of a file
            return "files"
        call = int(number)
        if call in self._reads and arguments:
            target = self._target(task, int(arguments[0], 16))
            return "pipes and sockets" if target.startswith(("pipe:", "socket:")) else "files"
        return self._waits.get(call)

    def _target(self, task: str, number: int) -> str:
        try:
            return str((self._root / task / f"fd/{number}").readlink())
        except OSError:
            return ""
