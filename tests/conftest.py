"""Shared fixtures: where the large test data lies, an S3 server, the leak gauge, the skip count."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import settings

DATA_VARIABLE = "FASTFEED_TEST_DATA"

# How long an example takes says more of the machine than of us.
settings.register_profile("fastfeed", deadline=None)
settings.load_profile("fastfeed")


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


@pytest.fixture(scope="session", autouse=True)
def _temporary(tmp_path_factory):
    """Keep what torchrun and Lightning leave in the temporary folder where pytest clears up.

    We leave nothing.
    """
    # For all forks, removed when this process ends: a worker of torch's whose loop is left early
    # may leave a folder of its own.
    multiprocessing.util.get_temp_dir()
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr("tempfile.tempdir", None)
        yield
    assert not list(folder.glob("fastfeed*"))


@pytest.fixture(scope="session")
def await_port():
    """Wait until a server's process answers at its port."""

    def wait(port, process):
        for _ in range(600):
            assert process.poll() is None, "the server ended"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)  # another process tells nobody when it is ready
            else:
                return
        raise AssertionError("the server does not answer")

    return wait


@pytest.fixture(scope="session")
def s3_server(await_port):
    """The endpoint of moto's S3, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = (
        "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MOTO_ALLOW_NONEXISTENT_REGION": "1"},
    )
    try:
        await_port(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> None:
    """Leave what is imported by now out of collections; torch alone makes each take 0.15 s.

    What a test makes is not frozen, so nothing that it leaves behind escapes the gauge.
    """
    gc.collect()
    gc.freeze()


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
    before, threads = _gauge(), set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - threads:
        if thread.name == "QueueFeederThread":  # torch tells its queues to end, and leaves them
            thread.join(60)
    after = _gauge()
    grown = {name: (before[name], after[name]) for name in before if after[name] > before[name]}
    assert not grown, f"left behind (before, after): {grown}"


def pytest_terminal_summary(terminalreporter) -> None:
    """Say how many tests were not run for want of the large data or of a GPU."""
    skipped = terminalreporter.stats.get("skipped", [])
    without_data = sum(DATA_VARIABLE in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(f"skipped without {DATA_VARIABLE}: {without_data}")
