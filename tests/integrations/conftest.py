"""Shards of numbers, scripts that run as two ranks, and small data sets for trainers."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def number_shards(tmp_path_factory):
    """Four shards of 3, 5, 7 and 9 samples; `cls` of each is its own number."""
    folder = tmp_path_factory.mktemp("numbers")
    number = 0
    for shard, count in enumerate((3, 5, 7, 9)):
        with tarfile.open(folder / f"numbers-{shard:06d}.tar", "w") as tar:
            for _ in range(count):
                data = b"%d" % number
                member = tarfile.TarInfo(f"{number:04d}.cls")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
                number += 1
    return folder


def run(command, *, seconds):
    """Run a command in a session of its own; all of it is over when this returns."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun and Ray end what they have started
            try:
                output, _ = process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            pytest.fail(f"not over after {seconds} s:\n{output[-4000:]}")
        assert process.returncode == 0, output[-4000:]
    return output


@pytest.fixture(scope="session")
def runner():
    """Runs a command with a limit of seconds and returns its output."""
    return run


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory):
    """Runs a script of this folder under torchrun; returns what each of two ranks wrote as json."""

    def run_script(name, *arguments):
        folder = tmp_path_factory.mktemp("ranks")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        run(
            [*torchrun, "--nproc_per_node=2", str(HERE / name), str(folder), *map(str, arguments)],
            seconds=120,
        )
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]

    return run_script
