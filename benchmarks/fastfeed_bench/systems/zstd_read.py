"""zstd-read: what `zstd` itself makes of the shards that others read samples of."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fastfeed_bench.commands import run_command
from fastfeed_bench.sessions import LoaderSession

if TYPE_CHECKING:
    from fastfeed_bench.model import Settings

# As the builder compresses, and of so many shards.
_LEVEL, _COMPARED = 3, 8


def plain_session(settings: Settings) -> LoaderSession:
    """Return the session of `zstd -d`, one process, whose output is thrown away."""
    shards = sorted(Path(settings["folder"]).glob("*.tar.zst"))
    version = run_command("zstd", "-q", "--version").strip()

    def consume(_: None) -> int:
        command = ["zstd", "-d", "-q", "-f", *map(str, shards), "-o", "/dev/null"]
        subprocess.run(command, check=True)  # noqa: S603 - paths of our own
        return int(settings["samples"])

    return LoaderSession(
        note=f"zstd {version} -d to /dev/null; the shards take {_relative_size(shards):.3f} of "
        "what it makes of whole tars",
        samples=settings["samples"],
        epoch=lambda: [None],
        consume=consume,
        # It knows of no samples; that it decompresses all shards is all there is to say.
        describe=lambda: {"samples": consume(None)},
    )


def _relative_size(shards: list[Path]) -> float:
    """Return how large shards are beside their tars compressed whole, at the same level."""
    import zstandard

    from fastfeed.storage.compressed import open_shard

    ours = whole = 0
    for path in shards[:_COMPARED]:
        with open_shard(path) as shard:
            tar = shard.read_at(0, shard.size)
        ours += path.stat().st_size
        whole += len(zstandard.ZstdCompressor(_LEVEL).compress(tar))
    return ours / whole
