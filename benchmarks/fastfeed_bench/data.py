"""The data sets that benchmarks run on, each made once and kept in the work folder."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfeed.errors import FastfeedError
from fastfeed.shardfile.index import CELL, ShardIndex, row_dtype, save_index
from fastfeed.shardfile.manifest import Manifest, ShardEntry, save_manifest
from fastfeed.shardfile.tar import ustar_header
from fastfeed.version import __version__
from fastfeed_bench.commands import SHARD_TOOL, run_command
from fastfeed_bench.photos import find_sources, make_photos
from fastfeed_bench.probe import COUNT, make_probe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastfeed_bench.model import Context

_BLOCK = 512


@dataclass(frozen=True, slots=True)
class PhotoData:
    """The ImageNet-like photos and the probe, as files and as shards."""

    photos: Path
    shards: list[str]
    probe: Path
    probe_shards: list[str]

    @property
    def settings(self) -> dict[str, Any]:
        """The places, as systems are told them."""
        return {
            "photos": str(self.photos),
            "shards": self.shards,
            "count": sum(1 for _ in self.photos.rglob("*.jpg")),
            "probe": str(self.probe),
            "probe_shards": self.probe_shards,
        }


def photo_data(context: Context, *, shard_size: str = "8MiB") -> PhotoData:
    """Return the photos of the context, made if need be.

    Benchmarks that go through them many times name them again and again, and want few and large
    shards then, as data sets of that length have.
    """
    sources = find_sources(context.photos)
    photos = make_photos(sources, context.work)
    content = make_probe(sources[0])
    probe = context.work / f"probe-{hashlib.sha256(content).hexdigest()[:16]}"
    with _made_once(probe) as partial:
        if partial:
            (partial / "probe").mkdir()
            for index in range(COUNT):
                (partial / "probe" / f"{index:06d}.jpg").write_bytes(content)
    return PhotoData(
        photos, packed(photos, shard_size=shard_size), probe, packed(probe, shard_size="4MiB")
    )


def copies(photos: Path, times: int) -> Path:
    """Return a folder that holds every photo `times` times, as separate files."""
    folder = photos.with_name(f"{photos.name}-x{times}")
    with _made_once(folder) as partial:
        if partial:
            for photo in sorted(photos.rglob("*.jpg")):
                target = partial / photo.parent.name
                target.mkdir(exist_ok=True)
                for copy in range(times):
                    shutil.copyfile(photo, target / f"{photo.stem}-{copy}.jpg")
    return folder


def raw_shards(work: Path, *, size: int, total: int) -> Path:
    """Return a folder of shards of random samples of `size` bytes, `total` bytes in all.

    Python's tarfile writes them, in four shards, and `fastfeed-shard index` indexes them.
    """
    folder = work / f"raw-{size}-{total}"
    with _made_once(folder) as partial:
        if partial:
            random = np.random.default_rng(size)
            count = total // size // 4
            for shard in range(4):
                with tarfile.open(
                    partial / f"raw-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT
                ) as tar:
                    for sample in range(count):
                        member = tarfile.TarInfo(f"{shard:02d}{sample:08d}.bin")
                        member.size = size
                        tar.addfile(member, io.BytesIO(random.bytes(size)))
            shard_tool("index", str(partial))
    return folder


def synthetic_index(work: Path, *, shards: int, samples: int, size: int = 2048) -> Path:
    """Return a data set of `shards` times `samples` samples, whose shards are holes.

    Index and manifest are real; the shards are sparse files, with the header of the last member
    only, by which a reader knows that index and shard belong together.
    """
    folder = work / f"holes-{shards}-{samples}-{size}"
    stride = _BLOCK + -(-size // _BLOCK) * _BLOCK
    shard_bytes = stride * samples + 2 * _BLOCK
    cells = np.zeros((samples, len(CELL.names or ())), "<u8")
    cells[:, 0] = np.arange(samples, dtype=np.uint64) * stride
    cells[:, 1] = cells[:, 0] + _BLOCK
    cells[:, 2] = size
    dtype = row_dtype(("bin",))
    with _made_once(folder) as partial:
        if partial:
            index = save_index(ShardIndex(("bin",), cells.reshape(-1).view(dtype), shard_bytes))
            names = [f"holes-{shard:06d}.tar" for shard in range(shards)]
            for name in names:
                with (partial / name).open("wb") as file:
                    file.seek(stride * (samples - 1))
                    file.write(ustar_header(f"{samples - 1:08d}.bin", size))
                    file.truncate(shard_bytes)
                (partial / name).with_suffix(".ffx").write_bytes(index)
            entries = tuple(ShardEntry(name, shard_bytes, samples) for name in names)
            manifest = Manifest({"bin": shards * samples}, entries)
            for name, content in save_manifest(manifest).items():
                (partial / name).write_bytes(content)
    return folder


def shard_tool(*arguments: str) -> None:
    """Run `fastfeed-shard`."""
    run_command(*SHARD_TOOL, *arguments)


def packed(folder: Path, *, shard_size: str) -> list[str]:
    """Return the shards of a folder of photos, made if need be."""
    # A new version may pack differently.
    size = "" if shard_size.endswith("MiB") else f"-{shard_size}"
    shards = folder.with_name(f"{folder.name}-shards{size}-{__version__}")
    with _made_once(shards) as partial:
        if partial:
            shard_tool("build", str(folder), str(partial), "--shard-size", shard_size)
            if not any(partial.glob("*.tar")):
                raise FastfeedError("fastfeed-shard build ended well, but wrote no shard")
    return [str(path) for path in sorted(shards.glob("*.tar"))]


@contextmanager
def _made_once(folder: Path) -> Iterator[Path | None]:
    """Give an empty folder to fill, which then gets its name; None if it is there already."""
    if folder.is_dir():
        yield None
        return
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    partial.rename(folder)
