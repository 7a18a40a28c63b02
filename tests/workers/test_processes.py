"""Whole programs: start methods, Ctrl-C, a killed trainer, exit in the middle."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAD = """
import os, sys, time
import torch
from torch.utils.data import Dataset, get_worker_info
from fastfeed.loader import DataLoader

class Slow(Dataset):
    def __init__(self, seconds=0.0):
        self.seconds = seconds
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((10_000,), float(index)), get_worker_info().id

def main():
"""


def program(tmp_path, body):
    """Write a script and return how to run it."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    script = tmp_path / "script.py"
    script.write_text(f'{HEAD}{lines}\nif __name__ == "__main__":\n    main()\n')
    return [sys.executable, str(script)]


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids, seconds):
    """Wait until none of the processes lives; False if the time is over."""
    for pid in pids:
        try:
            watch = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(watch) as file:
            started = time.monotonic()
            select.select([file], [], [], seconds)
            seconds -= time.monotonic() - started
    return not any(map(lives, pids))


def descendants(pid, count):
    """Wait until a process has that many children, and return them."""
    for _ in range(10_000):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(c) for task in tasks for c in (task / "children").read_text().split()]
        if len(children) >= count:
            return children
        os.sched_yield()
    raise AssertionError(f"{pid} has only the children {children}")


ITERATE = """
loader = DataLoader(Slow({seconds}), batch_size=8, num_workers=2, persistent_workers={persistent})
batches = iter(loader)
next(batches)
print(*[worker.process.pid for worker in batches._pool._workers], flush=True)
for batch in batches:
    pass
"""


# What the workers are at when the trainer dies.
STATES = {
    "busy": "for batch in batches: pass",
    "idle": "threading.Event().wait()",
    # PyDLL keeps the interpreter's lock: no Python runs in the worker any more.
    "stuck": "list(DataLoader(Slow(), num_workers=1, "
    "collate_fn=lambda batch: os.kill(os.getpid(), 0) or ctypes.PyDLL(None).pause()))",
}


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (signal.SIGKILL, "busy"),
        (signal.SIGKILL, "idle"),
        (signal.SIGKILL, "stuck"),
        (signal.SIGTERM, "busy"),
        (signal.SIGHUP, "busy"),
    ],
)
def test_c37_workers_end_with_a_killed_trainer(tmp_path, how, state):
    """Whatever kills the trainer, its workers are gone in five seconds, whatever they are at."""
    body = f"import ctypes, threading\n{ITERATE.format(seconds=0.0, persistent=True)}"
    body = body.replace("for batch in batches:\n    pass", STATES[state])
    with subprocess.Popen(program(tmp_path, body), stdout=subprocess.PIPE, text=True) as trainer:
        trainer.stdout.readline()
        workers = descendants(trainer.pid, 3 if state == "stuck" else 2)
        os.kill(trainer.pid, how)
        trainer.wait(10)
    assert gone(workers, 5)


@pytest.mark.parametrize("seconds", ["0.0", "0.01"])
def test_c38_one_traceback_for_ctrl_c(tmp_path, seconds):
    """SIGINT to the whole group: one traceback, a quick end, nobody left."""
    body = ITERATE.format(seconds=seconds, persistent=False)
    with subprocess.Popen(
        program(tmp_path, body),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as trainer:
        pids = [int(word) for word in trainer.stdout.readline().split()]
        os.killpg(trainer.pid, signal.SIGINT)
        started = time.monotonic()
        _, errors = trainer.communicate(timeout=20)
    assert time.monotonic() - started < 4
    assert errors.count("Traceback") == 1
    assert errors.strip().endswith("KeyboardInterrupt")
    assert trainer.returncode == -signal.SIGINT
    assert gone(pids, 1)


EXITS = {
    "break": "for batch in loader: break",
    "module-global iterator": "global kept\nkept = iter(loader)\nnext(kept)",
    "kept batches": "global kept\nkept = [batch for batch, _ in zip(loader, range(20))]",
    "cycle": "kept = [iter(loader)]\nkept.append(kept)\nnext(kept[0])",
    "unstarted": "global kept\nkept = iter(loader)",
    "two": "global kept\nkept = [iter(loader), iter(loader)]\n[next(k) for k in kept]",
    "thread": "import threading\n"
    "threading.Thread(target=lambda: [next(b) for b in [iter(loader)]]).start()",
}
# One program imports torch once; each case is a fork of it that ends as any program ends.
LEAVE = f"""
def ends(act):
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        act()
        sys.exit()
    return os.waitpid(child, 0)[1], time.monotonic() - started

def leave():
    loader = DataLoader(Slow(), batch_size=8, num_workers=2, persistent_workers=persistent)
    exec(body, {{"loader": loader}})

_, bare = ends(lambda: None)  # torch alone takes a while to end
for persistent in (False, True):
    for name, body in {EXITS!r}.items():
        if persistent and name not in ("break", "module-global iterator", "cycle"):
            continue
        status, took = ends(leave)
        print(name, persistent, status, "in time" if took < bare + 4 else took, flush=True)
"""


def test_c32_exit_in_the_middle(tmp_path):
    """Programs that end right after a break, in all sorts of states: code 0, no word, quickly."""
    done = subprocess.run(
        program(tmp_path, LEAVE), capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.endswith("0 in time") for line in lines), done.stdout


METHODS = """
import random
import numpy as np
import warnings

class Draws(Dataset):
    def __len__(self):
        return 14
    def __getitem__(self, index):
        info = get_worker_info()
        return {
            "draws": (random.random(), np.random.rand(), torch.rand(2)),
            "info": (index, info.id, info.num_workers, info.seed),
            "image": torch.full((3, 50, 50), index, dtype=torch.uint8),
            "text": "x" * index,
        }

def collate(batch):
    return [torch.utils.data.default_collate(batch), np.arange(5000), {"numbers": [1, 2]}]

def epochs(kind, method):
    torch.manual_seed(3)
    loader = kind(Draws(), batch_size=4, shuffle=True, num_workers=1, collate_fn=collate,
                  multiprocessing_context=method, persistent_workers=True)
    return [batch for _ in range(2) for batch in loader]

def main():
    theirs = epochs(torch.utils.data.DataLoader, "fork")  # the quickest; batches are the same
    ours = epochs(DataLoader, sys.argv[1])
    assert len(ours) == len(theirs) == 8
    for a, b in zip(ours, theirs):
        assert repr(a) == repr(b)
        assert torch.equal(a[0]["image"], b[0]["image"])
    print("same")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods_give_torchs_batches(tmp_path, method):
    """Spawned workers and those of a fork server: batches, seeds and infos equal torch's."""
    script = tmp_path / "methods.py"
    script.write_text(
        HEAD.replace("def main():\n", "") + METHODS + '\nif __name__ == "__main__":\n    main()\n'
    )
    done = subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("same\n", "", 0)
