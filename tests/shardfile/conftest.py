"""Tars in memory, and how to walk them."""

from __future__ import annotations

import io
import tarfile

import pytest

from fastfeed.shardfile.tar import walk


@pytest.fixture
def pack():
    """Pack (name, content) pairs, or ready TarInfo objects, into the bytes of a tar."""

    def pack_members(*members, format=tarfile.USTAR_FORMAT) -> bytes:  # noqa: A002
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=format) as tar:
            for member in members:
                if isinstance(member, tarfile.TarInfo):
                    tar.addfile(member)
                    continue
                name, content = member
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return file.getvalue()

    return pack_members


@pytest.fixture
def walk_bytes():
    """Walk a tar that lies in memory and return its members as a list."""

    def walk_all(data: bytes):
        return list(walk(lambda offset, size: data[offset : offset + size], len(data), shard="s"))

    return walk_all
