"""Compress a shard into zstd frames that are read one by one, with the table that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fastfeed.errors import OptionError
from fastfeed.options import parse_size
from fastfeed.shardfile.seekable import Frame, content_checksum, raw_frame, save_table

if TYPE_CHECKING:
    from collections.abc import Sequence

# Chosen by measurement: docs/format.md.
FRAME: Final = 768 << 10
LEVEL: Final = 3
TRIAL: Final = 8 << 20
"""Bytes at the beginning of a tar that tell how large its frames are to be."""
SUFFIX: Final = ".zst"

_SMALLEST, _LARGEST = 4 << 10, 16 << 20
_LEVELS = range(1, 23)
# What shrinks by less is stored as it is, so that reading it is copying.
_WORTH = 0.97
# Frames that take more than the same bytes in one are made larger, up to a size that a process can
# still keep enough of.
_EXCESS = 1.04
_LARGEST_CHOSEN = 4 << 20


@dataclass(frozen=True, slots=True)
class Compression:
    """How a shard is compressed. Equal values give equal bytes, with one version of zstd."""

    level: int = LEVEL
    frame: int | None = None
    """Bytes of the tar in a frame, at most; samples that fit are never parted. None: each shard has
    the size that its first bytes ask for."""

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise OptionError(f"zstd has levels from 1 to 22, not {self.level}")
        if self.frame is not None and not _SMALLEST <= self.frame <= _LARGEST:
            raise OptionError(
                f"a frame of {self.frame:,} bytes is too small or too large to be read by position",
                way_out="Choose a size between 4KiB and 16MiB",
            )


def parse_compression(
    kind: str | None, *, level: int | None = None, frame: int | str | None = None
) -> Compression | None:
    """Return what `--compress`, `--level` and `--frame` ask for; None for plain tars.

    `kind` is "zstd", or "zstd:LEVEL" in one word.
    """
    if kind is None:
        if level is not None or frame is not None:
            raise OptionError("level and frame are of compressed shards", way_out="Add zstd")
        return None
    name, _, digits = kind.partition(":")
    if name != "zstd" or (digits and not digits.isdecimal()):
        raise OptionError(f"{kind!r} is no compression of shards", way_out="Write zstd")
    return Compression(
        level=level if level is not None else int(digits or LEVEL),
        frame=None if frame is None else parse_size(frame, name="frame"),
    )


class FrameWriter:
    """Turns the pieces of a tar into frames, and remembers them for the table."""

    def __init__(self, compression: Compression) -> None:
        import zstandard

        self._compressor = zstandard.ZstdCompressor(level=compression.level, write_checksum=True)
        self._frames: list[Frame] = []

    @property
    def largest(self) -> int:
        """Bytes of the content of the largest frame."""
        return max((frame.size for frame in self._frames), default=0)

    def pack(self, content: memoryview) -> bytes:
        """Return the frame of a piece that is not empty."""
        frame = self._compressor.compress(content)
        if len(frame) > _WORTH * len(content):
            frame = raw_frame(content)
        self._frames.append(Frame(len(frame), len(content), content_checksum(content)))
        return frame

    def choose(self, content: memoryview, marks: Sequence[tuple[int, int]]) -> int:
        """Return the size of frames for a tar that begins with `content`.

        The smallest one that costs little beside a single frame. What does not shrink has the
        smallest of all, for no other would be smaller. `marks` are those of `cut_frames`.
        """
        size = FRAME
        if len(content) <= size:
            return size
        whole = len(self._compressor.compress(content))
        if whole > _WORTH * len(content):
            return size
        while size < _LARGEST_CHOSEN:
            cuts = [0, *cut_frames(marks, len(content), size), len(content)]
            pieces = (content[begin:end] for begin, end in pairwise(cuts))
            if sum(len(self._compressor.compress(piece)) for piece in pieces) <= _EXCESS * whole:
                break
            size = min(2 * size, _LARGEST_CHOSEN)
        return size

    def table(self) -> bytes:
        """Return the table, which ends the file."""
        return save_table(self._frames)


def cut_frames(marks: Sequence[tuple[int, int]], end: int, size: int) -> list[int]:
    """Return where frames of at most `size` bytes end in the first `end` bytes of a tar.

    The last frame may go on beyond them, so its end is not among these. `marks` (offset, bytes)
    say where bytes begin that stay together if they fit a frame, and otherwise begin one.
    """
    cuts = [0]
    for offset, nbytes in (*marks, (end, 0)):
        while offset - cuts[-1] > size:
            cuts.append(cuts[-1] + size)
        if offset > cuts[-1] and offset - cuts[-1] + nbytes > size:
            cuts.append(offset)
    return cuts[1:]
