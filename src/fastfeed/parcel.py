"""What spawned workers are given, pickled once for all of them: large arrays are mapped, not sent.

Torch pickles the data set once for each worker and sends it through a pipe. Here the pickle lies in
one file in memory, and so do the buffers of large arrays beside it; each worker maps the file for
itself, so arrays cost no copy until a worker writes to them. What can only be handed to a process
that is being started (tensors, which torch shares between processes, locks, queues, connections)
stays out of the pickle and travels with each process, as torch has it.

These pickles cross only from our own process to its children; nothing from a shard is unpickled.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import socket
from functools import partial
from multiprocessing import queues, reduction, sharedctypes, synchronize
from multiprocessing.managers import BaseProxy
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fastfeed.slots.region import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastfeed.collating.fetch import Source

# Buffers begin at cache lines; smaller ones than this are cheaper inside the pickle.
_ALIGNMENT, _LARGE = 64, 64 << 10
# How deep, and among how many values of a container, the cause of a failing pickle is looked for.
_DEPTH, _BREADTH = 12, 10_000

_TIED: tuple[type, ...] = (
    socket.socket,
    synchronize.Lock,
    synchronize.RLock,
    synchronize.Semaphore,
    synchronize.BoundedSemaphore,
    synchronize.Condition,
    synchronize.Event,
    synchronize.Barrier,
    queues.Queue,
    queues.JoinableQueue,
    queues.SimpleQueue,
    sharedctypes.Synchronized,
    sharedctypes.SynchronizedArray,
    sharedctypes.SynchronizedString,
)


class Parcel:
    """An object pickled into a file in memory; travels to any number of processes being started.

    Raises what pickling raises, of which there is much.
    """

    def __init__(self, contents: Any) -> None:
        self._tied: list[Any] = []
        self._descriptor = anonymous_file()
        self._buffers: list[tuple[int, int]] = []
        """Start and size of each array's bytes in the file."""
        try:
            self._write(contents)
        except BaseException:
            self.close()
            raise

    def _write(self, contents: Any) -> None:
        large: list[pickle.PickleBuffer] = []

        def keep_out(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < _LARGE:
                return True
            large.append(buffer)
            return False

        with os.fdopen(os.dup(self._descriptor), "wb") as file:
            _pickler(file, self._tie, keep_out).dump(contents)
            for buffer in large:
                start = file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
                data = buffer.raw()
                self._buffers.append((start, data.nbytes))
                file.write(data)
            file.truncate()

    def _tie(self, thing: Any) -> Any:
        self._tied.append(thing)
        return _tied_number, (len(self._tied) - 1,)

    def open(self) -> Any:
        """Return the object, in a process that this parcel came to."""
        try:
            # A private map: what a worker writes to an array stays its own.
            mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)
        finally:
            self.close()
        whole = memoryview(mapped)
        buffers = [whole[start : start + size] for start, size in self._buffers]
        return _Unpickler(mapped, self._tied, buffers).load()

    def close(self) -> None:
        """Close the file; maps of it stay."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __getstate__(self) -> dict[str, Any]:
        return {
            "descriptor": reduction.DupFd(self._descriptor),
            "tied": self._tied,
            "buffers": self._buffers,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._descriptor = state["descriptor"].detach()
        self._tied, self._buffers = state["tied"], state["buffers"]


def _tied_number(number: int) -> Any:
    """Stand for what is tied to its process; `_Unpickler` puts it in its place."""
    raise pickle.UnpicklingError(f"object {number} of a parcel outside its process")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: mmap.mmap, tied: list[Any], buffers: list[memoryview]) -> None:
        super().__init__(file, buffers=buffers)
        self._tied = tied

    def find_class(self, module: str, name: str) -> Any:
        """Return what the pickle names, and for a tied object's number the way to it."""
        if name == _tied_number.__name__ and module == __name__:
            return self._tied.__getitem__
        return super().find_class(module, name)


class _Pickler(pickle.Pickler):
    tie: Callable[[Any], Any]

    def reducer_override(self, thing: Any) -> Any:
        """Keep a manager's proxies out: their key goes only to processes being started."""
        # Their classes are made as they are needed, so no table can hold them.
        return self.tie(thing) if isinstance(thing, BaseProxy) else NotImplemented


def _pickler(
    file: Any,
    tie: Callable[[Any], Any],
    keep_out: Callable[[pickle.PickleBuffer], bool] | None = None,
) -> pickle.Pickler:
    pickler = _Pickler(file, 5, buffer_callback=keep_out)
    pickler.tie = tie
    known: dict[type, Any] = reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001
    # Methods and partial functions can be pickled anywhere; tensors and handles cannot.
    plain = reduction.__name__
    tied = [kind for kind, reducer in known.items() if reducer.__module__ != plain]
    own = {kind: reducer for kind, reducer in known.items() if kind not in tied}
    own.update(dict.fromkeys((*tied, *_TIED), tie))
    pickler.dispatch_table = {**copyreg.dispatch_table, **own}
    return pickler


def pack_once(source: Source) -> Source | Parcel:
    """Pickle what all workers need once, where it can be pickled outside of their start."""
    try:
        return Parcel(source)
    except Exception as error:  # whatever a user's class raises
        path = find_unpicklable(source.dataset, "dataset") or find_unpicklable(source, "loader")
        if path is None:
            return source  # each process can take it along, as torch has it
        error.add_note(
            f"{path} cannot be pickled, which every start method but fork needs; a function at the "
            "top of a module can be, a lambda or an open file cannot"
        )
        raise


def find_unpicklable(thing: Any, name: str) -> str | None:
    """Return the path of the innermost part of `thing` that cannot be pickled, None if all can."""
    if _can_be_pickled(thing):
        return None
    path = name
    for _ in range(_DEPTH):
        if isinstance(thing, ModuleType):
            break
        for part, inner in _parts(thing):
            if not _can_be_pickled(inner):
                thing, path = inner, f"{path}{part}"
                break
        else:
            break
    return f"{path} ({type(thing).__qualname__})"


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object, each with what it adds to the path."""
    if isinstance(thing, dict):
        for key, inner in list(thing.items())[:_BREADTH]:
            yield f"[{key!r}]", inner
    elif isinstance(thing, list | tuple | set | frozenset):
        for place, inner in enumerate(list(thing)[:_BREADTH]):
            yield f"[{place}]", inner
    elif isinstance(thing, partial):
        yield from ((f".{part}", getattr(thing, part)) for part in ("func", "args", "keywords"))
    elif hasattr(thing, "__self__") and not isinstance(thing, type):
        yield ".__self__", thing.__self__
    else:
        yield from ((f".{part}", inner) for part, inner in getattr(thing, "__dict__", {}).items())


class _Nowhere(io.RawIOBase):
    """Takes what is written and forgets it."""

    def write(self, data: Any) -> int:
        return len(data)


def _can_be_pickled(thing: Any) -> bool:
    try:
        _pickler(_Nowhere(), lambda _: (int, ()), lambda _: False).dump(thing)
    except Exception:  # noqa: BLE001 - whatever it raises, it cannot be pickled
        return False
    return True
