"""The examples that need a GPU run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]


def test_a_step_as_a_graph():
    """The captured step trains on each new batch."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "cuda_graph.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "as a graph" in done.stdout
