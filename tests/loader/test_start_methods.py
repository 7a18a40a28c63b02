"""Fork, spawn and fork server: the same batches, random augmentations, errors and states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("start_methods.py")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_c53_every_start_method_gives_torchs_batches(method):
    """Five sets of options over maps and streams; what the program compares is in its file."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), method],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (len(lines), done.stderr, done.returncode) == (5, "", 0), done.stdout
    assert all(line.endswith(": same") for line in lines)
