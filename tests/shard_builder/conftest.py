"""The command as a function, and small trees of files to pack."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from fastfeed.shardfile.names import split_name
from fastfeed_shard.main import main


@pytest.fixture
def run(capsys):
    """Call the command; returns (exit code, stdout, stderr)."""

    def run_command(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def built(run):
    """Call the command, which must end well; returns its stdout."""

    def run_well(*arguments):
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return run_well


@pytest.fixture
def make_tree(tmp_path):
    """Write files from a mapping of relative name -> bytes, in its order; returns their folder."""

    def make(files, folder="source"):
        root = tmp_path / folder
        for name, data in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return root

    return make


@pytest.fixture
def animals(make_tree):
    """Two classes of five samples, each a `jpg` of known bytes and a `json`."""
    files = {}
    for kind in ("dog", "cat"):
        for number in range(5):
            files[f"{kind}/{number:03d}.jpg"] = f"{kind} {number} ".encode() * (300 * number + 1)
            files[f"{kind}/{number:03d}.json"] = b'{"number": %d}' % number
    return make_tree(files)


@pytest.fixture
def samples_of():
    """Read shards with Python's tarfile: key -> field -> bytes, over a folder or one shard."""

    def read(dest):
        samples = {}
        paths = sorted(dest.glob("*.tar")) if dest.is_dir() else [dest]
        for path in paths:
            with tarfile.open(path) as tar:
                for member in tar:
                    key, field = split_name(member.name)
                    samples.setdefault(key, {})[field] = tar.extractfile(member).read()
        return samples

    return read


@pytest.fixture
def contents_of():
    """Read a folder: relative name -> bytes of all files."""

    def read(folder):
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }

    return read


@pytest.fixture
def pack_tar(tmp_path):
    """Write a tar of (name, bytes) pairs or ready TarInfo objects with Python's tarfile."""

    def pack(name, *members, tar_format=tarfile.USTAR_FORMAT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=tar_format) as tar:
            for member in members:
                if isinstance(member, tarfile.TarInfo):
                    tar.addfile(member)
                    continue
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
        return path

    return pack
