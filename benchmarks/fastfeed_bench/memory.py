"""Less memory for this process and those it starts: a cgroup of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from fastfeed.errors import FastfeedError

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


class MemoryLimit:
    """While it is entered, memory that is newly taken counts against a limit."""

    def __init__(self, nbytes: int) -> None:
        version_1 = (_V1 / "memory.limit_in_bytes").exists()
        self._parent = _V1 if version_1 else _V2
        self._group = self._parent / f"fastfeed-bench-{os.getpid()}"
        self._limit = "memory.limit_in_bytes" if version_1 else "memory.max"
        self._nbytes = nbytes

    def __enter__(self) -> Self:
        try:
            self._group.mkdir()
            (self._group / self._limit).write_text(str(self._nbytes))
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            self.__exit__()
            raise FastfeedError(
                f"no cgroup with a limit of memory can be made: {error}",
                way_out="Run as root, where cgroups can be written",
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._group.exists():
            (self._parent / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()
