"""Compress a shard into zstd frames that are read one by one, with the table that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fastfeed.errors import OptionError
from fastfeed.options import parse_size
from fastfeed.shardfile.seekable import Frame, content_checksum, raw_frame, save_table

# Chosen by measurement: docs/format.md.
FRAME: Final = 768 << 10
LEVEL: Final = 3
SUFFIX: Final = ".zst"

_SMALLEST, _LARGEST = 4 << 10, 16 << 20
_LEVELS = range(1, 23)
# What shrinks by less is stored as it is, so that reading it is copying.
_WORTH = 0.97


@dataclass(frozen=True, slots=True)
class Compression:
    """How a shard is compressed. Equal values give equal bytes, with one version of zstd."""

    level: int = LEVEL
    frame: int = FRAME
    """Bytes of the tar in a frame, at most; samples that fit are never parted."""

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise OptionError(f"zstd has levels from 1 to 22, not {self.level}")
        if not _SMALLEST <= self.frame <= _LARGEST:
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
        frame=FRAME if frame is None else parse_size(frame, name="frame"),
    )


class FrameWriter:
    """Turns the pieces of a tar into frames, and remembers them for the table."""

    def __init__(self, compression: Compression) -> None:
        import zstandard

        self._compressor = zstandard.ZstdCompressor(level=compression.level, write_checksum=True)
        self._frames: list[Frame] = []

    def pack(self, content: memoryview) -> bytes:
        """Return the frame of a piece that is not empty."""
        frame = self._compressor.compress(content)
        if len(frame) > _WORTH * len(content):
            frame = raw_frame(content)
        self._frames.append(Frame(len(frame), len(content), content_checksum(content)))
        return frame

    def table(self) -> bytes:
        """Return the table, which ends the file."""
        return save_table(self._frames)
