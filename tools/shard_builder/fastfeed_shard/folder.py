"""The folder that a data set is written to: locked, and free of what a killed run left behind.

A hidden file of state lies in it from the first byte to the last. It names the plan, so that
`--resume` goes on only with what it began; a kernel lock on it keeps a second writer out and ends
with the process, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastfeed.errors import OptionError, StorageError
from fastfeed.shardfile.names import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

STATE_NAME = ".fastfeed-build.json"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
# Workers that lost their build notice it at their next sample, which need not be a small one.
_WAIT_S = 60.0
_LOOK_S = 0.1


class DatasetFolder:
    """Holds the folder for one writer, between `with` and its end; `complete` when all is there.

    The folder must be new or empty, or with `resume` hold an unfinished build of the same plan.
    Only files with names that this writer gives are ever removed.
    """

    def __init__(self, path: Path, *, name: str, plan: str | None, resume: bool = False) -> None:
        self.path = path
        self._name = name
        self._plan = plan
        self._resume = resume
        self._lock = -1
        self._temporary = re.compile(
            rf"\.({re.escape(name)}-\d{{6}}\.(tar|ffx|idx|tar\.idx|tar\.zst|tar\.zst\.ffx)|[a-z]+(-\d{{6}})?\.(json|txt)"
            rf"|\.info\.json|split\.yaml|dataset\.yaml)\.[0-9a-f]{{16}}\.tmp"
        )

    def __enter__(self) -> Self:
        try:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            before = {path.name for path in self.path.iterdir()}
            if before and STATE_NAME not in before and not self._only_ours(before):
                raise self._occupied()
            self._lock = self._take_lock()
            try:
                self._admit()
                self._sweep()
            except BaseException:
                self._let_go()
                raise
        except OSError as error:
            raise StorageError(
                f"cannot write to the folder {str(self.path)!r}: {error.strerror}",
                way_out="Name a folder that can be written to",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._sweep()
            if not self.holds_shards():
                self._remove_state()
                if self._made:
                    self.path.rmdir()
        self._let_go()

    def complete(self) -> None:
        """Remove the state: the manifest says from now on that the data set is whole."""
        self._remove_state()

    def holds_shards(self) -> bool:
        """Say whether any file with a final name is there."""
        return any(not path.name.startswith(".") for path in self.path.iterdir())

    def _only_ours(self, names: set[str]) -> bool:
        return all(map(self._temporary.fullmatch, names))

    def _occupied(self) -> OptionError:
        done = (self.path / MANIFEST_NAME).exists()
        return OptionError(
            f"{str(self.path)!r} holds "
            + ("a complete data set" if done else "files already")
            + ", and nothing is overwritten",
            way_out="Name a new folder, or empty this one yourself",
        )

    def _take_lock(self) -> int:
        """Return the locked file of state; wait only for workers whose own build is dead."""
        end = time.monotonic() + _WAIT_S
        while True:
            lock = os.open(self.path / STATE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                held = self._try_lock(lock)
            except BaseException:
                os.close(lock)
                raise
            if held:
                return lock
            os.close(lock)
            if time.monotonic() >= end:
                raise OptionError(
                    f"processes of a run that has ended still write to {str(self.path)!r}",
                    way_out="End them, or wait until they do",
                )
            time.sleep(_LOOK_S)

    def _try_lock(self, lock: int) -> bool:
        """Lock the file of state; False if orphans hold it, or if it has lost its name."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _load(lock).get("pid")
            if holder is None or _alive(holder):
                raise OptionError(
                    f"another process ({holder}) writes to {str(self.path)!r}",
                    way_out="Wait until it ends",
                ) from None
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return True
        # Whoever held it may have removed it meanwhile, and a third may hold the next.
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(lock), (self.path / STATE_NAME).stat())
        return False

    def _admit(self) -> None:
        """Compare the state of a former run with this one, and write our own."""
        before = _load(self._lock)
        if not before and (self.path / MANIFEST_NAME).exists():
            self._remove_state()  # the file is ours alone: another writer has just finished
            raise self._occupied()
        if self.holds_shards():
            if not self._resume:
                raise OptionError(
                    f"{str(self.path)!r} holds an unfinished build",
                    way_out="Go on with --resume, or remove the folder",
                )
            if self._plan is None or before.get("plan") != self._plan:
                raise OptionError(
                    f"the unfinished build in {str(self.path)!r} had other files or options",
                    way_out="Remove the folder and build anew",
                )
        state = {"plan": self._plan, "pid": os.getpid()}
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(state).encode(), 0)
        os.fsync(self._lock)

    def _sweep(self) -> None:
        """Remove what a killed run left under temporary names."""
        for folder in (self.path, self.path / ".nv-meta"):
            with suppress(FileNotFoundError):
                for path in folder.iterdir():
                    if self._temporary.fullmatch(path.name):
                        path.unlink(missing_ok=True)

    def _remove_state(self) -> None:
        (self.path / STATE_NAME).unlink(missing_ok=True)

    def _let_go(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _load(lock: int) -> Mapping[str, Any]:
    try:
        state = json.loads(os.pread(lock, 1 << 16, 0) or b"{}")
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def _alive(pid: object) -> bool:
    """Say whether a process of this machine with that number lives."""
    if not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
