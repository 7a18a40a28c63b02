"""Compressed files for tests: frames of any content, tars, and a shard in memory."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise

import zstandard

from fastfeed.shardfile.seekable import Frame, content_checksum, save_table
from fastfeed.shardfile.tar import walk


class Memory:
    """A shard in memory that remembers what was read of it."""

    def __init__(self, data):
        self.data = bytes(data)
        self.size = len(data)
        self.reads = []
        self.advised = []
        self.closed = False

    def read_at(self, offset, size, /):
        self.reads.append((offset, size))
        return self.data[offset : offset + size]

    def read_into(self, offset, buffer, /):
        buffer[:] = self.read_at(offset, len(buffer))

    def advise(self, offset, size):
        self.advised.append((offset, size))

    def close(self):
        self.closed = True


def seekable(*contents, checksum=True, table=True, size=True):
    """Return a file of a frame for each content, and its table."""
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size)
    frames, file = [], b""
    for content in contents:
        frame = compressor.compress(content)
        file += frame
        frames.append(Frame(len(frame), len(content), content_checksum(memoryview(content))))
    return file + (save_table(frames) if table else b"")


def tar_of(*members):
    """Return the bytes of a tar."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


TAR = tar_of(*((f"{n:03d}.txt", f"{n} ".encode() * (90 * n)) for n in range(12)))


def pieces(data, *cuts):
    """Cut data at these places."""
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def skippable(nibble, nbytes):
    """Return a frame that decoders skip."""
    return bytes([0x50 | nibble]) + b"\x2a\x4d\x18" + nbytes.to_bytes(4, "little") + bytes(nbytes)


def names(shard):
    """Walk a tar to its end and return its names."""
    return [member.name for member in walk(shard.read_at, shard.size, shard="s")]


def whole(storage):
    """Return all bytes of a shard."""
    return storage.read_at(0, storage.size + 1)
