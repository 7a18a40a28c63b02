"""Run as a command: each quickstart with our loader and with torch's; writes what both print."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS, TORCHS = "from fastfeed import DataLoader\n", "from torch.utils.data import DataLoader\n"


def main():
    """Write the printed lines by example and loader."""
    found = {}
    for name in ("torch", "lightning", "accelerate"):
        source = (EXAMPLES / f"{name}_quickstart.py").read_text()
        assert source.count(OURS) == 1
        for loader, line in (("ours", OURS), ("torch", TORCHS)):
            printed = io.StringIO()
            script = compile(source.replace(OURS, line), f"{name}_quickstart.py", "exec")
            with redirect_stdout(printed):
                exec(script, {"__name__": "__main__"})  # noqa: S102 - our own examples
            found[f"{name} {loader}"] = printed.getvalue().splitlines()
    Path(sys.argv[1]).write_text(json.dumps(found))


main()
