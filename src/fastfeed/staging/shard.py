"""One shard by way of the shelf: from the local disk once it is there, from afar until then."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, TypeVar

from fastfeed.errors import StorageError
from fastfeed.storage.answers import Facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from fastfeed.staging.shelf import StagedFile
    from fastfeed.staging.source import Source
    from fastfeed.staging.staged import Staged
    from fastfeed.storage.open import Storage

_T = TypeVar("_T")


class StagedShard:
    """A shard that is read from the shelf if it is there, else from afar; asked anew each time."""

    def __init__(self, staged: Staged, source: Source) -> None:
        self.source = source
        self._staged = staged
        self._file: StagedFile | None = None
        self._far: Storage | None = None
        _shards.add(self)

    @property
    def size(self) -> int:
        """Bytes in the shard, as the manifest or the storage says."""
        return self.source.size

    def is_near(self) -> bool:
        """Say whether it is on the shelf, and open it there: then reads ask nobody else."""
        if self._file is None:
            self._file = self._staged.look_for(self)
        return self._file is not None

    @property
    def facts(self) -> Facts:
        """What is known of the shard, without asking; a digest tells versions apart too."""
        return Facts(self.source.size, self.source.tag or self.source.digest)

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Return `size` bytes at `offset`; fewer only if the shard ends before."""

        def call(storage: Storage) -> bytes:
            data = storage.read_at(offset, size)
            if len(data) < min(size, self.size - offset):
                raise StorageError(
                    f"{self!r} ended after {len(data):,} of {size:,} bytes", offset=offset
                )
            return data

        return self._read(call, offset, size)

    def read_into(self, offset: int, buffer: memoryview, /) -> None:
        """Fill all of `buffer` with the bytes at `offset`, or raise StorageError."""
        file, nbytes = self._file, len(buffer)
        if file is None:
            self._read(lambda storage: storage.read_into(offset, buffer), offset, nbytes)
            return
        try:  # most reads: the same as there in fewer steps
            file.read_into(offset, buffer)
        except StorageError as error:
            self._lose(file, error, offset, nbytes)
            self._read_far(lambda storage: storage.read_into(offset, buffer), nbytes)
        else:
            self._staged.count(nbytes, local=True)

    def advise(self, offset: int, size: int) -> None:
        """Hint that these bytes will be read soon; from afar the stager knows better."""
        file = self._file
        if file is not None:
            file.advise(offset, size)

    def let_go(self) -> StagedFile | None:
        """Hold the file on the shelf no longer; reads under way end first, later ones reopen it.

        Returns what was held, which is closed with its last reference.
        """
        file, self._file = self._file, None
        return file

    def close(self) -> None:
        """Give back what is open; more than once is fine."""
        self._file = None
        far, self._far = self._far, None
        if far is not None:
            far.close()

    def _read(self, call: Callable[[Storage], _T], offset: int, nbytes: int) -> _T:
        # No lock: two threads may open the same file, and one of the two is dropped.
        file = self._file
        if file is None:
            file = self._file = self._staged.find(self)
        if file is not None:
            try:
                result = call(file)
            except StorageError as error:
                self._lose(file, error, offset, nbytes)
            else:
                self._staged.count(nbytes, local=True)
                return result
        return self._read_far(call, nbytes)

    def _lose(self, file: StagedFile, error: StorageError, offset: int, nbytes: int) -> None:
        if offset < 0 or offset + nbytes > self.source.size:
            raise error  # nobody could have read that
        self._file = None
        self._staged.lose(self.source, file, error)

    def _read_far(self, call: Callable[[Storage], _T], nbytes: int) -> _T:
        far = self._far
        if far is None:
            far = self._far = self._staged.open_far(self.source)
        result = call(far)
        self._staged.count(nbytes, local=False)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StagedShard({self.source.key}, {self.source.size:,} bytes)"


_shards: weakref.WeakSet[StagedShard] = weakref.WeakSet()


def _let_go_in_child() -> None:
    # The child would keep shards from eviction that only its parent reads.
    for shard in list(_shards):
        shard.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
