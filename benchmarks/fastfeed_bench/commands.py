"""Runs other commands and raises what they said when they fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fastfeed.errors import FastfeedError

SHARD_TOOL = (
    sys.executable,
    "-c",
    "import sys; from fastfeed_shard.main import main; sys.exit(main())",
)
"""`fastfeed-shard` of this very Python, whatever the PATH."""


def run_command(*command: str) -> str:
    """Return the standard output of a command; FastfeedError with its last words if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        name = "fastfeed-shard" if command[:3] == SHARD_TOOL else Path(command[0]).name
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FastfeedError(f"{name} failed: {lines[-1][:300]}")
    return done.stdout
