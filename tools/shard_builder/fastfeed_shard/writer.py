"""`ff.ShardWriter`: samples from Python into the same shards and indexes that the command makes."""

from __future__ import annotations

import io
import logging
import os
import warnings
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from fastfeed.errors import OptionError
from fastfeed.options import parse_size
from fastfeed_shard.build import publish, stored_name
from fastfeed_shard.encode import encode
from fastfeed_shard.folder import DatasetFolder
from fastfeed_shard.frames import parse_compression
from fastfeed_shard.packing import END_BYTES, Packed, ShardFile
from fastfeed_shard.plan import check_shard_name, packed_size, shard_name
from fastfeed_shard.safe import why_unsafe

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

log = logging.getLogger("fastfeed")
_UNSAFE = "Use keys of ASCII letters, digits, '-', '_' and '/', and fields such as jpg or seg.png"


class ShardWriter:
    """Writes samples to shards in the folder `dest`, in the order in which they come.

        with ff.ShardWriter("shards", shard_size="256MiB") as writer:
            writer.write({"__key__": "0001", "jpg": data, "cls": 3, "json": {"from": "camera 1"}})

    `dest` must be new or empty. Shards are called `<name>-000000.tar` and so on, each at most
    `shard_size` bytes (an int, or text such as "256MiB") unless one sample alone is larger. When
    the `with` block ends without an error, the folder is a complete data set with its manifest;
    after an error it holds the shards finished so far, and no half one. `energon` adds the folder
    that Megatron-Energon wants. `compress` is "zstd", or "zstd:LEVEL", for `.tar.zst` shards; the
    size is that before compression. One thread at a time may write.
    """

    def __init__(
        self,
        dest: str | os.PathLike[str],
        *,
        name: str = "train",
        shard_size: int | str = "256MiB",
        energon: bool = False,
        compress: str | None = None,
    ) -> None:
        self._open = False
        self._pid = os.getpid()
        check_shard_name(name)
        self._name = name
        self._shard_size = parse_size(shard_size, name="shard_size")
        self._energon = energon
        self._compress = parse_compression(compress)
        if energon and self._compress is not None:
            raise OptionError("Energon reads plain tars only", way_out="Leave out one of the two")
        self._keys = _KeySet()
        self._packed: list[Packed] = []
        self._shard: ShardFile | None = None
        self._folder = DatasetFolder(Path(dest), name=name, plan=None)
        self._folder.__enter__()
        self._open = True

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: `__key__`, unique over the data set, and the value of each field.

        Bytes are stored as they are, text as UTF-8, a whole number as `cls`, what JSON can hold as
        `json`, an array as `npy` (without pickle). Other names like `__this__` are left out.
        Raises OptionError, naming key and field, for what cannot be stored; the writer goes on.
        """
        if not self._open:
            raise OptionError("the writer is closed", way_out="Write inside of its `with` block")
        if not isinstance(sample, Mapping):
            raise OptionError(
                f"{sample!r} is no sample",
                way_out='Give a dict such as {"__key__": "0001", "jpg": data, "cls": 7}',
            )
        key = sample.get("__key__")
        if not isinstance(key, str):
            raise OptionError(
                f"the sample has no key, but {key!r}", way_out='Give each a text as "__key__"'
            )
        parts = _encode_sample(sample, key)
        if not self._keys.add(key):
            way_out = "Keys must be unique over the data set"
            raise OptionError("the key was written before", way_out=way_out, key=key)
        try:
            self._add(key, parts)
        except BaseException:
            # Part of the sample may be in the shard: it can't be finished, nor the data set.
            self.abort()
            raise

    def close(self) -> None:
        """Finish the last shard and write the manifest; once closed, this does nothing.

        Raises OptionError if no sample was written, for no reader takes a data set without any.
        """
        if not self._open:
            return
        try:
            self._finish_shard()
            if not self._packed:
                raise OptionError(
                    f"no sample was written, so {str(self._folder.path)!r} is no data set",
                    way_out="Look at what the samples come from",
                )
            publish(self._folder.path, self._packed, classes=None, energon=self._energon, sync=True)
            self._folder.complete()
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop without a manifest: finished shards stay, the one being written is removed."""
        if not self._open:
            return
        self._open = False
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.discard()
        self._folder.__exit__(None, None, None)

    def _add(self, key: str, parts: list[tuple[str, bytes]]) -> None:
        size = packed_size([len(data) for _, data in parts])
        if self._shard and self._shard.nbytes + size + END_BYTES > self._shard_size:
            self._finish_shard()
        if self._shard is None:
            name = stored_name(shard_name(self._name, len(self._packed)), self._compress)
            self._shard = ShardFile(self._folder.path / name, sync=True, compress=self._compress)
        self._shard.begin(size)
        for field, data in parts:
            self._shard.add(f"{key}.{field}", len(data), io.BytesIO(data).readinto)

    def _finish_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            with shard:
                self._packed.append(shard.finish())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # A forked child has a copy of the writer, but not the right to end it.
        if self._open and self._pid == os.getpid():
            fact = f"a ShardWriter on {str(self._folder.path)!r} was never closed: no manifest"
            self.abort()
            log.error("%s was written. Use it in a `with` block", fact)
            warnings.warn(f"{fact} was written", ResourceWarning, source=self, stacklevel=2)


def _encode_sample(sample: Mapping[str, Any], key: str) -> list[tuple[str, bytes]]:
    """Return (field, data) of a sample, sorted by field."""
    parts: dict[str, bytes] = {}
    for name, value in sample.items():
        if name.startswith("__") and name.endswith("__"):
            continue
        field = name.lower()
        reason = why_unsafe(key, field)
        if reason is not None:
            fact = f"some readers would misread this: {reason}"
            raise OptionError(fact, way_out=_UNSAFE, key=key, field=name)
        if field in parts:
            fact = "the field is there twice, in letters of different case"
            raise OptionError(fact, way_out="Rename one of them", key=key, field=name)
        parts[field] = encode(value, key=key, field=field)
    if not parts:
        raise OptionError("the sample has no field", way_out="Give it one, such as jpg", key=key)
    return sorted(parts.items())


class _KeySet:
    """The keys written so far, as 64-bit hashes in an open table: about 16 bytes each.

    Two different keys share a hash once in some ten thousand data sets of fifty million samples.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 1024))
        self._count = 0

    def add(self, key: str) -> bool:
        """Add a key; False if it is there already."""
        digest = xxhash.xxh3_64_intdigest(key.encode()) or 1
        place = self._place(digest)
        if self._table[place] == digest:
            return False
        self._table[place] = digest
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    def _place(self, digest: int) -> int:
        last = len(self._table) - 1
        place = digest & last
        while self._table[place] not in {0, digest}:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        before, self._table = self._table, array("Q", bytes(16 * len(self._table)))
        for digest in before:
            if digest:
                self._table[self._place(digest)] = digest
