"""Shared fixtures: where the large test data lies, the leak gauge, and the skip count."""

from __future__ import annotations

import gc
import os
import re
import threading
from pathlib import Path

import pytest

DATA_VARIABLE = "FASTFEED_TEST_DATA"


@pytest.fixture(scope="session")
def large_data() -> Path:
    """The folder of large test data; tests that need it are skipped, and counted, without it."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        pytest.skip(f"{DATA_VARIABLE} is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def photos() -> list[Path]:
    """The small CC0 photos of examples/photos, in name order."""
    return sorted((Path(__file__).parent.parent / "examples" / "photos").rglob("*.jpg"))


def _gauge() -> dict[str, int]:
    children = Path(f"/proc/{os.getpid()}/task")
    pids: set[str] = set()
    for task in children.iterdir():
        try:
            pids.update((task / "children").read_text().split())
        except OSError:
            continue
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "children": len(pids),
        "shared memory files": sum(map(_is_ours, Path("/dev/shm").iterdir())),
    }


def _is_ours(path: Path) -> bool:
    """Say whether a file of shared memory may come from here; torch's name their process."""
    named = re.match(r"torch_(\d+)_", path.name)
    if named is None:
        return True
    try:
        status = Path(f"/proc/{named[1]}/stat").read_text()
    except OSError:
        return True  # its process is gone, and may have been a worker of ours
    parent = int(status.rpartition(")")[2].split()[1])
    return os.getpid() in {int(named[1]), parent}


@pytest.fixture
def leak_gauge():
    """Assert that a test leaves no descriptor, thread, child or shared memory behind."""
    gc.collect()
    before = _gauge()
    yield
    gc.collect()
    after = _gauge()
    grown = {name: (before[name], after[name]) for name in before if after[name] > before[name]}
    assert not grown, f"left behind (before, after): {grown}"


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how many tests were not run for want of the large data or of a GPU."""
    skipped = terminalreporter.stats.get("skipped", [])
    without_data = sum(DATA_VARIABLE in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(f"skipped without {DATA_VARIABLE}: {without_data}")
