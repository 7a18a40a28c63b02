"""Small shards of real photos, made with Python's own tarfile."""

from __future__ import annotations

import io
import json
import tarfile

import pytest


def write_tar(path, members):
    """Write (name, bytes) pairs as a tar."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def tar_writer():
    """The function that writes a tar of (name, bytes) pairs."""
    return write_tar


@pytest.fixture
def photo_shards(tmp_path, photos):
    """Three shards of 6, 6 and 6 photos with a class and a json each; returns their folder."""
    for shard in range(3):
        members = []
        for i, photo in enumerate(photos[shard * 6 : shard * 6 + 6]):
            key = f"{shard}{i}-{photo.stem}"
            members += [
                (f"{key}.cls", str(shard).encode()),
                (f"{key}.jpg", photo.read_bytes()),
                (f"{key}.json", json.dumps({"name": photo.stem}).encode()),
            ]
        write_tar(tmp_path / f"photos-{shard:06d}.tar", members)
    return tmp_path


@pytest.fixture
def number_shards(tmp_path):
    """Ten shards of ten samples whose `cls` is the sample's own number, and `txt` its shard."""
    for shard in range(10):
        members = []
        for i in range(10):
            number = shard * 10 + i
            members += [(f"{number:04d}.cls", b"%d" % number), (f"{number:04d}.txt", b"%d" % shard)]
        write_tar(tmp_path / f"numbers-{shard:06d}.tar", members)
    return tmp_path
