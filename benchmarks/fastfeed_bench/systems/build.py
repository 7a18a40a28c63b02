"""build: a folder of photos into tar files, by our command and by GNU tar."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed_bench.commands import SHARD_TOOL, run_command
from fastfeed_bench.consume import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fastfeed_bench.model import Evidence, Settings


@dataclass(frozen=True, slots=True)
class PackSession:
    """One run packs the folder into a fresh destination; its figure is MB of photos a second."""

    note: str
    source: Path
    pack: Callable[[Path], object]
    """Packs the source into files below the folder given."""

    def run(self) -> Mapping[str, float]:
        """Pack once; making and removing the destination is not timed."""
        total = sum(entry.stat().st_size for entry in self.source.rglob("*.jpg"))
        # Beside the source: on the same disk.
        with tempfile.TemporaryDirectory(dir=self.source.parent) as folder:
            destination = Path(folder) / "packed"
            begin = time.perf_counter()
            self.pack(destination)
            seconds = time.perf_counter() - begin
        # What is still to be written to the disk is not left to the next system's run.
        os.sync()
        return {"value": total / seconds / 1e6}

    def evidence(self) -> Evidence:
        """Describe the photos in what was packed."""
        with tempfile.TemporaryDirectory(dir=self.source.parent) as folder:
            destination = Path(folder) / "packed"
            self.pack(destination)
            photos = list(_photos(destination))
            total = digest(photos)
        return {"photos": len(photos), "digest": f"{total:016x}"}

    def close(self) -> None:
        """Nothing is left open between runs."""


def _photos(folder: Path) -> Iterator[bytes]:
    for shard in sorted(folder.rglob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name.endswith(".jpg") else None
                if content is not None:
                    yield content.read()


def fastfeed_session(settings: Settings) -> PackSession:
    """Return the session of `fastfeed-shard build`, whole command, imports and all."""
    source, jobs = Path(settings["folder"]), settings["jobs"]
    return PackSession(
        note=f"fastfeed-shard build --jobs {jobs}, with checksums, indexes and manifest",
        source=source,
        pack=lambda to: run_command(
            *SHARD_TOOL, "build", str(source), str(to), "--jobs", str(jobs)
        ),
    )


def tar_session(settings: Settings) -> PackSession:
    """Return the session of GNU tar, with the file synced to disk if `sync` is set."""
    source, sync = Path(settings["folder"]), settings["sync"]
    program = shutil.which("tar")
    if program is None:
        raise RuntimeError("there is no tar command here")
    version = run_command(program, "--version").splitlines()[0]

    def pack(to: Path) -> None:
        to.mkdir()
        file = to / "photos.tar"
        run_command(program, "--create", "--file", str(file), "--directory", str(source), ".")
        if sync:
            with file.open("rb") as packed:
                os.fsync(packed.fileno())

    return PackSession(note=version, source=source, pack=pack)
