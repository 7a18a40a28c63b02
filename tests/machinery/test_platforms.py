"""Where the system lacks what Linux has: everything works by fallback, or says that it cannot."""

from __future__ import annotations

import subprocess
import sys

# What macOS does not have is taken away before anything is imported.
LIKE_MACOS = """
import fcntl, mmap, os, select, sys
for module, names in {
    os: ["memfd_create", "MFD_CLOEXEC", "pidfd_open", "sched_getaffinity", "sched_setaffinity",
         "preadv", "posix_fadvise"],
    select: ["epoll", "POLLRDHUP"],
    fcntl: ["F_SETSIG"],
    mmap: ["MADV_DONTNEED"],
}.items():
    for name in names:
        delattr(module, name)
"""
RUN = """
import numpy as np
import torch
from torch.utils.data import Dataset
import fastfeed as ff

class Items(Dataset):
    def __init__(self):
        self.array = np.arange(100_000)
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((1000,), int(self.array[index]))

if __name__ == "__main__":
    with ff.ShardWriter(sys.argv[1]) as writer:
        for number in range(12):
            writer.write({"__key__": f"{number:03d}", "cls": number, "bin": bytes(50_000)})
    shards = ff.ShardDataset(sys.argv[1], {"number": ff.Int("cls"), "raw": ff.Bytes("bin")})
    for dataset in (Items(), shards):
        for options in ({}, {"num_workers": 2, "multiprocessing_context": "spawn"},
                        {"num_workers": ff.AUTO, "multiprocessing_context": "fork"}):
            loader = ff.DataLoader(dataset, 5, **options)
            batches = list(loader)
            numbers = [b["number"] if isinstance(b, dict) else b[:, 0] for b in batches]
            print(torch.cat(numbers).tolist() == list(range(12)))
"""


def test_without_what_only_linux_has(tmp_path):
    """Batches arrive from forked and spawned workers, through a file instead of a memfd."""
    script = tmp_path / "like_macos.py"
    script.write_text(LIKE_MACOS + RUN)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path / "shards")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n" * 6)


def test_elsewhere_the_import_says_so():
    """Not a missing module of Python's deep inside."""
    program = "import os; os.name = 'nt'; import fastfeed"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ImportError: fastfeed runs on Linux" in done.stderr
