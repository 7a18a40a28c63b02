"""The quickstarts run, and with torch's import they print the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def test_quickstarts_differ_in_one_import(tmp_path, runner):
    """Losses and results are the same to the digit with either loader."""
    script = Path(__file__).parent / "examples_twice.py"
    runner([sys.executable, str(script), str(tmp_path / "printed.json")], seconds=120)
    printed = json.loads((tmp_path / "printed.json").read_text())
    for name, result in (
        ("torch", "100% right"),
        ("lightning", "256 waves encoded in 3 numbers each"),
        ("accelerate", "on 500 points"),
    ):
        assert printed[f"{name} ours"] == printed[f"{name} torch"]
        assert printed[f"{name} ours"][-1].endswith(result)
