# ruff: noqa: T201 - it speaks by printing
"""A program: loaders of large batches where /dev/shm is small, read-only or not there at all.

To be run in a mount namespace of its own: it mounts one thing after the other over /dev/shm.
"""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.utils.data import Dataset

import fastfeed as ff

MIB = 1 << 20
MOUNTS = {
    "64 MB": "mount -t tmpfs -o size=64m small /dev/shm",
    "16 MB": "mount -t tmpfs -o size=16m small /dev/shm",
    "1 MB": "mount -t tmpfs -o size=1m small /dev/shm",
    "read-only": "mount -t tmpfs -o size=16m,ro small /dev/shm",
    # Another /dev hides it; what Python and torch need of the old one stays.
    "absent": "mount -t tmpfs devices {scratch}\n"
    "touch {scratch}/null {scratch}/urandom\n"
    "mount --bind /dev/null {scratch}/null\n"
    "mount --bind /dev/urandom {scratch}/urandom\n"
    "mount --move {scratch} /dev",
}


class Large(Dataset):
    """Items of 8 MB."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((MIB,), index)


def use(method):
    """Keep all batches of two epochs."""
    loader = ff.DataLoader(
        Large(),
        num_workers=2,
        multiprocessing_context=method,
        prefetch_factor=4,
        persistent_workers=True,
    )
    kept = [batch for _ in range(2) for batch in loader]
    assert all(batch.nbytes == 8 * MIB for batch in kept)
    assert [int(batch.min()) for batch in kept] == [*range(16), *range(16)]
    assert [int(batch.max()) for batch in kept] == [*range(16), *range(16)]


def main(scratch):
    """Mount and use, one after the other."""
    for name, commands in MOUNTS.items():
        for command in commands.format(scratch=scratch).splitlines():
            subprocess.run(command.split(), check=True)
        use("fork")
        if name in {"1 MB", "absent"}:
            use("forkserver")
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
